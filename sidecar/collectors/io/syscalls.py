"""System calls that Python has no function for, by number: the same ones the C library would make."""

from __future__ import annotations

import ctypes
import errno
import os
import platform

# 424 and above have the same number on every architecture.
IO_URING_SETUP, IO_URING_ENTER, IO_URING_REGISTER, CACHESTAT = 425, 426, 427, 451
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}

_IOPRIO_WHO_PROCESS, _IOPRIO_CLASS_IDLE, _IOPRIO_CLASS_SHIFT = 1, 3, 13


class Kernel:
    """The process's C library, opened once by whoever makes calls."""

    def __init__(self) -> None:
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long

    def __call__(self, number: int, *arguments: object) -> int:
        """Makes the call. Raises OSError with the kernel's reason."""
        result = int(self._call(ctypes.c_long(number), *arguments))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result

    def idle_io_priority(self) -> None:
        """The calling thread's reads wait for everybody else's, where the disk's scheduler knows priorities."""
        number = _IOPRIO_SET.get(platform.machine())
        if number is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        priority = _IOPRIO_CLASS_IDLE << _IOPRIO_CLASS_SHIFT
        self(number, ctypes.c_int(_IOPRIO_WHO_PROCESS), ctypes.c_int(0), ctypes.c_int(priority))

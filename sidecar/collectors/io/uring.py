"""A small io_uring: one ring, reads only, over raw system calls.

The rings are memory shared with the kernel. Every batch passes through io_uring_enter, a system call, so no memory
barriers of our own are needed; a polling kernel thread (SQPOLL) would need them and is never asked for.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct

from sidecar.collectors.io.syscalls import IO_URING_ENTER, IO_URING_REGISTER, IO_URING_SETUP, Kernel

_OFFSET_SQES = 0x10000000
_FEATURE_SINGLE_MMAP = 1
_SINGLE_ISSUER, _DEFER_TASKRUN = 1 << 12, 1 << 13  # 6.1: completions are taken up when we wait, not in between
_GETEVENTS = 1
_READ = 22
_PROBE = 8  # io_uring_register: which operations there are
_PARAMETERS = 120  # bytes of struct io_uring_params
_SQE, _CQE = 64, 16


class Ring:
    """Up to `entries` reads on their way at once. Not for sharing between threads."""

    def __init__(self, entries: int, kernel: Kernel | None = None) -> None:
        """Raises OSError: ENOSYS (no io_uring), EPERM (not allowed), ENOMEM (locked memory)."""
        self._kernel = kernel or Kernel()
        parameters = self._setup(entries)
        sq_entries, cq_entries = struct.unpack_from("<II", parameters, 0)
        (self._features,) = struct.unpack_from("<I", parameters, 20)
        sq = struct.unpack_from("<8IQ", parameters, 40)
        cq = struct.unpack_from("<8IQ", parameters, 80)
        self.entries = int(sq_entries)
        self._sq_tail, sq_mask, array = sq[1], sq[2], sq[6]
        self._cq_head, self._cq_tail, cq_mask, self._cqes = cq[0], cq[1], cq[2], cq[5]
        self.pending = 0  # prepared and not submitted
        self._tail = 0
        try:
            if not self._features & _FEATURE_SINGLE_MMAP:
                raise OSError(errno.ENOSYS, "a kernel older than 5.4")
            size = max(array + 4 * sq_entries, self._cqes + _CQE * cq_entries)
            shared = mmap.MAP_SHARED | mmap.MAP_POPULATE
            access = mmap.PROT_READ | mmap.PROT_WRITE
            self._ring = mmap.mmap(self.fd, size, shared, access)
            self._sqes = mmap.mmap(self.fd, sq_entries * _SQE, shared, access, offset=_OFFSET_SQES)
        except BaseException:
            os.close(self.fd)
            raise
        self._words = memoryview(self._ring).cast("I")
        self._sq_mask, self._cq_mask = self._words[sq_mask // 4], self._words[cq_mask // 4]
        for index in range(sq_entries):
            self._words[array // 4 + index] = index
        self._pack = struct.Struct("<BBHiQQIIQ").pack_into
        self._unpack = struct.Struct("<Qi").unpack_from

    def _setup(self, entries: int) -> bytearray:
        for flags in (_SINGLE_ISSUER | _DEFER_TASKRUN, 0):
            parameters = bytearray(_PARAMETERS)
            struct.pack_into("<I", parameters, 8, flags)
            buffer = (ctypes.c_char * _PARAMETERS).from_buffer(parameters)
            try:
                self.fd = self._kernel(IO_URING_SETUP, ctypes.c_uint(entries), buffer)
            except OSError as e:
                if e.errno == errno.EINVAL and flags:
                    continue  # a kernel that does not know the flags
                raise
            os.set_inheritable(self.fd, False)
            return parameters
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def prepare_read(self, fd: int, address: int, length: int, offset: int, tag: int) -> None:
        """Puts a read of `length` bytes into memory at `address` in the queue. At most `entries` may be under way."""
        at = (self._tail & self._sq_mask) * _SQE
        self._pack(self._sqes, at, _READ, 0, 0, fd, offset, address, length, 0, tag)
        self._tail = (self._tail + 1) & 0xFFFFFFFF
        self.pending += 1

    def submit(self, wait_for: int) -> None:
        """Hands over what is prepared and waits until `wait_for` reads have completed. Raises OSError."""
        self._words[self._sq_tail // 4] = self._tail
        while True:
            try:
                taken = self._kernel(
                    IO_URING_ENTER,
                    ctypes.c_uint(self.fd),
                    ctypes.c_uint(self.pending),
                    ctypes.c_uint(wait_for),
                    ctypes.c_uint(_GETEVENTS if wait_for else 0),
                    None,
                    ctypes.c_size_t(0),
                )
            except InterruptedError:
                continue
            self.pending -= taken
            return

    def completions(self) -> list[tuple[int, int]]:
        """(tag, bytes read or negative errno) of every read that completed since the last call."""
        head, tail = self._words[self._cq_head // 4], self._words[self._cq_tail // 4]
        found = []
        while head != tail:
            found.append(self._unpack(self._ring, self._cqes + (head & self._cq_mask) * _CQE))
            head = (head + 1) & 0xFFFFFFFF
        self._words[self._cq_head // 4] = head
        return found

    def operations(self) -> frozenset[int]:
        """Numbers of the operations this kernel offers (5.6 and newer). Raises OSError."""
        count = 256
        buffer = (ctypes.c_char * (16 + 8 * count))()
        self._kernel(IO_URING_REGISTER, ctypes.c_uint(self.fd), ctypes.c_uint(_PROBE), buffer, ctypes.c_uint(count))
        told = buffer.raw[1]
        flags = (struct.unpack_from("<BBHI", buffer.raw, 16 + 8 * i) for i in range(told))
        return frozenset(operation for operation, _, flag, _ in flags if flag & 1)

    def close(self) -> None:
        """Gives the ring back; the kernel cancels what is still under way."""
        self._words.release()
        self._ring.close()
        self._sqes.close()
        os.close(self.fd)

"""Files in which the trainer tells what only its container sees: how it is asked, and how its answer is read."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

from sidecar.model import JSON

ASKED = "asked"  # as in spikewatch/asked.py, which this room must not import; a test holds them equal
_MAX_SIZE = 256 << 10


class TrainerFile:
    """The folder by which the trainer is asked, and the file in it. Believes nothing that stands there."""

    def __init__(self, folder: Path, file: str, clock: Callable[[], float], fresh_s: float) -> None:
        """`clock`: seconds since 1970, to tell whether the file is older than `fresh_s`."""
        self._folder, self._file, self._clock, self._fresh_s = folder, file, clock, fresh_s
        self._made = False

    def ask(self) -> None:
        """Makes the folder, where it is not there, and says in it that somebody wants to know, for three minutes. Call
        it every minute. A folder that cannot be made asks nobody.
        """
        with contextlib.suppress(OSError):
            around = self._folder.parent.stat()
            self._folder.mkdir()
            self._made = True
            # Who may open the socket's folder may leave a file here.
            self._folder.chmod(0o770 if around.st_mode & 0o050 else 0o700)
            os.chown(self._folder, -1, around.st_gid)
        with contextlib.suppress(OSError):
            (self._folder / ASKED).touch(mode=0o600)

    def stop(self) -> None:
        """Takes the folder away, if it is ours: nobody needs to read any more."""
        if self._made:
            self._made = False
            for name in (ASKED, self._file, f"{self._file}.new"):
                with contextlib.suppress(OSError):
                    (self._folder / name).unlink()
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def told(self) -> JSON | None:
        """What the trainer wrote, of whatever content; None where there is no fresh and readable object."""
        text = self._read()
        if text is None:
            return None
        try:
            told = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return told if isinstance(told, dict) else None

    def _read(self) -> bytes | None:
        try:
            fd = os.open(self._folder / self._file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            info = os.fstat(fd)
            fresh = abs(self._clock() - info.st_mtime) <= self._fresh_s
            if not stat.S_ISREG(info.st_mode) or not fresh or info.st_size > _MAX_SIZE:
                return None
            return os.read(fd, _MAX_SIZE)
        finally:
            os.close(fd)

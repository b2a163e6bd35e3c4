"""What turns healthy into troubled: a number that several processes see at once. Standard library only."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from pathlib import Path


class Lever:
    """A double in a mapped file."""

    def __init__(self, file: Path) -> None:
        """Makes it, at 0, where it is not there."""
        if not file.exists():
            file.write_bytes(bytes(8))
        self.file = file
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), 8)

    def pull(self, value: float) -> float:
        """Sets it; the wall time at which that was, in seconds."""
        self._map[:8] = struct.pack("<d", value)
        return time.time()

    def at(self) -> float:
        """How it stands."""
        return float(struct.unpack("<d", self._map[:8])[0])

    def close(self) -> None:
        """Lets go of the file."""
        self._map.close()


def end_with_parent() -> None:
    """The process ends when whoever started it is gone: a test that was killed leaves no training behind."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

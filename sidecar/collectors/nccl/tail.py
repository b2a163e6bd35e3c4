"""Follows growing text files: new whole lines, through rotation and truncation, never more than a bounded backlog."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAX_BACKLOG = 64 << 20  # bytes; what is older is skipped and counted
CHUNK = 1 << 20  # read at once; what has no end of line by then is taken as one
_GRACE = 3  # visits: a writer goes on for a moment in the file it has just renamed


@dataclass(slots=True)
class Counts:
    """What happened so far."""

    bytes: int = 0
    lines: int = 0
    skipped_bytes: int = 0
    gaps: int = 0
    rotations: int = 0
    truncations: int = 0
    errors: int = 0  # files that exist and cannot be read


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines of one file, each with its end."""

    path: str
    text: str


_Identity = tuple[int, int]  # device and inode


class _File:
    """One file by its identity: kept open, so that what was written around a rotation is still read."""

    def __init__(self, path: str, fd: int) -> None:
        self.path, self.fd, self.offset = path, fd, 0
        self.skipping = False  # the next line is the rest of one that was skipped
        self.gone = 0  # visits since no path led to it


class Tail:
    """Files named by globs, each read once however many paths lead to it. Not thread-safe."""

    def __init__(self, patterns: Sequence[str] = (), *, max_files: int = 64, max_backlog: int = MAX_BACKLOG) -> None:
        """New files matching `patterns` are found on each read; beyond `max_files` they are left alone."""
        self.patterns = tuple(patterns)
        self._max_files = max_files
        self._max_backlog = max_backlog
        self._files: dict[_Identity, _File] = {}
        self.counts = Counts()

    def __len__(self) -> int:
        """Files that are followed now."""
        return sum(not file.gone for file in self._files.values())

    def matching(self) -> int:
        """Files there are now, whether or not they can be read."""
        return len(self._present())

    def read(self, budget: int = 8 << 20) -> Iterator[Piece]:
        """The lines that came since the last call, ending soon after `budget` bytes.

        Raises nothing: a file that cannot be read is counted.
        """
        present = self._present()
        end = self.counts.bytes + budget
        for identity, file in list(self._files.items()):
            if identity in present:
                file.path, file.gone = present[identity], 0
                continue
            self.counts.rotations += not file.gone and file.path in present.values()
            file.gone += 1
            yield from self._read(file, end, last=file.gone > _GRACE)
            if file.gone > _GRACE:
                self._let_go(identity)
        for identity, path in present.items():
            found = self._files.get(identity) or self._open(path, identity)
            if found is not None:
                yield from self._read(found, end)

    def close(self) -> None:
        """Closes every file."""
        for identity in list(self._files):
            os.close(self._files.pop(identity).fd)

    def _present(self) -> dict[_Identity, str]:
        found: dict[_Identity, str] = {}
        for path in sorted({path for pattern in self.patterns for path in glob.iglob(pattern)}):
            try:
                status = os.stat(path)
            except OSError:
                continue  # gone since the listing
            if stat.S_ISREG(status.st_mode) and len(found) < self._max_files:
                found.setdefault((status.st_dev, status.st_ino), path)
        return found

    def _open(self, path: str, identity: _Identity) -> _File | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            self.counts.errors += 1
            return None
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != identity:  # replaced in between: found by its new identity next time
            os.close(fd)
            return None
        self._files[identity] = _File(path, fd)
        return self._files[identity]

    def _let_go(self, identity: _Identity) -> None:
        file = self._files.pop(identity)
        left = os.fstat(file.fd).st_size - file.offset
        if left > 0:
            self._skip(file, file.offset + left)
        os.close(file.fd)

    def _read(self, file: _File, end: int, *, last: bool = False) -> Iterator[Piece]:
        try:
            size = os.fstat(file.fd).st_size
            if size < file.offset:
                self.counts.truncations += 1
                file.offset, file.skipping = 0, False
            if size - file.offset > self._max_backlog:
                if file.offset == 0:
                    # the start of a log is how NCCL set up its channels: one chunk of it is read all the same
                    yield from self._lines(file, self.counts.bytes + 1, last=False)
                self._skip(file, size - self._max_backlog)
            yield from self._lines(file, end, last=last)
        except OSError:
            self.counts.errors += 1

    def _skip(self, file: _File, to: int) -> None:
        self.counts.gaps += 1
        self.counts.skipped_bytes += to - file.offset
        file.offset, file.skipping = to, True

    def _lines(self, file: _File, until: int, *, last: bool) -> Iterator[Piece]:
        """Pieces of up to CHUNK bytes until `until` bytes were read in all."""
        while self.counts.bytes < until:
            data = os.pread(file.fd, CHUNK, file.offset)
            end = data.rfind(b"\n") + 1
            if not end and (len(data) >= CHUNK or last):
                end = len(data)  # a line without an end: one is made of what there is
            if not end:
                return
            file.offset += end
            start = 0
            if file.skipping:
                found = data.find(b"\n", 0, end) + 1
                file.skipping = not found
                start = found or end
                self.counts.skipped_bytes += start
            self.counts.bytes += end - start
            self.counts.lines += data.count(b"\n", start, end)
            if start < end:
                yield Piece(file.path, data[start:end].decode("utf-8", "replace"))

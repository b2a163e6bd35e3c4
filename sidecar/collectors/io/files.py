"""The files a job reads: found among its open descriptors or named, and how much of them is in memory."""

from __future__ import annotations

import ctypes
import glob
import os
import random
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sidecar.collectors.io.syscalls import CACHESTAT, Kernel
from sidecar.collectors.procfs import Process
from sidecar.model import Sample

MAX_FILES = 200  # sampled at once
_SMALL = 1 << 20  # bytes; what is smaller is no dataset
_MAX_FDS = 1024  # descriptors looked at in one process


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file to look at. `path` opens it from here, whatever mount namespace it is in."""

    path: str
    size: int
    device: tuple[int, int]  # major, minor of the file system


@dataclass(frozen=True, slots=True)
class Residency:
    """Page cache of one file, in pages."""

    cached: int
    dirty: int
    evicted: int
    recently_evicted: int


def named(patterns: Sequence[str], limit: int = 2_000) -> Iterator[DataFile]:
    """Files that match the globs, in no order; of each glob at most `limit`.

    A data set may have millions on a server that answers slowly: this asks it for few, and should be called seldom.
    """
    for pattern in patterns:
        for path in islice(glob.iglob(pattern, recursive=True), limit):
            found = _data_file(path)
            if found is not None:
                yield found


def opened(root: Path, processes: Iterable[Process]) -> Iterator[DataFile]:
    """Files of at least a megabyte that processes have open for reading only, each once."""
    seen: set[tuple[int, int]] = set()
    for process in processes:
        folder = f"{root}/{process.pid}/fd"
        try:
            names = os.listdir(folder)[:_MAX_FDS]
        except OSError:
            continue  # it ended, or is another user's: told by the usage of processes
        for name in names:
            link = f"{folder}/{name}"
            try:
                status = os.stat(link)
                writable = os.lstat(link).st_mode & 0o200
            except OSError:
                continue
            if not stat.S_ISREG(status.st_mode) or writable or status.st_size < _SMALL:
                continue
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                yield DataFile(link, status.st_size, (os.major(status.st_dev), os.minor(status.st_dev)))


def choose(files: Iterable[DataFile], limit: int = MAX_FILES, seed: int = 0) -> list[DataFile]:
    """At most `limit` of them, each as likely as any other."""
    rng = random.Random(seed)
    kept: list[DataFile] = []
    for number, file in enumerate(files):
        if len(kept) < limit:
            kept.append(file)
        elif (place := rng.randrange(number + 1)) < limit:
            kept[place] = file
    return kept


def _data_file(path: str) -> DataFile | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return None
    return DataFile(path, status.st_size, (os.major(status.st_dev), os.minor(status.st_dev)))


class PageCache:
    """Asks the kernel with cachestat (6.5 and newer), which touches nothing.

    mincore would tell a stranger that everything is in memory, and a read with RWF_NOWAIT starts read-ahead.
    """

    def __init__(self, kernel: Kernel | None = None) -> None:
        self._kernel = kernel or Kernel()
        self.problem = ""  # why the newest file could not be asked about

    def residency(self, path: str) -> Residency | None:
        """None: unknown. EPERM means that the file is not ours and we may not write to it."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as e:
            self.problem = e.strerror or str(e)
            return None
        try:
            span, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
            self._kernel(CACHESTAT, ctypes.c_uint(fd), ctypes.byref(span), ctypes.byref(found), ctypes.c_uint(0))
        except OSError as e:
            self.problem = e.strerror or str(e)
            return None
        finally:
            os.close(fd)
        cached, dirty, _, evicted, recently = found
        return Residency(cached, dirty, evicted, recently)

    def samples(self, files: Sequence[DataFile]) -> Iterator[Sample]:
        """What of the given files is in memory. Files that could not be asked about count as unknown, not as absent."""
        page = os.sysconf("SC_PAGE_SIZE")
        cached = size = evicted = unknown = 0
        for file in files:
            found = self.residency(file.path)
            if found is None:
                unknown += 1
                continue
            size += file.size
            cached += min(file.size, found.cached * page)
            evicted += found.recently_evicted * page
        yield Sample("spikewatch_io_page_cache_unknown_files", (), unknown)
        if size:
            yield Sample("spikewatch_io_page_cache_sampled_bytes", (), size)
            yield Sample("spikewatch_io_page_cache_resident_bytes", (), cached)
            yield Sample("spikewatch_io_page_cache_recently_evicted_bytes", (), evicted)

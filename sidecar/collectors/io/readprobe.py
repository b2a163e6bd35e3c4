"""Measures what the storage under some files can give: direct reads at a queue depth, by io_uring or by threads.

Runs in a process of its own (`python -m sidecar.collectors.io.readprobe JSON`), at idle priority: a file system that
hangs then hangs nobody else, and its buffers are not the sidecar's memory. It competes with the job for the disk, so
it reads a bounded amount, for a bounded time.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from sidecar.collectors.io.syscalls import Kernel
from sidecar.collectors.io.uring import Ring

EXTENT = 1 << 20  # bytes read in a row before going elsewhere: what a loader of large files does


@dataclass(frozen=True, slots=True)
class Plan:
    """What to read. `engine` "" takes io_uring, and threads where that is not allowed."""

    paths: tuple[str, ...]
    block: int = 128 << 10
    depth: int = 32
    max_bytes: int = 256 << 20
    seconds: float = 2.0
    engine: str = ""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it. Without `direct` the reads may have come from memory and say nothing about the storage."""

    engine: str
    direct: bool
    bytes: int
    seconds: float
    reads: int
    errors: int
    fallback: str = ""  # why io_uring was not used

    @property
    def bytes_per_second(self) -> float:
        """0 where nothing was read."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class _File:
    fd: int
    size: int


class _Extents:
    """Where to read next: blocks in a row within a random extent of a random file; safe to share between threads."""

    def __init__(self, files: Sequence[_File], plan: Plan) -> None:
        self._random = random.Random(plan.seed)
        self._files = [file for file in files if file.size >= plan.block]
        self._weights = [file.size for file in self._files]
        self._plan = plan
        self._left = plan.max_bytes
        self._lock = threading.Lock()
        self._current: Iterator[tuple[int, int]] = iter(())
        self._end = time.monotonic() + plan.seconds

    def __bool__(self) -> bool:
        return bool(self._files)

    def next(self) -> tuple[int, int] | None:
        """(descriptor, offset), or None when it is enough."""
        with self._lock:
            if self._left < self._plan.block or time.monotonic() >= self._end:
                return None
            self._left -= self._plan.block
            found = next(self._current, None)
            if found is None:
                self._current = self._extent()
                found = next(self._current)
            return found

    def _extent(self) -> Iterator[tuple[int, int]]:
        (file,) = self._random.choices(self._files, self._weights)
        block = self._plan.block
        blocks = file.size // block
        run = min(blocks, max(1, EXTENT // block))
        start = self._random.randrange(0, blocks - run + 1)
        return ((file.fd, (start + i) * block) for i in range(run))


def measure(plan: Plan, kernel: Kernel | None = None) -> Result:
    """Reads as planned. Raises OSError where no file can be opened or none is as large as a block."""
    kernel = kernel or Kernel()
    with ExitStack() as stack:
        files, direct = _open(plan.paths, stack)
        extents = _Extents(files, plan)
        if not extents:
            raise OSError(errno.EINVAL, f"no file is as large as a block ({plan.block} bytes)")
        buffers = mmap.mmap(-1, plan.block * plan.depth)  # page-aligned, as direct reads demand
        stack.callback(buffers.close)
        fallback = ""
        if plan.engine != "preadv":
            try:
                ring = Ring(plan.depth, kernel)
            except OSError as e:
                if plan.engine == "io_uring":
                    raise
                fallback = errno.errorcode.get(e.errno or 0, "unknown").lower()
            else:
                stack.callback(ring.close)
                return _by_ring(ring, extents, buffers, plan, direct)
        return _by_threads(extents, buffers, plan, direct, fallback)


def _open(paths: Sequence[str], stack: ExitStack) -> tuple[list[_File], bool]:
    files: list[_File] = []
    direct = True
    problem: OSError | None = None
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_DIRECT)
        except OSError as e:
            if e.errno != errno.EINVAL:
                problem = e
                continue
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # e.g. tmpfs before 6.5, some FUSE
            direct = False
        stack.callback(os.close, fd)
        files.append(_File(fd, os.fstat(fd).st_size))
    if not files:
        raise problem or OSError(errno.ENOENT, "no file to read")
    return files, direct


def _by_ring(ring: Ring, extents: _Extents, buffers: mmap.mmap, plan: Plan, direct: bool) -> Result:
    view = (ctypes.c_char * len(buffers)).from_buffer(buffers)
    base = ctypes.addressof(view)
    free = list(range(plan.depth))
    under_way = read = reads = errors = 0
    started = time.perf_counter()
    try:
        while True:
            while free and (place := extents.next()) is not None:
                slot = free.pop()
                ring.prepare_read(place[0], base + slot * plan.block, plan.block, place[1], slot)
                under_way += 1
            if not under_way:
                break
            ring.submit(min(under_way, max(1, plan.depth // 8)))  # waking for each read would cost a call for each
            for slot, result in ring.completions():
                free.append(slot)
                under_way -= 1
                if result < 0:
                    errors += 1
                else:
                    read += result
                    reads += 1
    finally:
        del view  # an exported buffer could not be closed
    return Result("io_uring", direct, read, time.perf_counter() - started, reads, errors)


def _by_threads(extents: _Extents, buffers: mmap.mmap, plan: Plan, direct: bool, fallback: str) -> Result:
    memory = memoryview(buffers)
    totals = [[0, 0, 0] for _ in range(plan.depth)]

    def work(number: int) -> None:
        own = totals[number]
        with memory[number * plan.block : (number + 1) * plan.block] as part:
            while (place := extents.next()) is not None:
                try:
                    own[0] += os.preadv(place[0], [part], place[1])
                    own[1] += 1
                except OSError:
                    own[2] += 1

    started = time.perf_counter()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(plan.depth)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    memory.release()
    read, reads, errors = (sum(own[i] for own in totals) for i in range(3))
    return Result("preadv", direct, read, seconds, reads, errors, fallback)


def main(argument: str) -> int:
    """The child: plan as JSON in, result as JSON out. Exits 1 with the reason on standard error."""
    given = json.loads(argument)
    plan = Plan(**{**given, "paths": tuple(given["paths"])})
    kernel = Kernel()
    try:
        os.nice(19)
        kernel.idle_io_priority()
    except OSError as e:
        sys.stderr.write(f"without idle priority: {e}\n")
    try:
        result = measure(plan, kernel)
    except OSError as e:
        sys.stderr.write(f"{e}\n")
        return 1
    sys.stdout.write(json.dumps(asdict(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""The flight recorder's files: read as they appear, asked for through the trainer's pipes."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sidecar.collectors.nccl import flightrecorder
from sidecar.model import Sample


class Dumps:
    """Reads the flight recorder's files as they appear, and asks for them through its pipes."""

    def __init__(self, dump_prefix: str, pipe_prefix: str) -> None:
        """The values of TORCH_FR_DUMP_TEMP_FILE and TORCH_NCCL_DEBUG_INFO_PIPE_FILE; "" where unset."""
        self.look(dump_prefix, pipe_prefix)
        self._seen: dict[str, tuple[int, int]] = {}  # path → mtime, size
        self._stuck: dict[int, int] = {}
        self._status: dict[int, tuple[int, int]] = {}
        self.read = self.refused = self.requests = 0

    def look(self, dump_prefix: str, pipe_prefix: str) -> None:
        """Other prefixes from now on."""
        self._dump_prefix, self._pipe_prefix = dump_prefix, pipe_prefix

    @property
    def reachable(self) -> bool:
        """Whether there is a place where dumps would appear."""
        return bool(self._dump_prefix)

    def new(self) -> Iterator[tuple[int, list[flightrecorder.Entry]]]:
        """(rank, entries) of every dump that was written since the last call."""
        for rank, path in _numbered(self._dump_prefix, ""):
            try:
                status = os.stat(path)
                identity = (status.st_mtime_ns, status.st_size)
                if self._seen.get(path) == identity:
                    continue
                self._seen[path] = identity
                if status.st_size > flightrecorder.MAX_BYTES:
                    raise flightrecorder.DumpRefused(f"{path} is too large")
                with open(path, "rb") as file:
                    bodies = [event.body for event in flightrecorder.parse(file.read())]
            except (OSError, flightrecorder.DumpRefused):
                self.refused += 1  # one that is being written is read again when it has grown
                continue
            self.read += 1
            entries = [body for body in bodies if isinstance(body, flightrecorder.Entry)]
            self._stuck[rank] = sum(not e.retired and e.state != "completed" for e in entries)
            groups = [body for body in bodies if isinstance(body, flightrecorder.GroupStatus)]
            if groups:  # the first is the default group
                self._status[rank] = (groups[0].last_enqueued, groups[0].last_completed)
            yield rank, entries

    def request(self) -> int:
        """Asks every rank for a dump. Returns how many were asked; a pipe without a reader is left alone."""
        asked = 0
        for _, path in _numbered(self._pipe_prefix, ".pipe"):
            try:
                fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                continue  # ENXIO: no watchdog reads it
            try:
                os.write(fd, b"1")
                asked += 1
            except OSError:
                continue  # full: it was asked before
            finally:
                os.close(fd)
        self.requests += asked
        return asked

    def samples(self) -> Iterator[Sample]:
        """Counts, and what the newest dump of each rank says."""
        yield Sample("spikewatch_nccl_flight_recorder_dumps_total", (), self.read)
        yield Sample("spikewatch_nccl_flight_recorder_refused_total", (), self.refused)
        yield Sample("spikewatch_nccl_flight_recorder_requests_total", (), self.requests)
        for rank, stuck in self._stuck.items():
            yield Sample("spikewatch_nccl_stuck_collectives", (("rank", str(rank)),), stuck)

    @property
    def progress(self) -> dict[int, tuple[int, int]]:
        """Rank → newest collective enqueued, completed."""
        return dict(self._status)


def _numbered(prefix: str, suffix: str) -> Iterator[tuple[int, str]]:
    """(number, path) of the files `<prefix><number><suffix>`."""
    if not prefix:
        return
    folder, start = os.path.split(prefix)
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:
        return
    for name in names:
        number = name[len(start) :].removesuffix(suffix) if suffix else name[len(start) :]
        fits = name.startswith(start) and name.endswith(suffix) and number.isascii() and number.isdigit()
        if fits and len(number) < 7:
            yield int(number), os.path.join(folder, name)

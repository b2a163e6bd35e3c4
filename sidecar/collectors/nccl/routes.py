"""Over what the ranks are connected, and whether that has become worse since the first initialisation.

A communicator has another number in every run, so routes are compared by what stays: the host and device that made
it, the how-manieth communicator of its process it is, its size, and the two ranks. A process that starts anew on the
same device replaces what its predecessor had.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sidecar.collectors.nccl.events import Channel, Event, Header, Init

_ROUTES = 20_000  # remembered at most: 8 GPUs with 32 channels to each other are 1792

# From best to worst. What is not listed is taken for a network plugin.
_ORDER = ("NVLS", "P2P/direct pointer", "P2P/CUMEM", "P2P/IPC", "P2P", "P2P/indirect", "SHM", "NET/IB/GDRDMA")
_WORST = "NET/Socket"

_Route = tuple[str, int, int, int, int, int]  # host, device, ordinal, ranks, from, to


def grade(transport: str) -> int:
    """The smaller the better. Ways of reaching a peer's memory directly are equally good."""
    if transport.startswith("P2P/") and transport != "P2P/indirect":
        return 0
    if transport in _ORDER:
        return _ORDER.index(transport)
    if transport == _WORST:
        return 100
    return 50 if transport.endswith("/GDRDMA") else 60


@dataclass(slots=True)
class _Process:
    """What one process has on one device."""

    pid: int
    comms: dict[tuple[int, str], int] = field(default_factory=dict)  # (thread, communicator) → ranks
    current: tuple[int, int] = (0, 0)  # ordinal and ranks of the communicator being set up
    transports: Counter[str] = field(default_factory=Counter)
    worse: set[_Route] = field(default_factory=set)


class Routes:
    """Follows the events of any number of processes."""

    def __init__(self) -> None:
        self._processes: dict[tuple[str, int], _Process] = {}
        self._first: dict[_Route, tuple[int, int]] = {}  # route → grade and pid of its first initialisation

    def see(self, event: Event) -> None:
        """Takes an event that is about channels; ignores all others."""
        if event.header is None:
            return
        if isinstance(event.body, Init):
            self._init(event.header, event.body)
        elif isinstance(event.body, Channel) and event.body.direction != "receive":
            self._channel(event.header, event.body)  # the receiving end prints the same connection once more

    def transports(self) -> Counter[str]:
        """Channels by transport, over all processes as they are now."""
        total: Counter[str] = Counter()
        for process in self._processes.values():
            total.update(process.transports)
        return total

    def downgraded(self) -> int:
        """Routes that now run over something worse than in the first initialisation."""
        return sum(len(process.worse) for process in self._processes.values())

    def _process(self, header: Header) -> _Process:
        key = (header.host, header.device)
        process = self._processes.get(key)
        if process is None or process.pid != header.pid:
            process = self._processes[key] = _Process(header.pid)
        return process

    def _init(self, header: Header, init: Init) -> None:
        process = self._process(header)
        key = (header.tid, init.comm)
        if init.phase == "start" or key not in process.comms:
            process.comms[key] = init.ranks
            process.current = (len(process.comms), init.ranks)

    def _channel(self, header: Header, channel: Channel) -> None:
        process = self._process(header)
        process.transports[channel.transport] += 1
        route = (header.host, header.device, *process.current, channel.from_rank, channel.to_rank)
        new = grade(channel.transport)
        first = self._first.get(route)
        if first is None:
            if len(self._first) < _ROUTES:
                self._first[route] = (new, header.pid)
        elif first[1] == header.pid:
            self._first[route] = (max(first[0], new), header.pid)
        elif new > first[0]:
            process.worse.add(route)

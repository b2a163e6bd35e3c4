"""Over what the ranks are connected, and whether that has become worse since the first initialisation.

A communicator has another number in every run, so routes are compared by what stays: the host and device that made
it, the how-manieth communicator of its process it is, its size, and the two ranks. A process that starts anew on the
same device replaces what its predecessor had.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sidecar.collectors.nccl.events import Channel, Header, Init

_ROUTES = 20_000  # remembered at most: 8 GPUs with 32 channels to each other are 1792

# From best to worst. What is not listed is taken for a network plugin.
_ORDER = ("NVLS", "P2P/direct pointer", "P2P/CUMEM", "P2P/IPC", "P2P", "P2P/indirect", "SHM", "NET/IB/GDRDMA")
_WORST = "NET/Socket"

_Pair = tuple[int, int]  # from rank, to rank
_First = dict[_Pair, tuple[int, int]]  # grade and process of the first initialisation


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
    first: _First  # of the communicator being set up
    ordinal: int = 0  # of that communicator; its routes are told apart by it
    comms: set[tuple[int, str]] = field(default_factory=set)  # (thread, communicator) of those begun
    transports: Counter[str] = field(default_factory=Counter)
    worse: set[tuple[int, _Pair]] = field(default_factory=set)


class Routes:
    """Follows the events of any number of processes."""

    def __init__(self) -> None:
        self._processes: dict[tuple[str, int], _Process] = {}
        # (host, device, ordinal, ranks) → its routes
        self._first: dict[tuple[str, int, int, int], _First] = {}
        self._grades: dict[str, int] = {}
        self._room = _ROUTES

    def init(self, header: Header, init: Init) -> None:
        """A communicator begins, or completes without having been seen to begin."""
        process = self._process(header)
        key = (header.tid, init.comm)
        if init.phase == "start" or key not in process.comms:
            process.comms.add(key)
            process.ordinal = len(process.comms)
            process.first = self._first.setdefault((header.host, header.device, process.ordinal, init.ranks), {})

    def channel(self, header: Header, channel: Channel) -> None:
        """A connection; the receiving end prints the same one once more."""
        if channel.direction == "receive":
            return
        process = self._process(header)
        transport = channel.transport
        process.transports[transport] += 1
        new = self._grades.get(transport)
        if new is None:
            new = self._grades[transport] = grade(transport)
        pair = (channel.from_rank, channel.to_rank)
        first = process.first.get(pair)
        if first is None:
            if self._room > 0:
                self._room -= 1
                process.first[pair] = (new, header.pid)
        elif new > first[0]:
            if first[1] == header.pid:
                process.first[pair] = (new, header.pid)  # the worst of its channels
            else:
                process.worse.add((process.ordinal, pair))

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
            first = self._first.setdefault((*key, 0, 0), {})  # of a log that begins in the middle
            process = self._processes[key] = _Process(header.pid, first)
        return process

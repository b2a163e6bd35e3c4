"""What a line can mean: one small frozen type for each kind of event.

`kind` names the type in JSON. Ranks, devices and channels are numbers; addresses and hashes stay text, as printed.
Sizes are bytes, times seconds. None or an empty text means that the line did not say.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple


class Header(NamedTuple):
    """Who printed the line. `device` is the CUDA device, not the rank; -1 where the line has none."""

    host: str
    pid: int
    tid: int
    device: int
    timestamp: str = ""


@dataclass(frozen=True, slots=True)
class Body:
    """The root of all meanings."""

    kind: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Other(Body):
    """A line of NCCL that says nothing we have a use for."""

    kind: ClassVar[str] = "other"
    level: str
    message: str


@dataclass(frozen=True, slots=True)
class Version(Body):
    """`NCCL version 2.27.5+cuda12.9`; printed without a header."""

    kind: ClassVar[str] = "version"
    version: str
    cuda: str = ""


@dataclass(frozen=True, slots=True)
class Init(Body):
    """A communicator begins or completes its initialisation."""

    kind: ClassVar[str] = "init"
    phase: str  # "start" or "complete"
    comm: str
    rank: int
    ranks: int
    device: int
    nvml_device: int | None
    bus_id: str
    comm_id: str


@dataclass(frozen=True, slots=True)
class InitTimings(Body):
    """How long the parts of an initialisation took, in seconds."""

    kind: ClassVar[str] = "init_timings"
    rank: int
    ranks: int
    total_seconds: float
    parts: dict[str, float]


@dataclass(frozen=True, slots=True)
class Split(Body):
    """A communicator made out of another one."""

    kind: ClassVar[str] = "split"
    comm: str
    parent: str
    rank: int
    ranks: int
    color: int
    key: int


@dataclass(frozen=True, slots=True)
class CommShape(Body):
    """How a communicator lies over the nodes."""

    kind: ClassVar[str] = "comm_shape"
    comm: str
    rank: int
    ranks: int
    nodes: int
    local_ranks: int
    local_rank: int


@dataclass(frozen=True, slots=True)
class Channel(Body):
    """One connection: from a rank to a rank, and over what.

    `transport` is what `spikewatch_nccl_channels` calls it: P2P/IPC, SHM, NET/Socket, NET/IB/GDRDMA …;
    `via` is everything printed after `via`.
    """

    kind: ClassVar[str] = "channel"
    channel: int
    connection: int | None
    from_rank: int
    from_device: str
    to_rank: int
    to_device: str
    direction: str  # "send", "receive" or "" where one line stands for both
    transport: str
    via: str


@dataclass(frozen=True, slots=True)
class Connected(Body):
    """All connections of a pattern stand: rings, trees …"""

    kind: ClassVar[str] = "connected"
    pattern: str


@dataclass(frozen=True, slots=True)
class Ring(Body):
    """The order of the ranks in a channel's ring."""

    kind: ClassVar[str] = "ring"
    channel: int
    channels: int
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trees(Body):
    """A rank's place in the tree of each channel: `children->rank->parent`, -1 for none."""

    kind: ClassVar[str] = "trees"
    trees: dict[int, str]


@dataclass(frozen=True, slots=True)
class ChannelCounts(Body):
    """How many channels of each sort there are."""

    kind: ClassVar[str] = "channel_counts"
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Network(Body):
    """The network chosen for traffic between nodes."""

    kind: ClassVar[str] = "network"
    network: str


@dataclass(frozen=True, slots=True)
class NetDevices(Body):
    """What a network found: the devices it uses, or none."""

    kind: ClassVar[str] = "net_devices"
    network: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bootstrap(Body):
    """The interface used to find the other ranks."""

    kind: ClassVar[str] = "bootstrap"
    interface: str
    address: str


@dataclass(frozen=True, slots=True)
class Plugin(Body):
    """Something about a plugin: whether one was found, from where, and which is used."""

    kind: ClassVar[str] = "plugin"
    message: str


@dataclass(frozen=True, slots=True)
class Environment(Body):
    """A variable that NCCL found set."""

    kind: ClassVar[str] = "environment"
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Driver(Body):
    """The version of the CUDA driver, e.g. 12010 for 12.1."""

    kind: ClassVar[str] = "driver"
    version: int


@dataclass(frozen=True, slots=True)
class Pattern(Body):
    """A search result for how to lay out channels."""

    kind: ClassVar[str] = "pattern"
    pattern: int
    cross_nic: int
    channels: int
    intra_gbs: float
    inter_gbs: float
    link: str


@dataclass(frozen=True, slots=True)
class Affinity(Body):
    """The CPUs a GPU's thread was bound to, as printed."""

    kind: ClassVar[str] = "affinity"
    gpu: int
    mask: str


@dataclass(frozen=True, slots=True)
class Algorithm(Body):
    """Which algorithm and protocol were chosen for a collective of a size."""

    kind: ClassVar[str] = "algorithm"
    op: str
    size_bytes: int
    algorithm: str
    protocol: str
    channels: tuple[int, int] | None


class Collective(NamedTuple):
    """A collective was enqueued (subsystem COLL). No NCCL prints how long it took.

    A tuple and no dataclass: a log of these may be hundreds of megabytes, and a tuple is made in a third of the time.
    """

    op: str
    op_count: int
    send_buffer: int  # addresses in the memory of the process
    receive_buffer: int
    elements: int
    datatype: int
    root: int
    comm: str
    ranks: int | None

    @property
    def kind(self) -> str:
        """The name of this type in JSON."""
        return "collective"

    def aligned(self, to: int = 512) -> bool:
        """Whether both buffers start at a multiple of `to` bytes."""
        return not (self.send_buffer % to or self.receive_buffer % to)


@dataclass(frozen=True, slots=True)
class Warn(Body):
    """A warning. `family` is one of `warnings.FAMILIES`; `where` the file and line that printed it."""

    kind: ClassVar[str] = "warn"
    family: str
    message: str
    where: str
    peer: str = ""
    status: str = ""


@dataclass(frozen=True, slots=True)
class Unwind(Body):
    """An error on its way up through NCCL's functions: it belongs to the warning before it."""

    kind: ClassVar[str] = "unwind"
    where: str
    result: int


@dataclass(frozen=True, slots=True)
class RasListening(Body):
    """The RAS service answers here."""

    kind: ClassVar[str] = "ras_listening"
    address: str


@dataclass(frozen=True, slots=True)
class Call(Body):
    """A call of the program into NCCL (level CALL)."""

    kind: ClassVar[str] = "call"
    call: str


@dataclass(frozen=True, slots=True)
class WatchdogTimeout(Body):
    """PyTorch's watchdog gave up on a collective."""

    kind: ClassVar[str] = "watchdog_timeout"
    rank: int
    op: str
    sequence: int
    elements_in: int | None
    elements_out: int | None
    timeout_seconds: float
    ran_seconds: float
    group: str = ""


@dataclass(frozen=True, slots=True)
class WatchdogStatus(Body):
    """How far a rank had come when the watchdog fired. The rank with the smallest `last_enqueued` held up the rest."""

    kind: ClassVar[str] = "watchdog_status"
    rank: int
    group: str
    failed: int
    last_enqueued: int
    last_completed: int


@dataclass(frozen=True, slots=True)
class WatchdogOther(Body):
    """Anything else that PyTorch's NCCL process group printed."""

    kind: ClassVar[str] = "watchdog_other"
    rank: int | None
    group: str
    topic: str  # terminated, dump_signal, dump_timeout, data_inconsistent, abort, heartbeat, other
    message: str


@dataclass(frozen=True, slots=True)
class SyntheticCollective(Body):
    """A line with a duration, as no NCCL prints it: only demonstrations write it."""

    kind: ClassVar[str] = "synthetic_collective"
    device: int
    op: str
    reduction: str
    datatype: str
    count: int | None
    seconds: float
    wait_seconds: float | None
    compute_seconds: float | None
    communication_seconds: float | None


@dataclass(frozen=True, slots=True)
class SyntheticTimeout(Body):
    """A warning about a late GPU, as no NCCL prints it: only demonstrations write it."""

    kind: ClassVar[str] = "synthetic_timeout"
    device: int
    late_device: int
    limit_seconds: float


Meaning = Body | Collective


class Event(NamedTuple):
    """A recognised line. `line` counts from 1; `repeated` is how often Ray says it saw the line."""

    line: int
    header: Header | None
    body: Meaning
    repeated: int = 1


def to_json(event: Event) -> dict[str, Any]:
    """An event as plain values: `kind` and `line` first, then who printed it, then what it says."""
    out: dict[str, Any] = {"kind": event.body.kind, "line": event.line}
    if event.header is not None:
        out |= {"host": event.header.host, "pid": event.header.pid, "tid": event.header.tid}
        if event.header.device >= 0:
            out["device"] = event.header.device
        if event.header.timestamp:
            out["timestamp"] = event.header.timestamp
    if event.repeated != 1:
        out["repeated"] = event.repeated
    if isinstance(event.body, Collective):
        return {**out, **event.body._asdict(), "aligned": event.body.aligned()}
    return {**out, **{f.name: getattr(event.body, f.name) for f in fields(event.body)}}

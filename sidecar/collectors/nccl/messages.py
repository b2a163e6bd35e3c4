"""The text of an INFO line → what it means. Formats as NCCL 2.8 to 2.32 print them."""

from __future__ import annotations

import re
from collections.abc import Callable

from sidecar.collectors.nccl import events
from sidecar.collectors.nccl.events import Meaning

_CHANNEL = re.compile(
    r"Channel (?P<channel>\d+)(?:/(?P<connection>\d+))? : "
    r"(?P<a>-?\d+)\[(?P<da>[0-9a-f]+)\] -> (?P<b>-?\d+)\[(?P<db>[0-9a-f]+)\]"
    r"(?: \[(?P<direction>send|receive)\])? via (?P<via>(?:P2P|SHM|NET|COLLNET|NVLS)\b\S*(?: pointer\S*)?)"
)
_RING = re.compile(r"Channel (?P<channel>\d+)/(?P<channels>\d+) :(?P<order>(?:\s+\d+)+)\s*$")
_TREE = re.compile(r"\[(\d+)\] (-?\d+(?:/-?\d+)*->-?\d+->-?\d+)")
_WORDS = ["opCount", "sendbuff", "recvbuff", "count", "datatype", "op", "root"]  # each before its value
_ALGORITHM = re.compile(
    r"(?P<op>\w+): (?P<size>\d+) Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
    r"(?:.*?channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?"
)
_INIT = re.compile(
    r"(?:.*\b)?comm (?P<comm>\S+) rank (?P<rank>\d+) n[rR]anks (?P<ranks>\d+) cudaDev (?P<device>\d+)"
    r"(?: nvmlDev (?P<nvml>\d+))? busId (?P<bus>[0-9a-f]+)(?: (?:commId|commHash) (?P<id>\S+))?.*?"
    r"- Init (?P<phase>START|COMPLETE)"
)
_TIMINGS = re.compile(
    r"Init timings(?: - \w+)?: rank (?P<rank>\d+) nranks (?P<ranks>\d+) "
    r"total (?P<total>[\d.]{1,24}) \((?P<parts>[^)]*)\)"
)
_PART = re.compile(r"(\w+) (\d{1,12}(?:\.\d{1,12})?)")
_SPLIT = re.compile(
    r"bootstrapSplit: comm (?P<comm>\S+) parent (?P<parent>\S+) rank (?P<rank>\d+) nranks (?P<ranks>\d+) "
    r"color (?P<color>-?\d+) key (?P<key>-?\d+)"
)
_SHAPE = re.compile(
    r"comm (?P<comm>\S+) rank (?P<rank>\d+) nRanks (?P<ranks>\d+) nNodes (?P<nodes>\d+) "
    r"localRanks (?P<locals>\d+) localRank (?P<local>\d+)"
)
_COUNTS = re.compile(r"(\d+) (coll|collnet|nvls|p2p) channels( per peer)?")
_ENVIRONMENT = re.compile(r"(?P<name>NCCL_\w+) set (?:by environment )?to (?P<value>.*?)\.?\s*$")
_BOOTSTRAP = re.compile(r"Bootstrap ?: Using (?:\[\d+\])?(?P<interface>[^:\s]+):(?P<address>\S+)")
_NETWORK = re.compile(r"Using network (?P<network>.+?)\s*$")
_DEVICES = re.compile(r"NET/(?P<network>\w+) ?: (?:Using (?P<devices>\[\d+\].*)|No device found)")
_DEVICE = re.compile(r"\[\d+\](\S+)")
_DRIVER = re.compile(r"cudaDriverVersion (?P<version>\d+)")
_PATTERN = re.compile(
    r"Pattern (?P<pattern>\d+), crossNic (?P<nic>\d+), nChannels (?P<channels>\d+), "
    r"bw (?P<intra>[\d.]{1,24})/(?P<inter>[\d.]{1,24}), type (?P<link>[^,]+)"
)
_AFFINITY = re.compile(r"Setting affinity for GPU (?P<gpu>\d+) to (?P<mask>\S+)")
_CONNECTED = re.compile(r"Connected (?:all )?(?P<pattern>[\w ]*(?:rings?|trees?|NVLS\w*)[\w ]*)")
_UNWIND = re.compile(r"(?P<where>[\w./-]+\.\w+:\d+) -> (?P<result>\d+)\b")
_RAS = re.compile(r"RAS client listening socket at (?P<address>\S+)")
_PLUGIN = re.compile(r"(?:NET|TUNER|PROFILER|ENV)/Plugin\b|Plugin Path\b|P2P plugin\b|Using non-device net plugin\b")
_VERSION = re.compile(r"NCCL version (?P<version>\d+(?:\.\d+)+)(?:\+cuda(?P<cuda>[\d.]+))?")


def meaning(message: str) -> Meaning | None:
    """None for a message that is none of those we know."""
    make = _BY_START.get(message[:4].lstrip()[:3])
    found = make(message) if make else None
    if found is not None:
        return found
    for words, maker in _REST:
        if words in message and (found := maker(message)) is not None:
            return found
    return None


def transport(via: str) -> str:
    """The transport's name as in `spikewatch_nccl_channels`: without device numbers and options that do not matter.

    P2P keeps how memory is reached (IPC, CUMEM, direct pointer, indirect); NET keeps the plugin, and GDRDMA, whose
    loss costs bandwidth.
    """
    first, _, rest = via.partition("/")
    if first not in ("P2P", "NET"):
        return first
    parts = rest.split("/")
    name = f"{first}/{parts[0]}" if parts[0] else first
    return f"{name}/GDRDMA" if "GDRDMA" in parts else name


def collective(message: str) -> events.Collective | None:
    """A line of subsystem COLL. None for anything else.

    Taken apart by its words, which costs half of what an expression does: a log may be nothing but these.
    """
    words = message.split(" ", 18)
    if words[1:14:2] != _WORDS or words[15:17:2] != ["comm"] or not words[0].endswith(":"):
        return None
    try:
        return tuple.__new__(
            events.Collective,
            (
                words[0][:-1],
                int(words[2], 16),
                0 if words[4] == "(nil)" else int(words[4], 16),
                0 if words[6] == "(nil)" else int(words[6], 16),
                int(words[8]),
                int(words[10]),
                int(words[14]),
                words[16],
                int(words[17][8:-1]) if len(words) > 17 and words[17].startswith("[nranks=") else None,
            ),
        )
    except ValueError:  # a cut or garbled number
        return None


def version(line: str) -> events.Version | None:
    """`NCCL version …`, which stands alone on its line or in an INFO message."""
    found = _VERSION.match(line)
    return found and events.Version(found["version"], found["cuda"] or "")


def _channel(message: str) -> Meaning | None:
    found = _CHANNEL.match(message)
    if found is None:
        return _ring(message)
    return events.Channel(
        channel=int(found["channel"]),
        connection=None if found["connection"] is None else int(found["connection"]),
        from_rank=int(found["a"]),
        from_device=found["da"],
        to_rank=int(found["b"]),
        to_device=found["db"],
        direction=found["direction"] or "",
        transport=transport(found["via"]),
        via=found["via"],
    )


def _ring(message: str) -> Meaning | None:
    found = _RING.match(message)
    if found is None:
        return None
    order = tuple(int(rank) for rank in found["order"].split())
    return events.Ring(int(found["channel"]), int(found["channels"]), order)


def _trees(message: str) -> Meaning | None:
    found = _TREE.findall(message) if message.startswith("Trees ") else []
    return events.Trees({int(channel): tree for channel, tree in found}) if found else None


def _init(message: str) -> Meaning | None:
    found = _INIT.match(message)
    if found is None:
        return _shape(message)
    return events.Init(
        phase=found["phase"].lower(),
        comm=found["comm"],
        rank=int(found["rank"]),
        ranks=int(found["ranks"]),
        device=int(found["device"]),
        nvml_device=None if found["nvml"] is None else int(found["nvml"]),
        bus_id=found["bus"],
        comm_id=found["id"] or "",
    )


def _shape(message: str) -> Meaning | None:
    found = _SHAPE.match(message)
    if found is None:
        return None
    numbers = (int(found[name]) for name in ("rank", "ranks", "nodes", "locals", "local"))
    return events.CommShape(found["comm"], *numbers)


def _timings(message: str) -> Meaning | None:
    found = _TIMINGS.match(message)
    if found is None or (total := _decimal(found["total"])) is None:
        return None
    parts = {name: float(value) for name, value in _PART.findall(found["parts"])}
    return events.InitTimings(int(found["rank"]), int(found["ranks"]), total, parts)


def _split(message: str) -> Meaning | None:
    found = _SPLIT.match(message)
    if found is None:
        return None
    numbers = (int(found[name]) for name in ("rank", "ranks", "color", "key"))
    return events.Split(found["comm"], found["parent"], *numbers)


def _counts(message: str) -> Meaning | None:
    found = _COUNTS.findall(message) if message[:1].isdigit() else []
    if not found:
        return None
    counts = {f"{sort}_per_peer" if per_peer else sort: int(count) for count, sort, per_peer in found}
    return events.ChannelCounts(counts)


def _environment(message: str) -> Meaning | None:
    found = _ENVIRONMENT.match(message)
    return found and events.Environment(found["name"], found["value"])


def _bootstrap(message: str) -> Meaning | None:
    found = _BOOTSTRAP.match(message)
    return found and events.Bootstrap(found["interface"], found["address"])


def _network(message: str) -> Meaning | None:
    found = _NETWORK.match(message)
    return found and events.Network(found["network"])


def _devices(message: str) -> Meaning | None:
    found = _DEVICES.match(message)
    return found and events.NetDevices(found["network"], tuple(_DEVICE.findall(found["devices"] or "")))


def _driver(message: str) -> Meaning | None:
    found = _DRIVER.match(message)
    return found and events.Driver(int(found["version"]))


def _pattern(message: str) -> Meaning | None:
    found = _PATTERN.match(message)
    if found is None:
        return None
    intra, inter = _decimal(found["intra"]), _decimal(found["inter"])
    if intra is None or inter is None:
        return None
    number, nic, channels = (int(found[name]) for name in ("pattern", "nic", "channels"))
    return events.Pattern(number, nic, channels, intra, inter, found["link"])


def _affinity(message: str) -> Meaning | None:
    found = _AFFINITY.match(message)
    return found and events.Affinity(int(found["gpu"]), found["mask"])


def _connected(message: str) -> Meaning | None:
    found = _CONNECTED.match(message)
    return found and events.Connected(found["pattern"].strip())


def _unwind(message: str) -> Meaning | None:
    found = _UNWIND.match(message)
    return found and events.Unwind(found["where"], int(found["result"]))


def _ras(message: str) -> Meaning | None:
    found = _RAS.match(message)
    return found and events.RasListening(found["address"])


def _plugin(message: str) -> Meaning | None:
    return events.Plugin(message) if _PLUGIN.match(message) else None


def _algorithm(message: str) -> Meaning | None:
    found = _ALGORITHM.match(message)
    if found is None:
        return None
    channels = None if found["low"] is None else (int(found["low"]), int(found["high"]))
    return events.Algorithm(found["op"], int(found["size"]), found["algorithm"], found["protocol"], channels)


def _decimal(text: str) -> float | None:
    """None for what only looks like a number: a cut line may end in `1.2.`"""
    try:
        return float(text)
    except ValueError:
        return None


_Maker = Callable[[str], Meaning | None]
# The makers, found by the first letters where these suffice. The others are tried in this order, each only on messages
# that hold its words: looking for words costs a tenth of trying an expression.
_BY_START: dict[str, _Maker] = {"Cha": _channel, "Tre": _trees, "Con": _connected, "Pat": _pattern, "cud": _driver}
_REST: tuple[tuple[str, _Maker], ...] = (
    (": opCount ", collective),
    (" -> Algo ", _algorithm),
    ("comm ", _init),
    ("Init timings", _timings),
    ("bootstrapSplit", _split),
    (" channels", _counts),
    (" set ", _environment),
    ("Bootstrap", _bootstrap),
    ("Using network", _network),
    ("NET/", _devices),
    ("lugin", _plugin),
    (" -> ", _unwind),
    ("RAS client", _ras),
    ("Setting affinity", _affinity),
    ("NCCL version", version),
)

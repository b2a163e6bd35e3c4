"""PyTorch's flight recorder: the last collectives of one rank, from a dump file (pickle, or JSON of newer releases)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sidecar.collectors.nccl import plainpickle
from sidecar.collectors.nccl.events import Body, Event
from sidecar.errors import SpikewatchError

MAX_BYTES = 64 << 20  # 2000 entries with their stacks are about 2 MB


class DumpRefused(SpikewatchError):
    """The file is no dump of the flight recorder."""


@dataclass(frozen=True, slots=True)
class Recording(Body):
    """What stands over a dump."""

    kind: ClassVar[str] = "flight_recorder"
    version: str
    entries: int
    library_version: str


@dataclass(frozen=True, slots=True)
class Group(Body):
    """A process group and its ranks."""

    kind: ClassVar[str] = "flight_group"
    group: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupStatus(Body):
    """How far this rank has come in a group; -1 where the recorder does not know."""

    kind: ClassVar[str] = "flight_status"
    group: str
    last_enqueued: int
    last_started: int
    last_completed: int


@dataclass(frozen=True, slots=True)
class Entry(Body):
    """One collective, or one send or receive.

    `seconds` is its time on the GPU, recorded only under TORCH_NCCL_ENABLE_TIMING=1. The times of discovery are when
    the watchdog looked, always late: they tell since when something is stuck, not how long it took.
    """

    kind: ClassVar[str] = "flight_entry"
    record: int
    group: str
    description: str
    op: str
    sequence: int
    point_to_point: bool
    state: str  # scheduled, started, completed
    retired: bool
    created_ns: int
    started_discovered_ns: int | None
    completed_discovered_ns: int | None
    seconds: float | None
    timeout_seconds: float | None
    input_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_sizes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[str, ...]
    frame: str  # where the program called it: the first frame outside PyTorch, as file:line function


def parse(data: bytes) -> Iterator[Event]:
    """The events of a dump; `line` numbers them from 1. Raises DumpRefused."""
    if len(data) > MAX_BYTES:
        raise DumpRefused(f"{len(data)} bytes: a dump is smaller than {MAX_BYTES}")
    for number, body in enumerate(_bodies(_load(data)), 1):
        yield Event(number, None, body)


def _load(data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data) if data[:1] == b"{" else plainpickle.loads(data)
    except (ValueError, RecursionError, plainpickle.PickleRefused) as e:
        raise DumpRefused(f"not a flight recorder dump: {e}") from None
    if not isinstance(found, dict) or not isinstance(found.get("entries"), list):
        raise DumpRefused("not a flight recorder dump: it has no list of entries")
    return found


def _bodies(dump: Mapping[str, Any]) -> Iterator[Body]:
    entries = [entry for entry in dump["entries"] if isinstance(entry, dict)]
    yield Recording(_text(dump.get("version")), len(entries), _text(dump.get("comm_lib_version")))
    for name, group in _mapping(dump.get("pg_config")).items():
        known = _mapping(group)
        ranks = tuple(int(rank) for rank in re.findall(r"\d{1,9}", _text(known.get("ranks"))))
        yield Group(_text(known.get("name")) or _text(name), _text(known.get("desc")), ranks)
    for name, status in _mapping(dump.get("pg_status")).items():
        known = _mapping(status)
        last = (_whole(known.get(f"last_{what}_collective")) for what in ("enqueued", "started", "completed"))
        yield GroupStatus(_text(name), *(-1 if number is None else number for number in last))
    yield from (_entry(entry) for entry in entries)


def _entry(entry: Mapping[str, Any]) -> Entry:
    group = [_text(part) for part in _items(entry.get("process_group"))]
    point_to_point = entry.get("is_p2p") is True
    duration, timeout = _decimal(entry.get("duration_ms")), _decimal(entry.get("timeout_ms"))
    return Entry(
        record=_whole(entry.get("record_id")) or 0,
        group=group[0] if group else _text(entry.get("pg_id")),
        description=group[1] if len(group) > 1 else "",
        op=_text(entry.get("profiling_name")),
        sequence=_whole(entry.get("p2p_seq_id" if point_to_point else "collective_seq_id")) or 0,
        point_to_point=point_to_point,
        state=_text(entry.get("state")),
        retired=entry.get("retired") is True,
        created_ns=_whole(entry.get("time_created_ns")) or 0,
        started_discovered_ns=_whole(entry.get("time_discovered_started_ns")) or None,
        completed_discovered_ns=_whole(entry.get("time_discovered_completed_ns")) or None,
        seconds=None if duration is None else duration / 1000,
        timeout_seconds=None if timeout is None else timeout / 1000,
        input_sizes=_shapes(entry.get("input_sizes")),
        input_dtypes=tuple(_text(name) for name in _items(entry.get("input_dtypes"))),
        output_sizes=_shapes(entry.get("output_sizes")),
        output_dtypes=tuple(_text(name) for name in _items(entry.get("output_dtypes"))),
        frame=_frame(entry.get("frames")),
    )


def _frame(frames: Any) -> str:
    for frame in _items(frames):
        known = _mapping(frame)
        file = _text(known.get("filename"))
        if file.endswith(".py") and "/torch/" not in file:
            return f"{file}:{_whole(known.get('line')) or 0} {_text(known.get('name'))}"
    return ""


def _shapes(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(n for n in _items(shape) if isinstance(n, int)) for shape in _items(value))


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _whole(value: Any) -> int | None:
    """The JSON form writes some numbers as texts."""
    if isinstance(value, str) and len(value) < 20 and value.removeprefix("-").isascii():
        return int(value) if value.removeprefix("-").isdigit() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _decimal(value: Any) -> float | None:
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15 else None
    )

"""The wire between a trainer and its sidecar: one JSON object a SEQPACKET packet, at most 64 KiB, both ways.

The trainer speaks first: `hello`, with the ring's descriptor beside it. The sidecar answers `welcome` or `nack`.
Then the sidecar sends `set`, `renew`, `keep`, `revert`, `get`, `dump`; the trainer answers each with `change`, `state`,
`dumped` or `nack`, and sends `change` by itself when a change is applied, refused or reverted. A `change` always
carries all that is known of it, so a lost or repeated packet does no harm.

    hello    protocol, protocol_min, job, run_id, rank, local_rank, world, epoch, framework, backend, step,
             knobs: [{name, type, unit, minimum, maximum, scope, value}], unavailable: {knob: reason}, changes: […],
             about: {name: text}, optional, also in `state`: what is known of the run in words
    welcome  protocol
    set      change_id, values: {knob: value}, expect: {knob: value}, lease_ms, ranks (optional: how many get it)
    renew    change_id, lease_ms
    keep     change_id
    revert   change_id
    get      (no fields); answered by `state`: step, knobs, unavailable, changes
    change   change: {id, state, scope and ranks (optional), by, reason, detail, step, found, values, lease_ms},
             knobs: {knob: value}, answer: bool
    nack     reason, detail, change_id or ""
    dump     what (flight_recorder), dump_id; answered by `dumped`: what, dump_id, size, detail, beside it a sealed
             memory file of that many bytes, or no file and the reason in `detail`
    worker   instead of `hello`, by a declared serving worker: protocol, protocol_min, name, run_id; then only `welcome`
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

VERSION = 1
OLDEST = max(1, VERSION - 2)  # a trainer's image is older than its sidecar's, or the other way round
MAX_PACKET = 64 * 1024
MAX_PATH = 107  # sun_path holds 108 bytes with the ending zero
DEFAULT_SOCKET = "/run/spikewatch/trainer.sock"

MAX_TEXT = 256
MAX_ENTRIES = 64
MIN_LEASE_MS, MAX_LEASE_MS = 100, 600_000

REASONS = frozenset(
    {
        "bad_message",  # not an object of a known type with fields of the right types and sizes
        "unsupported_version",
        "unknown_knob",
        "out_of_bounds",
        "conflict",  # the values found are not the ones expected, or the id is taken by another change
        "unsupported",  # this loader cannot be changed without risk; `detail` says why
        "busy",  # another change is not verified yet
        "no_room",  # the batches in flight would not fit the shared memory that is free
        "lease_expired",
        "unknown_change",
        "not_leader",  # what all ranks share is changed at rank 0
        "late",  # of all ranks: the step it was for came before everybody had answered
        "timeout",  # of all ranks: one did not answer in time
        "withdrawn",  # of all ranks: taken back before it was decided
        "failed",  # it was tried and the trainer's own library raised
    }
)


class Malformed(ValueError):
    """A packet we refuse; the text says what is wrong with it and is safe to log."""


Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def _whole(low: int, high: int) -> Check:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and low <= v <= high


def _number(value: Any) -> bool:
    # The bound keeps whole numbers inside what a float64 holds exactly.
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 2**53
    )


def _knob_value(value: Any) -> bool:
    return isinstance(value, bool) or _text(value) or _number(value)


def _mapping(check: Check) -> Check:
    return lambda v: (
        isinstance(v, dict) and len(v) <= MAX_ENTRIES and all(_text(k) and check(item) for k, item in v.items())
    )


def _list(check: Check) -> Check:
    return lambda v: isinstance(v, list) and len(v) <= MAX_ENTRIES and all(check(item) for item in v)


def _object(fields: Mapping[str, Check], optional: Mapping[str, Check] = MappingProxyType({})) -> Check:
    return lambda v: (
        isinstance(v, dict)
        and all(name in v and check(v[name]) for name, check in fields.items())
        and all(check(v[name]) for name, check in optional.items() if name in v)
    )


_SCOPES = ("local", "all_rank")
_COUNT = _whole(0, 2**53)
_RANK = _whole(0, 1_000_000)
_LEASE = _whole(MIN_LEASE_MS, MAX_LEASE_MS)
_VALUES = _mapping(_knob_value)


def _or_none(check: Check) -> Check:
    return lambda v: v is None or check(v)


_CHANGE = _object(
    {
        "id": _text,
        "state": lambda v: v in ("pending", "applied", "refused", "reverted", "kept"),
        "by": lambda v: v in ("", "order", "lease"),
        "reason": _text,
        "detail": _text,
        "step": _whole(-1, 2**53),
        "found": _VALUES,
        "values": _VALUES,
        "lease_ms": _COUNT,
    },
    {"scope": lambda v: v in _SCOPES, "ranks": _RANK},
)
_KNOB = _object(
    {
        "name": _text,
        "type": lambda v: v in ("int", "float", "str", "bool"),
        "unit": _text,
        "minimum": _or_none(_number),
        "maximum": _or_none(_number),
        "scope": lambda v: v in _SCOPES,
        "value": _knob_value,
    }
)

MESSAGES: Mapping[str, Mapping[str, Check]] = {
    "hello": {
        "protocol": _COUNT,
        "protocol_min": _COUNT,
        "job": _text,
        "run_id": lambda v: _text(v) and bool(v),
        "rank": _RANK,
        "local_rank": _RANK,
        "world": _whole(1, 1_000_000),
        "epoch": _text,
        "framework": _text,
        "backend": _text,
        "step": _COUNT,
        "knobs": _list(_KNOB),
        "unavailable": _mapping(_text),
        "changes": _list(_CHANGE),
    },
    "welcome": {"protocol": _COUNT},
    "set": {
        "change_id": lambda v: _text(v) and bool(v),
        "values": lambda v: _VALUES(v) and bool(v),
        "expect": _VALUES,
        "lease_ms": _LEASE,
    },
    "renew": {"change_id": _text, "lease_ms": _LEASE},
    "keep": {"change_id": _text},
    "revert": {"change_id": _text},
    "get": {},
    "state": {"step": _COUNT, "knobs": _list(_KNOB), "unavailable": _mapping(_text), "changes": _list(_CHANGE)},
    "change": {"change": _CHANGE, "knobs": _VALUES, "answer": lambda v: isinstance(v, bool)},
    "dump": {"what": _text, "dump_id": _text},
    "dumped": {"what": _text, "dump_id": _text, "size": _COUNT, "detail": _text},
    "worker": {
        "protocol": _COUNT,
        "protocol_min": _COUNT,
        "name": lambda v: _text(v) and bool(v),
        "run_id": lambda v: _text(v) and bool(v),
    },
    "nack": {"reason": _text, "detail": _text, "change_id": _text},
}


OPTIONAL: Mapping[str, Mapping[str, Check]] = {
    "set": {"ranks": _RANK},
    "hello": {"about": _mapping(_text)},
    "state": {"about": _mapping(_text)},
}
"""Fields that a peer may leave out; when they come they are checked."""


def encode(message: Mapping[str, Any]) -> bytes:
    """One packet. Raises Malformed when it would not fit."""
    data = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(data) > MAX_PACKET:
        raise Malformed(f"a {message.get('type')} of {len(data)} bytes does not fit {MAX_PACKET}")
    return data


def decode(data: bytes) -> dict[str, Any]:
    """A checked message. Fields nobody knows are let through (a newer peer may send them).

    Raises Malformed for anything that is not an object of a known `type` with every field of that type.
    """
    if len(data) > MAX_PACKET:
        raise Malformed(f"larger than {MAX_PACKET} bytes")
    try:
        message = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {type(error).__name__}") from None
    if not isinstance(message, dict):
        raise Malformed("not a JSON object")
    kind = message.get("type")
    fields = MESSAGES.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise Malformed("unknown type")
    for name, check in fields.items():
        if name not in message:
            raise Malformed(f"{kind}: {name} is missing")
        if not check(message[name]):
            raise Malformed(f"{kind}: {name} is not acceptable")
    for name, check in OPTIONAL.get(message["type"], {}).items():
        if name in message and not check(message[name]):
            raise Malformed(f"{kind}: {name} is not acceptable")
    return message


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def agree(newest: int, oldest: int) -> int | None:
    """The version to speak with a peer that speaks `oldest` to `newest`; None when there is none."""
    version = min(newest, VERSION)
    return version if version >= max(oldest, OLDEST) else None


def nack(reason: str, detail: str = "", change_id: str = "") -> dict[str, Any]:
    """A refusal; `reason` is one of `REASONS`."""
    return {"type": "nack", "reason": reason, "detail": detail[:MAX_TEXT], "change_id": change_id[:MAX_TEXT]}

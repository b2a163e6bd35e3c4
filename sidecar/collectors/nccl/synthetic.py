"""Two lines that look like NCCL's and are not: no NCCL prints them. Demonstrations do, so they are read, and say so.

No version has a duration in its log, nor a warning about a GPU that is late; their events are of kinds of their own
(`synthetic_…`), and what is measured on real jobs never comes from here.
"""

from __future__ import annotations

import re

from sidecar.collectors.nccl.events import Body, SyntheticCollective, SyntheticTimeout

_SPAN = r"(\d{1,15}(?:\.\d{1,15})?) ?(ms|us|s)"
_COLLECTIVE = re.compile(
    r"\[(?P<device>\d+)\] NCCL INFO (?P<op>\w+): (?P<rest>op=\w+,.*\btime=\d.*)$",
)
_FIELD = re.compile(r"\b(op|dtype|count)=(\w+)")
_TIME = re.compile(r"\b(time|wait|compute|comm)=" + _SPAN)
_TIMEOUT = re.compile(
    r"\[(?P<device>\d+)\] NCCL WARN Timed out waiting for GPU (?P<late>\d+) to signal completion "
    r"\(wait > (?P<limit>\d{1,15}(?:\.\d{1,15})?) ?(?P<unit>ms|us|s)\)"
)
_EXPONENT = {"s": "", "ms": "e-3", "us": "e-6"}  # read as part of the number, so that 128.4ms is 0.1284 to the last bit


def meaning(line: str) -> Body | None:
    """None for anything but those two lines."""
    late = _TIMEOUT.search(line)
    if late is not None:
        limit = float(late["limit"] + _EXPONENT[late["unit"]])
        return SyntheticTimeout(int(late["device"]), int(late["late"]), limit)
    found = _COLLECTIVE.search(line)
    if found is None:
        return None
    words = dict(_FIELD.findall(found["rest"]))
    times = {name: float(value + _EXPONENT[unit]) for name, value, unit in _TIME.findall(found["rest"])}
    if "time" not in times:
        return None
    count = words.get("count", "")
    return SyntheticCollective(
        device=int(found["device"]),
        op=found["op"],
        reduction=words.get("op", ""),
        datatype=words.get("dtype", ""),
        count=int(count) if count.isascii() and count.isdigit() else None,
        seconds=times["time"],
        wait_seconds=times.get("wait"),
        compute_seconds=times.get("compute"),
        communication_seconds=times.get("comm"),
    )

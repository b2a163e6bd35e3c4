"""The notation of rule unit tests: `http_requests{code="500"}` and `0+10x5 _ stale 7x3`."""

from __future__ import annotations

import re

from sidecar import promql
from sidecar.errors import QueryError
from sidecar.model import STALE, Labels, labels_of
from sidecar.promql.plan import Op, Selector

MAX_SAMPLES = 5_000_000
"""Of one series: more is a slip of the pen, and would only fill the memory."""

_NUMBER = r"(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[iI][nN][fF]|[nN][aA][nN])"
_GAP = re.compile(r"_(?:x(?P<times>\d+))?$")
_VALUE = re.compile(rf"(?P<start>[+-]?{_NUMBER})(?:(?P<step>[+-]{_NUMBER})?x(?P<times>\d+))?$")
_SENTINEL = "__sentinel__"


def parse_metric(text: str) -> Labels:
    """A series' labels with its name as `__name__`; `{}` has none. Raises QueryError."""
    body = text.strip()
    # A selector wants at least one matcher that means something; a series may have no label at all.
    if body.endswith("}"):
        inside = body[:-1].rstrip()
        comma = "" if inside.endswith(("{", ",")) else ","
        selector = f'{inside}{comma}{_SENTINEL}="1"}}'
    else:
        selector = f'{body}{{{_SENTINEL}="1"}}'
    try:
        node = promql.compile([selector]).node(selector)
    except QueryError as e:
        raise QueryError(f"no series: {e}", text) from None
    if not isinstance(node, Selector) or node.offset_ms or node.at is not None:
        raise QueryError("a series is a name and labels, nothing else", text)
    labels = {"__name__": node.metric}
    for matcher in node.matchers:
        if matcher.op is not Op.EQUAL:
            raise QueryError(f"a series gives its labels by =, not {matcher.op.value}", text)
        labels[matcher.name] = matcher.value
    labels.pop(_SENTINEL)
    return labels_of(labels)


def parse_values(text: str) -> list[float | None]:
    """One value a slot, None where there is no sample. Raises QueryError."""
    if "{{" in text:
        raise QueryError("native histograms are not supported", text, text.index("{{"))
    values: list[float | None] = []
    for piece in re.finditer(r"\S+", text):
        values += _item(piece.group(), text, piece.start(), MAX_SAMPLES - len(values))
    return values


def _item(item: str, text: str, offset: int, room: int) -> list[float | None]:
    if item == "stale":
        return [STALE]
    gap, value = _GAP.match(item), _VALUE.match(item)
    match = gap or value
    if match is None:
        raise QueryError(f"no series value: {item!r} (write like 1, 0+10x5, 7x3, _, _x3, stale)", text, offset)
    times = int(match["times"] or 0)
    if times >= room:
        raise QueryError(f"more than {MAX_SAMPLES} samples in one series", text, offset)
    if value is None:
        return [None] * (times if gap and gap["times"] else 1)
    # Added up one by one, as Prometheus does: 0.1 ten times is not 1
    current, step = float(value["start"]), float(value["step"] or 0)
    out: list[float | None] = [current]
    for _ in range(times):
        current += step
        out.append(current)
    return out

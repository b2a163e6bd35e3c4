"""What there is to query: series, label names, label values, and what metrics mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from sidecar.api.parameters import EARLIEST_MS, LATEST_MS, Parameters
from sidecar.api.queries import compiled
from sidecar.api.turns import Pause
from sidecar.errors import RequestError
from sidecar.model import JSON, Labels, MetricInfo
from sidecar.promql.plan import Selector
from sidecar.promql.regex import predicate
from sidecar.promql.selection import Part, Selection
from sidecar.store import Store, cells
from sidecar.store.cells import Bools

_ROWS = 64  # how much of a block is looked at between two pauses

EVERYTHING = Selector("", ())


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which series are asked for: those that any selector picks and that have a sample in [start, end]."""

    selectors: tuple[Selector, ...]
    start_ms: int
    end_ms: int
    limit: int

    @classmethod
    def read(cls, parameters: Parameters, name_parameter: bool = False) -> Wanted:
        """Reads `match[]`, `start`, `end` and `limit`. Raises RequestError."""
        limit = parameters.limit()
        start, end = parameters.time("start", EARLIEST_MS), parameters.time("end", LATEST_MS)
        return cls(selectors(parameters, name_parameter), start, end, limit)


def selectors(parameters: Parameters, name_parameter: bool = False) -> tuple[Selector, ...]:
    """`match[]` as selectors. Raises RequestError, which names the parameter where Prometheus does."""
    return tuple(_selector(text, "match[]" if name_parameter else "") for text in parameters.all("match[]"))


def _selector(text: str, parameter: str) -> Selector:
    prefix = f'invalid parameter "{parameter}": ' if parameter else ""
    try:
        node = compiled(text, parameter).node(text)
    except RequestError as e:
        if "at least one non-empty matcher" in str(e):
            raise RequestError(f"{prefix}match[] must contain at least one non-empty matcher") from None
        raise
    if not isinstance(node, Selector) or node.offset_ms or node.at is not None:
        raise RequestError(f'{prefix}1:1: parse error: not a plain series selector like up{{job="x"}}')
    return node


def matches(selector: Selector, labels: Labels) -> bool:
    """Whether a selector picks a label set."""
    values = dict(labels)
    if selector.metric and values.get("__name__", "") != selector.metric:
        return False
    return all(predicate(matcher)(values.get(matcher.name, "")) for matcher in selector.matchers)


def series(store: Store, wanted: Wanted, pause: Pause) -> list[Labels]:
    """Their label sets, `limit` at most and one more: in order of first sight, or sorted where several selectors are.

    Raises RequestError where no selector is given.
    """
    if not wanted.selectors:
        raise RequestError("no match[] parameter provided")
    several = len(wanted.selectors) > 1
    found: dict[Labels, None] = {}
    for labels in _found(store, wanted, pause):
        found[labels] = None
        if not several and 0 < wanted.limit < len(found):
            break
    return sorted(found) if several else list(found)


def label_names(store: Store, wanted: Wanted, pause: Pause) -> list[str]:
    """The names of their labels, sorted."""
    return sorted({name for labels in _found(store, wanted, pause) for name, _ in labels})


def label_values(store: Store, name: str, wanted: Wanted, pause: Pause) -> list[str]:
    """The values that one label has among them, sorted."""
    return sorted({value for labels in _found(store, wanted, pause) for key, value in labels if key == name})


def _found(store: Store, wanted: Wanted, pause: Pause) -> Iterator[Labels]:
    for selector in wanted.selectors or (EVERYTHING,):
        for metric in [selector.metric] if selector.metric else list(store.metrics()):
            # a selection for each metric, so that one over all of them can pause in between
            selection = Selection(store, metric, selector.matchers)
            selection.refresh()
            for part in selection.parts:
                alive = _alive(part, wanted.start_ms, wanted.end_ms, pause)
                yield from [labels for labels, there in zip(part.labels, alive.tolist(), strict=True) if there]
            pause()


def _alive(part: Part, start_ms: int, end_ms: int, pause: Pause) -> Bools:
    """Which series of a part have a sample in [start, end]; looks from the newest on, where most of them have one."""
    alive = np.zeros(len(part.labels), bool)
    high = part.block.upto(end_ms)
    while not alive.all():
        pause()
        low = max(high - _ROWS, part.block.upto(start_ms - 1), part.block.first)
        if low >= high:
            break
        alive |= ~cells.absent(np.ascontiguousarray(part.rows(low, high))).all(axis=0)
        high = low
    return alive


def metadata(catalogue: Iterable[MetricInfo], parameters: Parameters) -> dict[str, list[JSON]]:
    """`/api/v1/metadata`. Raises RequestError."""
    limit, each = (_whole(parameters, name) for name in ("limit", "limit_per_metric"))
    metric = parameters.one("metric")
    found = {
        info.name: [{"type": info.kind, "unit": info.unit, "help": info.help}][: each if each > 0 else None]
        for info in sorted(catalogue, key=lambda info: info.name)
        if metric in ("", info.name)
    }
    return dict(list(found.items())[: limit if limit >= 0 else None])


def _whole(parameters: Parameters, name: str) -> int:
    text = parameters.one(name) or "-1"
    try:
        return int(text)
    except ValueError:
        raise RequestError(f"{name} must be a number") from None

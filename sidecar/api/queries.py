"""Instant and range queries: parameters in, the `data` of Prometheus's answer out, within limits.

Always read from the ring: the rules' evaluator remembers where its windows stand and must not be asked about other
times.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sidecar import promql
from sidecar.api import prometheus_json as wire
from sidecar.api.parameters import Parameters
from sidecar.api.turns import Pause
from sidecar.errors import QueryError, RequestError
from sidecar.model import Labels
from sidecar.promql.plan import Node, Selector, kind, walk
from sidecar.store import Store

MAX_STEPS = 11_000  # of a range query, as in Prometheus
# What is done without a pause is bounded by how long a text is, how many regexes it has and how many matchers a series
# is tried against: a tenth of a second each, at most.
MAX_TEXT, MAX_REGEXES, MAX_MATCHERS = 32_768, 200, 64
_TRUNCATED = "results truncated due to limit"
_TOO_MANY = "query processing would load too many samples into memory in query execution"
_KINDS = {"matrix": "range vector", "vector": "instant vector"}


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one query may cost."""

    timeout_ms: float = 10_000  # by the wall clock, waiting for its turns included
    max_samples: int = 1_000_000  # held in memory at a time while it is worked out
    max_points: int = 500_000  # of the answer; each takes 16 bytes until it is sent


@dataclass(frozen=True, slots=True)
class Answer:
    """The `data` of a body in pieces, and the warnings beside it."""

    data: Iterator[str]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Times:
    """A range query's first and last step and the distance of two, in milliseconds."""

    start: int
    end: int
    step: int


@dataclass(frozen=True, slots=True)
class Query:
    """A query with everything that was asked for. `deadline` is on the monotonic clock."""

    text: str
    at: int | Times
    limit: int
    lookback_ms: int
    deadline: float


@dataclass(slots=True)
class _Points:
    times: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


def instant(parameters: Parameters, now_ms: int, bounds: Bounds) -> Query:
    """Reads `/api/v1/query`. Raises RequestError."""
    limit = parameters.limit()
    at = parameters.time("time", now_ms)
    return _query(parameters, at, limit, bounds)


def ranged(parameters: Parameters, bounds: Bounds) -> Query:
    """Reads `/api/v1/query_range`. Raises RequestError."""
    limit = parameters.limit()
    start, end = parameters.time("start"), parameters.time("end")
    if end < start:
        raise RequestError('invalid parameter "end": end timestamp must not be before start time')
    step = parameters.duration("step")
    if not step > 0:
        raise RequestError(
            'invalid parameter "step": zero or negative query resolution step widths are not accepted. '
            "Try a positive integer"
        )
    if (end - start) // step > MAX_STEPS:
        raise RequestError(
            f"exceeded maximum resolution of {MAX_STEPS:,} points per timeseries. "
            "Try decreasing the query resolution (?step=XX)"
        )
    return _query(parameters, Times(start, end, max(1, int(step))), limit, bounds)


def _query(parameters: Parameters, at: int | Times, limit: int, bounds: Bounds) -> Query:
    timeout_ms = bounds.timeout_ms
    if parameters.one("timeout"):
        timeout_ms = min(timeout_ms, parameters.duration("timeout"))
    lookback_ms = promql.LOOKBACK_MS
    if parameters.one("lookback_delta"):
        try:
            lookback_ms = int(parameters.duration("lookback_delta")) or lookback_ms
        except RequestError as e:
            raise RequestError(f"error parsing lookback delta duration: {str(e).partition(': ')[2]}") from None
    return Query(parameters.one("query"), at, limit, lookback_ms, time.monotonic() + timeout_ms / 1000)


def answer(query: Query, store: Store, interval_ms: int, bounds: Bounds, pause: Pause) -> Answer:
    """Works a query out, pausing often. Raises RequestError."""
    program, node = _compiled(query)
    late = _Late(query.deadline, pause)
    if late():
        raise RequestError("query timed out in query execution", 503, "timeout")
    # the samples of a range vector are the answer
    most = bounds.max_points if kind(node) == "matrix" else bounds.max_samples
    limits = promql.Limits(most, late)
    try:
        evaluator = program.bind(store, "naive", interval_ms, query.lookback_ms, limits)
        if isinstance(query.at, Times):
            return _over(evaluator, query, query.at, bounds.max_points, late)
        return _at(evaluator, query, query.at, kind(node))
    except QueryError as e:
        if late.happened:
            raise RequestError("query timed out in expression evaluation", 503, "timeout") from None
        raise RequestError(str(e), 422, "execution") from None


class _Late:
    """Whether the deadline has passed; asking is also a pause, for the engine asks wherever it can be left alone."""

    def __init__(self, deadline: float, pause: Pause) -> None:
        self._deadline, self._pause = deadline, pause
        self.happened = False

    def __call__(self) -> bool:
        self._pause()
        self.happened = time.monotonic() >= self._deadline
        return self.happened


def _compiled(query: Query) -> tuple[promql.Program, Node]:
    program = compiled(query.text, "query")
    node = program.node(query.text)
    if isinstance(query.at, Times) and kind(node) in ("matrix", "string"):
        raise RequestError(
            f'invalid parameter "query": invalid expression type "{_KINDS.get(kind(node), kind(node))}" '
            "for range query, must be Scalar or instant Vector"
        )
    return program, node


def compiled(text: str, parameter: str = "") -> promql.Program:
    """The expression as a program. Raises RequestError, naming the parameter if one is given."""
    if len(text) > MAX_TEXT or text.count("~") > MAX_REGEXES:
        raise RequestError(f"longer than {MAX_TEXT} characters, or more than {MAX_REGEXES} regexes", 422, "execution")
    try:
        program = promql.compile([text])
    except QueryError as e:
        where = "unknown position"
        if e.offset >= 0:
            before = text[: e.offset]
            where = f"{before.count(chr(10)) + 1}:{e.offset - (before.rfind(chr(10)) + 1) + 1}"
        prefix = f'invalid parameter "{parameter}": ' if parameter else ""
        raise RequestError(f"{prefix}{where}: parse error: {e}") from None
    for node in walk(program.node(text)):
        if isinstance(node, Selector) and len(node.matchers) > MAX_MATCHERS:
            # a series is tried against all of them at once, without a pause
            raise RequestError(f"a selector has more than {MAX_MATCHERS} matchers", 422, "execution")
    return program


def _at(evaluator: promql.Evaluator, query: Query, t_ms: int, result: str) -> Answer:
    if result == "matrix":
        found = [(s.labels, s.times, s.values) for s in evaluator.matrix(query.text, t_ms)]
        return Answer(wire.matrix(found[: query.limit or None]), _truncated(len(found), query.limit))
    value = evaluator.at(query.text, t_ms)
    if isinstance(value, str):
        return Answer(wire.string(t_ms, value))
    if isinstance(value, float):
        return Answer(wire.scalar(t_ms, value))
    elements = list(value)[: query.limit or None]
    return Answer(wire.vector(t_ms, elements), _truncated(len(value), query.limit))


def _over(evaluator: promql.Evaluator, query: Query, times: Times, max_points: int, late: Callable[[], bool]) -> Answer:
    found: dict[Labels, _Points] = {}
    # label sets are mostly the same objects at every step: looked up by identity they need not be hashed again
    known: dict[int, tuple[Labels, _Points]] = {}
    points = 0
    for t_ms, value in evaluator.over(query.text, times.start, times.end, times.step):
        if late():
            raise QueryError("query timed out in expression evaluation")
        elements = [((), value)] if isinstance(value, float) else value
        for labels, number in elements:
            entry = known.get(id(labels))
            if entry is None or entry[0] is not labels:
                entry = known[id(labels)] = (labels, found.setdefault(labels, _Points()))
            entry[1].times.append(t_ms)
            entry[1].values.append(number)
            points += 1
        if points > max_points:
            raise RequestError(_TOO_MANY, 422, "execution")
    ordered = sorted(found.items())[: query.limit or None]
    return Answer(
        wire.matrix((labels, p.times, p.values) for labels, p in ordered), _truncated(len(found), query.limit)
    )


def _truncated(found: int, limit: int) -> tuple[str, ...]:
    return (_TRUNCATED,) if 0 < limit < found else ()

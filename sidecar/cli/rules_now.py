"""Where an alert stands now: its state, and both sides of every comparison in its condition, asked of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sidecar.app.rulepack import AlertInfo
from sidecar.cli.answers import named, number
from sidecar.errors import QueryError, RemoteError, shown_url
from sidecar.history.api import Answer, QueryApi
from sidecar.model import JSON
from sidecar.promql.comparisons import Comparison, comparisons

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Value:
    """One element that an expression gives."""

    series: str
    value: str


@dataclass(frozen=True, slots=True)
class Side:
    """An expression and what it gives now; nothing where there is no such series."""

    expr: str
    op: str  # "" for what is not compared but read
    right: str
    values: tuple[Value, ...]
    silences: bool = False  # the alert is silent where the comparison is true


@dataclass(frozen=True, slots=True)
class Now:
    """`problem` tells why there are no values. `states`: of the alert's elements, e.g. `firing: rank="0"`."""

    url: str
    problem: str = ""
    states: tuple[Value, ...] = ()
    sides: tuple[Side, ...] = ()

    def as_data(self) -> JSON | None:
        """For JSON; None where nobody answered."""
        if self.problem:
            return None
        return {
            "url": self.url,
            "state": [{"alert": s.series, "state": s.value} for s in self.states],
            "values": [
                {
                    "expr": side.expr,
                    "op": side.op,
                    "right": side.right,
                    "values": [{"series": v.series, "value": v.value} for v in side.values],
                }
                for side in self.sides
            ],
        }


def ask(alert: AlertInfo, url: str, headers: Mapping[str, str]) -> Now:
    """Never raises: what cannot be asked is the answer's `problem`."""
    try:
        with QueryApi(url, headers=headers, timeout_s=_TIMEOUT_S) as api:
            found = api.instant(f'ALERTS{{alertname="{alert.rule.name}"}}')
            states = tuple(_state(dict(series.labels)) for series in found.series)
            sides = [side for one in comparisons(alert.rule.expr) for side in _sides(one, api)]
            read = [Side(metric, "", "", _values(api.instant(metric))) for metric in alert.reads]
            return Now(shown_url(url), "", states, (*sides, *read))
    except (RemoteError, QueryError) as e:
        return Now(shown_url(url), str(e))


def _state(labels: dict[str, str]) -> Value:
    state = labels.pop("alertstate", "")
    fixed = ("__name__", "alertname", "signal", "layer", "severity")
    rest = tuple(sorted((name, text) for name, text in labels.items() if name not in fixed))
    return Value(named(rest), state)


def _sides(one: Comparison, api: QueryApi) -> list[Side]:
    found = [Side(one.left, one.op, one.right, _values(api.instant(one.left)), one.silences)]
    if one.limit is None:
        found.append(Side(one.right, "", "", _values(api.instant(one.right))))
    return found


def _values(answer: Answer) -> tuple[Value, ...]:
    return tuple(Value(named(series.labels), number(series.points[0][1])) for series in answer.series)

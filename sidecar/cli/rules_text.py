"""Signals and alerts in words and as JSON: a row each, or everything there is to say about one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from sidecar import durations
from sidecar.app import records
from sidecar.app.rulepack import AlertInfo, RulePack, Signal
from sidecar.cli.answers import terminal
from sidecar.cli.rules_now import Now, Side
from sidecar.model import JSON
from sidecar.plugins import Registry
from sidecar.responses.parameters import Templated
from sidecar.responses.response import Response

EVALUATED = {
    "pod": "in every sidecar",
    "job": "in the sidecar of global rank 0",
    "cluster": "in the cluster's own process",
    "": "wherever the file is loaded",
}
_MOST_VALUES = 8


def rows(signals: Iterable[Signal]) -> list[JSON]:
    """One object each; an alert without a signal stands for itself."""
    return [
        {
            "signal": signal.name or None,
            "layer": signal.layer or None,
            "at": signal.at or None,
            "alerts": list(dict.fromkeys(alert.rule.name for alert in signal.alerts)),
            "thresholds": [t for alert in signal.alerts for t in _thresholds(alert)],
            "metrics": list(signal.metrics),
            "response": _answer(signal.responses),
        }
        for signal in signals
    ]


def _thresholds(alert: AlertInfo) -> list[JSON]:
    return [
        {"alert": alert.rule.name, "value": t.value, "meaning": t.meaning, "origin": t.origin or None}
        for t in alert.thresholds
    ]


def _answer(responses: Sequence[Response]) -> JSON | None:
    """The first that is tried; `then` names the others in their order."""
    if not responses:
        return None
    first, *others = responses
    return {
        "name": first.name,
        "remediation": first.remediation,
        "mode": first.mode.text,
        "then": [other.name for other in others],
    }


def show_rows(found: Sequence[JSON]) -> None:
    """A table."""
    cells = []
    for row in found:
        answer = row["response"]
        told = f"{answer['remediation']} ({answer['mode']})" if answer else ""
        signal = row["signal"] or ""
        cells.append((signal, row["layer"] or "", row["at"] or "", ", ".join(row["alerts"]), told))
    terminal().print(_table(cells, "signal", "layer", "at", "alerts", "response"))


def _table(cells: Iterable[Sequence[str]], *headers: str) -> Table:
    table = Table(*headers, box=None, pad_edge=False, header_style="bold", show_header=bool(headers))
    for row in cells:
        table.add_row(*(Text(text, overflow="fold") for text in row))
    return table


def as_data(alert: AlertInfo, pack: RulePack, registry: Registry, *, whole: bool = False) -> JSON:
    """Everything about one alert; `whole` adds what the catalogue knows of its metrics."""
    rule, annotations = alert.rule, dict(alert.rule.annotation_texts)
    data: JSON = {
        "alert": rule.name,
        "summary": annotations.get("summary", ""),
        "description": annotations.get("description", ""),
        "signal": alert.labels.get("signal"),
        "layer": alert.labels.get("layer"),
        "severity": alert.labels.get("severity"),
        "at": alert.at or None,
        "group": alert.group,
        "file": f"{alert.file}:{rule.at.line}",
        "expr": rule.expr,
        "for": durations.text(rule.for_ms),
        "thresholds": _thresholds(alert),
        "recorded": {name: list(exprs) for name, exprs in pack.recorded_for(alert).items()},
        "metrics": list(alert.metrics),
        "responses": [
            {"name": r.name, "remediation": r.remediation, "mode": r.mode.text, "note": _note(r)}
            for r in alert.responses
        ],
        "runbook": annotations.get("runbook_url"),
    }
    if whole:
        known = {info.name: info for info in records.catalogue(registry)}
        data["catalogue"] = {
            name: {"kind": info.kind, "unit": info.unit, "help": info.help, "source": info.source}
            for name in alert.metrics
            if (info := known.get(name)) is not None
        }
    return data


def _note(response: Response) -> str:
    """The next step by hand, as written: its templates are filled in where there is an alert."""
    params = response.params
    return str(params.raw.get("note", "") if isinstance(params, Templated) else getattr(params, "note", ""))


def show_alert(data: Mapping[str, Any]) -> None:
    """A page about one alert."""
    out = terminal()
    out.print(data["alert"], style="bold", markup=False)
    out.print(data["summary"], markup=False)
    out.print(
        _table(
            [
                ("signal", f"{data['signal'] or 'none'}, {data['layer'] or 'no layer'}, {data['severity'] or 'none'}"),
                ("evaluated", f"{EVALUATED[data['at'] or '']}, group {data['group']}"),
                ("file", data["file"]),
                ("runbook", data["runbook"] or "none"),
            ]
        )
    )
    out.print(f"\nfires when this has held for {data['for']}", style="bold", markup=False)
    out.print(data["expr"], markup=False)
    for name, exprs in data["recorded"].items():
        for expr in exprs:
            out.print(f"\nwhere {name} is", style="bold", markup=False)
            out.print(expr, markup=False)
    if data["thresholds"]:
        out.print("\nthresholds", style="bold")
        cells = [(t["value"], t["origin"] or "", t["meaning"]) for t in data["thresholds"]]
        out.print(_table(cells, "", "whose", "meaning"))
    out.print("\nreads", style="bold")
    known = data.get("catalogue", {})
    out.print(_table([(name, known[name]["help"] if name in known else "") for name in data["metrics"]]))
    if data["responses"]:
        out.print("\nanswered by", style="bold")
        out.print(_table([(r["name"], f"{r['remediation']} ({r['mode']})", r["note"]) for r in data["responses"]]))


def show_now(now: Now) -> None:
    """How things stand, or that nobody knows."""
    out = terminal()
    out.print(f"\nnow, by {now.url}", style="bold", markup=False)
    if now.problem:
        out.print(f"no values: {now.problem}", style="dim", markup=False)
        return
    states = [f"{s.value} {s.series}".rstrip() for s in now.states] or ["inactive"]
    out.print(f"alert: {', '.join(states)}", markup=False)
    cells = [row for side in now.sides for row in _side(side)]
    out.print(_table(cells, "expression", "gives", "for"))


def _side(side: Side) -> list[tuple[str, str, str]]:
    what = side.expr
    limit = f" ({'silent' if side.silences else 'alerts'} {side.op} {side.right})" if side.op else ""
    if not side.values:
        return [(what, f"no data{limit}", "")]
    found = []
    for one in side.values[:_MOST_VALUES]:
        found.append((what, f"{one.value}{limit}", one.series if one.series != what else ""))
        what = ""
    if len(side.values) > _MOST_VALUES:
        found.append(("", f"and {len(side.values) - _MOST_VALUES} more", ""))
    return found

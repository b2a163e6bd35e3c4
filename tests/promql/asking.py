"""Stores filled from text, and answers in PromQL notation."""

from __future__ import annotations

from promtool_cases import Case, metric_labels, values

from sidecar import promql
from sidecar.store import Store


def scene(series: str, interval_s: float = 10, step_s: float = 60) -> Case:
    """Series in promtool's notation, one a line, as something that can fill a store."""
    found = []
    for line in series.strip().splitlines():
        name, _, numbers = line.strip().partition("} ") if "}" in line else line.strip().partition(" ")
        found.append((metric_labels(name + "}" if "}" in line else name), tuple(values(numbers))))
    return Case("", "", 0, int(interval_s * 1000), int(step_s * 1000), tuple(found), ())


def filled(series: str, interval_s: float = 10) -> Store:
    """A store with these series, the first samples at time 0."""
    store = Store(min_keep_ms=10**12, max_slots=10**6)
    scene(series, interval_s).fill(store)
    return store


def shown(labels) -> str:
    """A label set in PromQL notation, `{}` for none."""
    name = dict(labels).get("__name__", "")
    rest = ",".join(f'{k}="{v}"' for k, v in labels if k != "__name__").replace("\\", "\\\\")
    return f"{name}{{{rest}}}" if rest or not name else name


def told(result) -> dict[str, float]:
    """A result by series."""
    if isinstance(result, float):
        return {"{}": result}
    assert not isinstance(result, str), result
    found = {shown(labels): value for labels, value in result}
    assert len(found) == len(result), "an element twice"
    return found


def ask(store: Store, expr: str, t_s: float, face: str = "naive", step_s: float = 60) -> dict[str, float]:
    """The answer to an instant query."""
    return told(promql.compile([expr]).bind(store, face, int(step_s * 1000)).at(expr, int(t_s * 1000)))

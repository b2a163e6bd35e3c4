"""Reads promtool unit-test files for the engine's tests: series in promtool's notation, and expected samples."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import promql_parser
import yaml

from sidecar import durations
from sidecar.model import STALE, Labels, labels_of
from sidecar.store import Store

_REPEATED = re.compile(r"^(.+?)(?:([+-].+?))?x(\d+)$")


@dataclass(frozen=True, slots=True)
class Case:
    """One expression at one time over some series, and what promtool expects."""

    name: str
    expr: str
    t_ms: int
    interval_ms: int
    step_ms: int
    series: tuple[tuple[Labels, tuple[float | None, ...]], ...]
    expected: tuple[tuple[Labels, float], ...]

    def fill(self, store: Store) -> None:
        """Pushes every sample, oldest first."""
        for slot in self.slots():
            self.push(store, slot)

    def slots(self) -> range:
        """The numbers of the sampling instants."""
        return range(max((len(values) for _, values in self.series), default=0))

    def push(self, store: Store, slot: int) -> None:
        """Pushes the samples of one instant."""
        blocks: dict[int, dict[int, float]] = {}
        for labels, values in self.series:
            if slot < len(values) and values[slot] is not None:
                names = dict(labels)
                handle = store.series(names.pop("__name__"), names)
                blocks.setdefault(handle.block, {})[handle.column] = values[slot]
        for block, row in blocks.items():
            store.push(block, slot * self.interval_ms, row)


def cases(path: Path) -> Iterator[Case]:
    """Every promql_expr_test of a file."""
    document = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
    step = durations.parse(document.get("evaluation_interval", "1m"))
    for group in document["tests"]:
        series = tuple(
            (metric_labels(entry["series"]), tuple(values(str(entry["values"]))))
            for entry in group.get("input_series", [])
        )
        for test in group.get("promql_expr_test", []):
            expected = tuple(
                (metric_labels(sample.get("labels", "{}")), float(sample["value"]))
                for sample in test.get("exp_samples") or []
            )
            at = durations.parse(str(test["eval_time"]))
            yield Case(
                f"{path.name}: {test['expr']} @ {test['eval_time']}",
                test["expr"],
                at,
                durations.parse(group["interval"]),
                step,
                series,
                expected,
            )


def metric_labels(text: str) -> Labels:
    """A series in metric notation as labels with `__name__`."""
    if text.replace(" ", "") in ("{}", ""):
        return ()
    selector = promql_parser.parse(text)
    found = {m.name: m.value for m in selector.matchers.matchers}
    if selector.name:
        found["__name__"] = selector.name
    return labels_of(found)


def values(text: str) -> Iterator[float | None]:
    """promtool's sequence notation: `1 2 _ stale 3+1x5 _x3`; None is no sample."""
    for item in text.split():
        if item == "_":
            yield None
        elif item == "stale":
            yield STALE
        elif item.startswith("_x"):
            yield from [None] * int(item[2:])
        elif "x" in item and not item.startswith("0x") and (match := _REPEATED.match(item)):
            start, step = float(match.group(1)), float(match.group(2) or 0)
            value = start
            for _ in range(int(match.group(3)) + 1):
                yield value
                value += step
        else:
            yield float(item)


def differences(case: Case, got: list[tuple[Labels, float]]) -> list[str]:
    """What is wrong with a result, as promtool's fuzzy comparison (one unit in the last place) sees it."""
    have, want = dict(got), dict(case.expected)
    found = [f"missing {labels} {want[labels]}" for labels in want.keys() - have.keys()]
    found += [f"unexpected {labels} {have[labels]}" for labels in have.keys() - want.keys()]
    if len(have) < len(got):
        found.append("an element twice")
    for labels in want.keys() & have.keys():
        if not same(have[labels], want[labels]):
            found.append(f"{labels}: got {have[labels]!r}, expected {want[labels]!r}")
    return found


def same(a: float, b: float) -> bool:
    """Equal, both NaN, or neighbouring floats."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or math.nextafter(a, b) == b

"""`spikewatch check` for rule files: promtool's errors, and what promtool accepts but cannot be meant."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sidecar import durations, promql
from sidecar.alerting.loader import load_rules
from sidecar.alerting.rules import Rule, RuleGroup
from sidecar.errors import ConfigError, Problem
from sidecar.model import MetricInfo
from sidecar.promql.functions import RENAMED
from sidecar.promql.plan import COMPARISONS, Binary, Call, Node, Number, Op, Range, Selector, kind, walk
from sidecar.yamlfile import Document

OURS = ("spikewatch_", "spikewatch:")
"""Prefixes of metrics we know all of: exported by us, and recorded by our rules."""

PER_STEP = "spikewatch_trainer_"
"""Prefix of metrics that move once a training step."""

STEPS = 5
"""A window over them has to hold so many steps, or it sees the steps and not the training."""

# Put on by whoever scrapes or forwards, so a rule may match on them wherever it is evaluated.
_TARGET_LABELS = frozenset({"job", "instance", "cluster", "namespace", "train_job", "pod", "node", "container"})
_COUNTER_FUNCTIONS = frozenset({"rate", "irate", "increase", "resets"})


def check_rules(
    sources: Iterable[Path | Document],
    catalogue: Mapping[str, MetricInfo] | None = None,
    *,
    sampling_ms: int = 1000,
    step_ms: int = 1000,
    recorded: Iterable[str] = (),
) -> list[Problem]:
    """Every finding of every file, errors and warnings.

    `sampling_ms` is how often the metrics get a sample, `step_ms` how long a training step takes; `recorded` names
    what rules of other files record.
    """
    groups: list[RuleGroup] = []
    problems: list[Problem] = []
    for source in sources:
        try:
            loaded = load_rules([source])
        except ConfigError as e:
            problems.extend(e.problems)
        else:
            groups.extend(loaded.groups)
            problems.extend(loaded.warnings)
    known = {*recorded, *(rule.name for group in groups for rule in group.rules if not rule.is_alert)}
    for group in groups:
        for rule in group.rules:
            node = promql.compile([rule.expr]).node(rule.expr)
            for message in _warnings(node, catalogue, known, sampling_ms, step_ms):
                problems.append(_problem(group, rule, message))
    return problems


def _problem(group: RuleGroup, rule: Rule, message: str) -> Problem:
    return Problem(group.file, rule.expr_at.line, rule.expr_at.column, f"{rule.name}: {message}", "warning")


def _warnings(
    root: Node, catalogue: Mapping[str, MetricInfo] | None, recorded: set[str], sampling_ms: int, step_ms: int
) -> Iterator[str]:
    if kind(root) in ("string", "matrix"):
        yield f"the result is a {kind(root)}, neither vector nor scalar: every evaluation will fail"
    said: set[str] = set()
    for node in walk(root):
        for message in (
            *_never(node),
            *_window(node, sampling_ms, step_ms),
            *_renamed(node),
            *_unknown(node, catalogue, recorded),
        ):
            if message not in said:
                said.add(message)
                yield message


def _never(node: Node) -> Iterator[str]:
    """What can never match."""
    if isinstance(node, Binary) and node.op in COMPARISONS and node.op != "!=" and not node.returns_bool:
        for side in (node.left, node.right):
            if isinstance(side, Number) and math.isnan(side.value):
                yield f"{node.op} NaN is never true"
    if isinstance(node, Selector):
        values: dict[str, str] = {}
        for matcher in node.matchers:
            if matcher.op is Op.EQUAL and values.setdefault(matcher.name, matcher.value) != matcher.value:
                yield (
                    f"{node.metric or 'the selector'} can never match: {matcher.name} cannot be "
                    f"{values[matcher.name]!r} and {matcher.value!r}"
                )


def _window(node: Node, sampling_ms: int, step_ms: int) -> Iterator[str]:
    if not isinstance(node, Range):
        return
    by_step = node.selector.metric.startswith(PER_STEP)
    if by_step and STEPS * step_ms > node.range_ms >= 2 * sampling_ms:
        yield (
            f"the window [{durations.text(node.range_ms)}] of {node.selector.metric} is under {STEPS} training steps "
            f"of {durations.text(step_ms)}: it will see single steps, and some of the time none"
        )
    if node.range_ms < 2 * sampling_ms:
        yield (
            f"the window [{durations.text(node.range_ms)}] of {node.selector.metric or 'a selector'} is under two "
            f"sampling intervals of {durations.text(sampling_ms)}: it will mostly hold one sample or none"
        )


def _renamed(node: Node) -> Iterator[str]:
    if isinstance(node, Call) and (name := RENAMED.get(node.name)):
        yield f"{node.name}() is of Prometheus 2: Prometheus 3 calls it {name} and takes it only with a feature flag"


def _unknown(node: Node, catalogue: Mapping[str, MetricInfo] | None, recorded: set[str]) -> Iterator[str]:
    """Names and labels of ours that do not exist; nothing is said about other people's metrics."""
    if catalogue is None:
        return
    if isinstance(node, Selector) and node.metric.startswith(OURS) and node.metric not in recorded:
        info = catalogue.get(node.metric)
        if info is None:
            yield f"no metric is called {node.metric}"
            return
        for matcher in node.matchers:
            if matcher.op is Op.EQUAL and matcher.value and matcher.name not in {*info.labels, *_TARGET_LABELS}:
                yield f"{node.metric} has no label {matcher.name!r} (labels: {', '.join(info.labels) or 'none'})"
    if isinstance(node, Call) and node.name in _COUNTER_FUNCTIONS and isinstance(node.args[0], Range):
        info = catalogue.get(node.args[0].selector.metric)
        if info is not None and info.kind == "gauge":
            yield f"{node.name}() of {info.name}, which is a gauge"

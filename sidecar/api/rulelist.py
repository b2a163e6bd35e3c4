"""`/api/v1/rules`: groups and rules with their health, as in Prometheus, and what their last evaluations gave."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from sidecar import promql
from sidecar.alerting.group import GroupStatus, RuleStatus
from sidecar.alerting.history import Evaluation
from sidecar.api.catalog import matches, selectors
from sidecar.api.parameters import Parameters, quoted
from sidecar.api.prometheus_json import moment
from sidecar.api.replies import alert
from sidecar.errors import RequestError
from sidecar.model import JSON, labels_of
from sidecar.promql.plan import Selector

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_INDENT = re.compile(r"\n *")


class RuleFilter:
    """Which rules are asked for, and how much of them."""

    def __init__(self, parameters: Parameters) -> None:
        """Raises RequestError."""
        self._names, self._groups, self._files = (
            frozenset(parameters.all(f"{what}[]")) for what in ("rule_name", "rule_group", "file")
        )
        self._selectors: tuple[Selector, ...] = selectors(parameters)
        kind = parameters.one("type").lower()
        if kind not in ("", "alert", "record"):
            raise _wrong("type", f"not supported value {quoted(parameters.one('type'))}")
        self._kinds = (kind == "alert",) if kind else (True, False)
        exclude = parameters.one("exclude_alerts") or "false"
        if exclude not in _TRUE | _FALSE:
            reason = f"strconv.ParseBool: parsing {quoted(exclude)}: invalid syntax"
            raise _wrong("exclude_alerts", f"error converting exclude_alerts: {reason}")
        self.with_alerts = exclude in _FALSE

    def wants_group(self, group: GroupStatus) -> bool:
        """By name and file."""
        return (not self._groups or group.group.name in self._groups) and (
            not self._files or group.group.file in self._files
        )

    def wants(self, status: RuleStatus) -> bool:
        """By kind, name and labels."""
        rule = status.rule
        return (
            rule.is_alert in self._kinds
            and (not self._names or rule.name in self._names)
            and (not self._selectors or any(matches(s, rule.label_texts) for s in self._selectors))
        )


class _Page:
    """How many groups are asked for at a time, and after which one to go on."""

    def __init__(self, parameters: Parameters) -> None:
        limit, self._after = parameters.one("group_limit"), parameters.one("group_next_token")
        try:
            self.limit = int(limit or 0)
        except ValueError:
            reason = f"strconv.ParseInt: parsing {quoted(limit)}: invalid syntax"
            raise _wrong("group_limit", f"group_limit needs to be a valid number: {reason}") from None
        if self.limit < 0:
            raise _wrong("group_limit", "group_limit needs to be greater than 0")
        if self._after and not self.limit:
            raise _wrong("group_next_token", "group_limit needs to be present in order to paginate over the groups")

    def rest(self, groups: Sequence[GroupStatus]) -> Sequence[GroupStatus]:
        if not self._after:
            return groups
        for index, group in enumerate(groups):
            if _token(group) == self._after:
                return groups[index + 1 :]
        raise _wrong("group_next_token", f"invalid group_next_token '{self._after}'. were rule groups changed?")


def rule_list(groups: Sequence[GroupStatus], parameters: Parameters) -> JSON:
    """The `data` of the answer. Raises RequestError."""
    wanted, page = RuleFilter(parameters), _Page(parameters)
    shown: list[GroupStatus] = []
    out: list[JSON] = []
    left_over = False
    for group in page.rest(groups):
        rules = [_rule(rule, wanted.with_alerts) for rule in group.rules if wanted.wants(rule)]
        if not rules or not wanted.wants_group(group):
            continue
        if page.limit and len(out) == page.limit:
            left_over = True
            break
        shown.append(group)
        out.append(_group(group, rules))
    return {"groups": out, **({"groupNextToken": _token(shown[-1])} if left_over else {})}


def _group(status: GroupStatus, rules: list[JSON]) -> JSON:
    return {
        "name": status.group.name,
        "file": status.group.file,
        "rules": rules,
        "interval": _plain(status.interval_ms / 1000),
        "limit": status.group.limit,
        "evaluationTime": _plain(status.last_duration_ns / 1e9),
        "lastEvaluation": moment(status.last_slot_ms or None),
    }


def _rule(status: RuleStatus, with_alerts: bool) -> JSON:
    rule, last = status.rule, status.history[-1] if status.history else None
    labels = dict(labels_of(dict(rule.label_texts)))
    out: JSON = {"state": status.state.value} if rule.is_alert else {}
    out |= {"name": rule.name, "query": one_line(promql.canonical(rule.expr))}
    if rule.is_alert:
        out |= {
            "duration": _plain(rule.for_ms / 1000),
            "keepFiringFor": _plain(rule.keep_firing_for_ms / 1000),
            "labels": labels,
            "annotations": dict(rule.annotation_texts),
            "alerts": [alert(each) for each in status.alerts] if with_alerts else None,
        }
    elif labels:
        out["labels"] = labels
    out["health"] = status.health.value
    if status.last_error:
        out["lastError"] = status.last_error
    return out | {
        "evaluationTime": _plain(last.duration_ns / 1e9 if last else 0),
        "lastEvaluation": moment(last.at_ms if last else None),
        "type": "alerting" if rule.is_alert else "recording",
        "evaluations": [_evaluation(each) for each in status.history],
    }


def _evaluation(one: Evaluation) -> JSON:
    out: JSON = {"time": moment(one.at_ms), "duration": _plain(one.duration_ns / 1e9), "series": one.series}
    return out | ({"error": one.error} if one.error else {})


def one_line(pretty: str) -> str:
    """A formatted expression as Prometheus shows it where there is no room for several lines."""
    parts = _INDENT.split(pretty.strip())
    out = parts[0]
    for part in parts[1:]:
        out += part if out.endswith("(") or part.startswith(")") else f" {part}"
    return out


def _plain(number: float) -> float | int:
    return int(number) if number == int(number) else number


def _token(group: GroupStatus) -> str:
    return hashlib.sha256(f"{group.group.file};{group.group.name}".encode()).hexdigest()[:40]


def _wrong(name: str, message: str) -> RequestError:
    return RequestError(f'invalid parameter "{name}": {message}')

"""What a restart makes of saved alerts: Prometheus's formulas for `for`, and firing alerts that stay firing.

Prometheus finds its samples again after a restart; our store starts empty. A restored alert is therefore held: until
the expression can have a full window again, its absence from the result does not resolve it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sidecar.alerting.persistence import Saved
from sidecar.alerting.rules import Rule, RuleKey
from sidecar.alerting.state import RESOLVED_RETENTION_MS, Instance
from sidecar.model import AlertState, Labels


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """The first two are Prometheus's `--rules.alert.for-outage-tolerance` and `for-grace-period`, same defaults."""

    outage_tolerance_ms: int = 3_600_000  # after a longer outage saved alerts mean nothing any more
    grace_ms: int = 600_000  # rules with a shorter `for` start anew; others wait at least so long before they fire
    settle_ms: int = 30_000  # how long sources may take to come back: a trainer reconnects within seconds


def restored(
    saved: Iterable[Saved],
    rules: Mapping[RuleKey, Rule],
    ranges_ms: Mapping[RuleKey, int],
    now_ms: int,
    settings: RestoreSettings,
) -> tuple[dict[RuleKey, dict[Labels, Instance]], list[Saved]]:
    """State by rule, and the rows that mean nothing any more. `ranges_ms`: how far a rule's expression looks back."""
    states: dict[RuleKey, dict[Labels, Instance]] = {}
    obsolete: list[Saved] = []
    for row in saved:
        rule = rules.get(row.key)
        hold = max(settings.settle_ms, ranges_ms.get(row.key, 0))
        instance = None if rule is None else _restored(row, rule, now_ms, now_ms + hold, settings)
        if instance is None:
            obsolete.append(row)
        else:
            states.setdefault(row.key, {})[instance.labels] = instance
    return states, obsolete


def _restored(row: Saved, rule: Rule, now_ms: int, hold_ms: int, settings: RestoreSettings) -> Instance | None:
    instance = row.instance
    if instance.state is AlertState.INACTIVE:
        return instance if now_ms - instance.resolved_at_ms <= RESOLVED_RETENTION_MS else None
    if now_ms - row.seen_at_ms > settings.outage_tolerance_ms:
        return None
    if instance.state is AlertState.FIRING:
        return replace(instance, held_until_ms=hold_ms)
    if rule.for_ms < settings.grace_ms:
        return None
    active_at = restored_active_at(instance.active_at_ms, row.seen_at_ms, now_ms, rule.for_ms, settings.grace_ms)
    return replace(instance, active_at_ms=active_at, held_until_ms=hold_ms)


def restored_active_at(active_at_ms: int, down_at_ms: int, now_ms: int, for_ms: int, grace_ms: int) -> int:
    """Since when a pending alert counts as active after an outage from `down_at_ms` to `now_ms`."""
    remaining = for_ms - (down_at_ms - active_at_ms)
    if remaining <= 0:
        return active_at_ms
    if remaining < grace_ms:
        return now_ms + grace_ms - for_ms
    return active_at_ms + (now_ms - down_at_ms)

"""Alertmanager's silences: an alert that somebody has silenced is not answered.

Each Alertmanager's list is replaced whole whenever it is read; while it cannot be read, what was read last stays in
force until each silence's own end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sidecar.responses.matchers import Matcher, matcher


@dataclass(frozen=True, slots=True)
class Silence:
    """One silence that is active or will be: every matcher must hold."""

    id: str
    starts_ms: int
    ends_ms: int
    matchers: tuple[Matcher, ...]

    def holds(self, labels: Mapping[str, str], now_ms: int) -> bool:
        """Whether an alert with these labels is silenced now."""
        return self.starts_ms <= now_ms < self.ends_ms and all(m.matches(labels) for m in self.matchers)


def silence(
    identifier: str, starts_ms: int, ends_ms: int, conditions: Iterable[tuple[str, str, bool, bool]]
) -> Silence:
    """From (label, value, is a regular expression, is equal) each. Raises ValueError for a bad expression."""
    return Silence(
        identifier,
        starts_ms,
        ends_ms,
        tuple(matcher(name, value, regex=regex, equal=equal) for name, value, regex, equal in conditions),
    )


class Silences:
    """What every Alertmanager has silenced, as last heard. By alert name, since many alerts are held against many."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Silence, ...]] = {}
        self._by_name: dict[str, list[Silence]] = {}  # "": those that no one name decides about

    def learn(self, source: str, silences: Iterable[Silence]) -> None:
        """One Alertmanager's whole list."""
        self._known[source] = tuple(silences)
        self._sort()

    def forget_all_but(self, sources: Iterable[str]) -> None:
        """Alertmanagers that are no longer configured have no say."""
        there = set(sources)
        self._known = {source: found for source, found in self._known.items() if source in there}
        self._sort()

    def _sort(self) -> None:
        self._by_name = {}
        for found in self._known.values():
            for one in found:
                name = next((m.value for m in one.matchers if (m.name, m.operator) == ("alertname", "=")), "")
                self._by_name.setdefault(name, []).append(one)

    def by(self, labels: Mapping[str, str], now_ms: int) -> str:
        """The id of a silence that holds for these labels (`alertname` and external labels among them), or empty."""
        for name in (labels.get("alertname", ""), ""):
            for one in self._by_name.get(name, ()):
                if one.holds(labels, now_ms):
                    return one.id
        return ""

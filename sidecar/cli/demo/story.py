"""The sidecar's journal, read as a story: what it says of the alert and the experiment, and a sentence an entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.cli.demo.scenarios import ALERT
from sidecar.model import KnobValue

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence for the timeline, with a rich style. `at` is wall seconds."""

    at: float
    text: str
    style: str = ""


@dataclass(slots=True)
class Story:
    """What the journal has told so far; times are wall seconds, 0 where not reached."""

    alerts: dict[str, str] = field(default_factory=dict)  # rank, or empty for all of them → pending or firing
    active_at: float = 0.0
    fired_at: float = 0.0
    episode: str = ""  # of the experiment; with several ranks there are several alerts, and one of them acts
    asks: tuple[str, str] | None = None  # (episode, response) of a plan that waits for an approval
    episodes: int = 0  # alerts that fired and have a response
    decided: int = 0  # of them those whose response will not act
    found: Mapping[str, KnobValue] = field(default_factory=dict)
    values: Mapping[str, KnobValue] = field(default_factory=dict)
    phase: str = ""
    ordered_at: float = 0.0
    applied_at: float = 0.0
    measure_from: float = 0.0
    verdict: str = ""
    verdict_at: float = 0.0
    result: str = ""

    @property
    def alert(self) -> str:
        """The furthest state of any rank's alert: firing, pending or empty."""
        return min(self.alerts.values(), default="")  # "firing" < "pending"

    @property
    def over(self) -> bool:
        """Whether nothing more will come: the experiment is closed, or there is none and will be none."""
        return bool(self.result) or (not self.episode and 0 < self.episodes <= self.decided)

    def take(self, entry: Entry) -> Line | None:
        """One journal entry; what to show of it. Entries of other alerts and responses than the demo's are left out."""
        at, data, episode = entry["at_ms"] / 1000, entry["data"], entry.get("episode", "")
        if entry["kind"] == "edge":
            return self._edge(at, data) if data["alert"] == ALERT else None
        if self.episode and episode != self.episode:
            return None
        match entry["kind"]:
            case "waiting" if data["reason"] == "awaiting_approval":
                self.asks = episode, entry["response"]
                return Line(at, f"response {entry['response']} waits for an approval", "yellow")
            case "waiting" if data["reason"] == "thin_baseline":
                return Line(at, f"response {entry['response']} waits for its baseline, taken while starved")
            case "waiting":
                return Line(at, f"response {entry['response']} waits: {_words(data)}")
            case "decision" if data["reason"] != "acted":
                self.decided += 1
                return Line(at, f"response {entry['response']} does not act: {_words(data)}", "yellow")
            case "experiment" if data["phase"] in ("planned", "approved"):  # for every rank's alert, until one acts
                return self._planned(at, data)
            case "experiment":
                self.episode = episode
                return self._experiment(at, data)
            case "verdict":
                return self._verdict(at, data)
        return None

    def _edge(self, at: float, data: Mapping[str, Any]) -> Line:
        edge, rank = data["edge"], data["labels"].get("rank", "")
        whose = f" for rank {rank}" if rank else ""
        whose = f" for rank {rank}" if rank else ""
        if edge == "pending":
            self.alerts[rank] = edge
            self.active_at = self.active_at or at
            share = "" if data["value"] is None else f": {data['value']:.0%} of the step time is waiting for data"
            return Line(at, f"{ALERT} is pending{whose}{share}", "yellow")
        if edge == "firing":
            self.alerts[rank] = edge
            self.episodes += bool(data["responses"])
            self.active_at, self.fired_at = data["active_at_ms"] / 1000, self.fired_at or at
            return Line(at, f"{ALERT} fires{whose}", "bold red")
        self.alerts.pop(rank, None)
        if not self.alerts and not self.fired_at:
            self.active_at = 0.0
        how = "has resolved" if edge == "resolved" else "went away before it fired"
        return Line(at, f"{ALERT} {how}{whose}", "green")

    def _planned(self, at: float, data: Mapping[str, Any]) -> Line | None:
        again = (self.values, self.found) == (data["values"], data["found"])
        self.values, self.found = data["values"], data["found"]
        return None if again else Line(at, f"remediation planned: {changed(self.found, self.values)}", "cyan")

    def _experiment(self, at: float, data: Mapping[str, Any]) -> Line | None:
        self.phase = data["phase"]
        if self.phase == "intended":
            self.values, self.found, self.ordered_at = data["values"], data["found"], at
            return Line(at, "the baseline is full: the change is ordered", "cyan")
        if self.phase == "settling":
            self.applied_at, self.measure_from = at, data["measure_from_ms"] / 1000
            return Line(at, f"applied at step {data['step']}, in the middle of an epoch; settling", "cyan")
        if self.phase == "measuring":
            return Line(at, "measuring", "cyan")
        if self.phase == "closed":
            self.result = data["result"]
            return Line(at, f"the change was {self.result.replace('_', ' ')}", "bold")
        return None

    def _verdict(self, at: float, data: Mapping[str, Any]) -> Line:
        self.verdict, self.verdict_at = data["verdict"].replace("_", " "), at
        gain = ""
        if "gain_percent" in data:
            gain = f": {data['gain_percent']:+.1f} %, at least {data['at_least_percent']:+.1f} %"
        style = "bold green" if self.verdict == "helped" else "bold yellow"
        why = f" ({data['reason'].replace('_', ' ')})" if data["reason"] else ""
        return Line(at, f"verdict: {self.verdict}{gain}{why}", style)


def changed(before: Mapping[str, KnobValue], after: Mapping[str, KnobValue]) -> str:
    """`num_workers 2 → 4, prefetch_factor 2 → 4`; what stays is named once."""
    parts = []
    for name in sorted({*before, *after}):
        old, new = before.get(name, "?"), after.get(name, "?")
        parts.append(f"{name} {old}" if old == new else f"{name} {old} → {new}")
    return ", ".join(parts)


def _words(data: Mapping[str, Any]) -> str:
    reason = str(data["reason"]).replace("_", " ")
    return f"{reason} ({data['detail']})" if data.get("detail") else reason

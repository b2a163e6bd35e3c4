"""What responses have saved and cost in money, from nothing but the journal: pure bookkeeping.

A verdict says what a change is worth: the hours of before that an hour does now, less one, at the price of the pod (US
dollars an hour). A kept change earns that from the moment it was applied for as long as the training run lives that it
was made in. One that was undone earned or cost it for the time it was in effect. Where no price or no estimate is
known there is no money: nothing is made up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sidecar.model import MetricInfo, Sample, labels_of
from sidecar.responses.journal import Entry

HOUR_MS = 3_600_000

METRICS = (
    MetricInfo(
        "spikewatch_saved_usd_total",
        "counter",
        "usd",
        "Worth of the extra work done thanks to a response's changes, in US dollars; counts the present training run "
        "again after a restart of the sidecar.",
        ("response",),
        "journal: verdicts, and how long what was kept has been in effect",
    ),
    MetricInfo(
        "spikewatch_experiment_cost_usd_total",
        "counter",
        "usd",
        "Worth of the work lost while changes were tried that made the training slower, in US dollars.",
        ("response",),
        "journal: verdicts, and how long what was undone had been in effect",
    ),
    MetricInfo(
        "spikewatch_saving_usd_per_hour",
        "gauge",
        "usd_per_hour",
        "What the changes of a response that are kept in the present training run are worth now.",
        ("response",),
        "journal: verdicts",
    ),
)

Run = tuple[str, ...]
"""The random ids of a run's processes."""


@dataclass(frozen=True, slots=True)
class Total:
    """Of one response in one training run, in US dollars; both are 0 or more. `usd_per_hour` is what is kept now."""

    response: str
    run: Run
    saved_usd: float
    cost_usd: float
    usd_per_hour: float


@dataclass(slots=True)
class _Kept:
    response: str
    run: Run
    usd_per_hour: float
    booked_ms: int


@dataclass(slots=True)
class _Sums:
    saved: float = 0.0
    cost: float = 0.0

    def add(self, usd: float) -> None:
        """A gain or, where negative, a cost."""
        if usd > 0:
            self.saved += usd
        else:
            self.cost -= usd


class Savings:
    """Give it every journal entry in order, and now and then the time. Changes under way are bounded by the engine."""

    def __init__(self) -> None:
        self._run: Run = ()
        self._applied: dict[str, int] = {}
        self._worth: dict[str, float] = {}
        self._kept: dict[str, _Kept] = {}
        self._sums: dict[tuple[str, Run], _Sums] = {}

    def expect(self, responses: Iterable[str]) -> None:
        """Responses that may act: their counters begin at 0."""
        for response in responses:
            self._sums.setdefault((response, self._run), _Sums())

    def replay(self, entries: Iterable[Entry], runs: Mapping[str, Run]) -> None:
        """Entries from before a restart. `runs`: change id → whose values were changed.

        What was kept goes on earning if its run is still there when `advance` is called next; all else is history.
        """
        for entry in entries:
            self._note(entry, runs.get(entry.change_id, ()))
        self._sums.clear()

    def take(self, entry: Entry) -> None:
        """A new entry; those that are not about money are left alone."""
        self._note(entry, self._run)

    def advance(self, now_ms: int, run: Run | None) -> None:
        """Books what was earned up to now. `run`: who is attached; None while nobody is, and then nothing is booked:
        if the same run comes back, the time in between is booked then.
        """
        if run is None:
            return
        if run != self._run:
            # A run that has ended earns nothing more.
            self._run = run
            self._kept = {change: kept for change, kept in self._kept.items() if kept.run == run}
        for kept in self._kept.values():
            self._book(kept.response, run, kept.usd_per_hour, now_ms - kept.booked_ms)
            kept.booked_ms = max(kept.booked_ms, now_ms)

    def totals(self) -> tuple[Total, ...]:
        """Every response in every run since start, those of one response together."""
        return tuple(
            Total(response, run, sums.saved, sums.cost, self._rate(response, run))
            for (response, run), sums in sorted(self._sums.items())
        )

    def samples(self) -> Iterable[Sample]:
        """For /metrics: summed over runs."""
        by_response: dict[str, list[Total]] = {}
        for total in self.totals():
            by_response.setdefault(total.response, []).append(total)
        for response, totals in by_response.items():
            labels = labels_of({"response": response})
            yield Sample(METRICS[0].name, labels, sum(t.saved_usd for t in totals))
            yield Sample(METRICS[1].name, labels, sum(t.cost_usd for t in totals))
            yield Sample(METRICS[2].name, labels, sum(t.usd_per_hour for t in totals))

    # --- inside -----------------------------------------------------------------------------------------------------

    def _note(self, entry: Entry, run: Run) -> None:
        data, change = entry.data, entry.change_id
        if entry.kind == "verdict" and data.get("usd_per_hour") is not None:
            self._worth[change] = float(data["usd_per_hour"])
        elif entry.kind == "experiment" and data.get("phase") == "settling":
            self._applied[change] = entry.at_ms
        elif entry.kind == "experiment" and data.get("phase") == "closed":
            worth, since = self._worth.pop(change, None), self._applied.pop(change, None)
            if worth is None or since is None:
                return
            if data.get("result") == "kept":
                self._kept[change] = _Kept(entry.response, run, worth, since)
            else:
                self._book(entry.response, run, worth, entry.at_ms - since)

    def _book(self, response: str, run: Run, usd_per_hour: float, ms: int) -> None:
        self._sums.setdefault((response, run), _Sums()).add(usd_per_hour * max(0, ms) / HOUR_MS)

    def _rate(self, response: str, run: Run) -> float:
        return sum(k.usd_per_hour for k in self._kept.values() if (k.response, k.run) == (response, run))

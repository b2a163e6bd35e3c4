"""The responder's own metrics: counts of verdicts and decisions since start, and what is going on now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from sidecar.model import MetricInfo, Sample, labels_of
from sidecar.responses.episode import FINAL, PASSING
from sidecar.responses.statistics import Verdict

METRICS = (
    MetricInfo(
        "spikewatch_experiments_total",
        "counter",
        "",
        "Experiments judged since start.",
        ("remediation", "verdict"),
        "responder",
    ),
    MetricInfo(
        "spikewatch_decisions_total",
        "counter",
        "",
        "Decisions about a response in an episode since start, one each.",
        ("reason",),
        "responder",
    ),
    MetricInfo("spikewatch_experiment_active", "gauge", "", "Experiments under way.", (), "responder"),
    MetricInfo("spikewatch_episodes_open", "gauge", "", "Episodes that are not over yet.", (), "responder"),
    MetricInfo(
        "spikewatch_response_breaker_open",
        "gauge",
        "",
        "1 where a response has stopped acting because its last experiments did not help.",
        ("response",),
        "responder",
    ),
    MetricInfo("spikewatch_approvals_waiting", "gauge", "", "Plans that wait for an approval.", (), "responder"),
    MetricInfo("spikewatch_kill_switch_on", "gauge", "", "1 while nothing may be sent to a trainer.", (), "responder"),
    MetricInfo(
        "spikewatch_journal_lost_total",
        "counter",
        "",
        "Journal entries lost while the disk refused them, and lines lost while nobody read stdout (entries are then "
        "still in the database).",
        ("what",),
        "responder",
    ),
)
"""What the responder exports."""


class Tally:
    """Counters that begin at 0 for every label value known beforehand, so that a rate sees the first one."""

    def __init__(self) -> None:
        self._verdicts: Counter[tuple[str, str]] = Counter()
        self._decisions: Counter[str] = Counter(dict.fromkeys(sorted(FINAL), 0))

    def expect(self, remediations: Iterable[str], reasons: Iterable[str] = ()) -> None:
        """Remediations that may be tried, and the reasons of their own that they have for doing nothing."""
        for reason in reasons:
            if reason not in PASSING:
                self._decisions.setdefault(reason, 0)
        for name in remediations:
            for verdict in Verdict:
                self._verdicts.setdefault((name, verdict.value), 0)

    def verdict(self, remediation: str, verdict: Verdict) -> None:
        """One experiment was judged."""
        self._verdicts[remediation, verdict.value] += 1

    def decision(self, reason: str) -> None:
        """One (episode, response) was decided."""
        self._decisions[reason] += 1

    def samples(
        self,
        *,
        active: int,
        episodes: int,
        breakers: Mapping[str, bool],
        approvals: int = 0,
        halted: bool = False,
        lost: Mapping[str, int] | None = None,
    ) -> Iterable[Sample]:
        """Everything for /metrics."""
        for (remediation, verdict), n in self._verdicts.items():
            labels = labels_of({"remediation": remediation, "verdict": verdict})
            yield Sample("spikewatch_experiments_total", labels, float(n))
        for reason, n in self._decisions.items():
            yield Sample("spikewatch_decisions_total", labels_of({"reason": reason}), float(n))
        yield Sample("spikewatch_experiment_active", (), float(active))
        yield Sample("spikewatch_episodes_open", (), float(episodes))
        yield Sample("spikewatch_approvals_waiting", (), float(approvals))
        yield Sample("spikewatch_kill_switch_on", (), float(halted))
        for what, n in (lost or {}).items():
            yield Sample("spikewatch_journal_lost_total", labels_of({"what": what}), float(n))
        for response, open_ in breakers.items():
            yield Sample("spikewatch_response_breaker_open", labels_of({"response": response}), float(open_))

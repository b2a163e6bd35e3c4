"""Our side: the samples Prometheus scraped, through our store, engine, alerts and notifier.

Prometheus decides when: each group is evaluated at the instants at which it was there, over the scrapes that could be
seen then. A scrape that came late, or an evaluation that was left out, is the same on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from unittest import mock

from rival_prometheus import EXTERNAL, EXTERNAL_URL, RESEND_MS
from rival_recorded import WRITTEN, grids

from sidecar import promql
from sidecar.alerting import group as group_module
from sidecar.alerting.loader import load_rules
from sidecar.alerting.manager import Manager
from sidecar.alerting.writing import StoreWriter
from sidecar.clock import FakeClock
from sidecar.model import STALE, Sample, labels_of
from sidecar.outputs.alertmanager import Notifier
from sidecar.outputs.endpoint import Endpoint
from sidecar.outputs.lane import Limits
from sidecar.recording import Recorder
from sidecar.settings import Alertmanager
from sidecar.store import Store


@dataclass
class Ours:
    """What we made of a run, in the shape of `Recorded`; `ambiguous` evaluations had a scrape come in meanwhile."""

    written: dict = field(default_factory=dict)
    visible: dict = field(default_factory=dict)
    evaluations: int = 0
    ambiguous: int = 0


class Replayed:
    """The engine under comparison, one manager a group because each group has its own instants."""

    def __init__(self, rule_file, recorded, served, notifier, face="incremental"):
        self._recorded, self._served, self._notifier = recorded, served, notifier
        self.ours = Ours()
        self.clock = FakeClock()
        self._groups = {group.name: group for group in load_rules([rule_file]).groups}
        exprs = [rule.expr for group in self._groups.values() for rule in group.rules]
        program = promql.compile(exprs)
        self._store = Store(min_keep_ms=600_000, max_slots=1_000_000)
        self._store.reserve(program.needs())
        self._evaluator = program.bind(self._store, face, interval_ms=200)
        self._scraped = Recorder(self._store, "scrape")
        self._writer = StoreWriter(self._store)
        self._managers = {}
        self._pushed = 0

    def run(self):
        """Every evaluation, in order of time."""
        for evaluation in self._recorded.evaluations:
            self._push(evaluation)
            manager = self._manager(evaluation)
            self.clock.advance(max(evaluation.at_ms - self.clock.now_ms(), 0))
            manager.tick(evaluation.at_ms)
            self._notifier.send(manager.sendable())
            self.ours.evaluations += 1
        self._look()
        return self.ours

    def _push(self, evaluation):
        """The scrapes that Prometheus saw in this evaluation and that are not in the store yet."""
        scrapes = self._recorded.scrapes
        while self._pushed < len(scrapes) and scrapes[self._pushed].t_ms <= evaluation.seen_ms:
            scrape = scrapes[self._pushed]
            self._scraped.record(self._samples(scrape), scrape.t_ms)
            self._pushed += 1
        data_ms = evaluation.at_ms - evaluation.offset_ms
        newest = max((s.t_ms for s in scrapes[: self._pushed] if s.t_ms <= data_ms), default=0)
        self.ours.ambiguous += newest != evaluation.seen_ms or evaluation.seen_ms != evaluation.seen_later_ms

    def _samples(self, scrape):
        up = dict(self._recorded.up["labels"])
        target = {name: up[name] for name in ("instance", "job")}
        yield Sample("up", labels_of(target), self._recorded.up["values"][scrape.t_ms])
        if scrape.serial is not None:
            for (metric, labels), value in self._served[scrape.serial].items():
                yield Sample(metric, labels_of({**dict(labels), **target}), value)

    def _manager(self, evaluation):
        if evaluation.group not in self._managers:
            group = self._groups[evaluation.group]
            manager = Manager(
                [group],
                self._evaluator.at,
                self._write,
                look=lambda expr, t_ms: promql.evaluate(self._store, expr, t_ms, 200),
                default_interval_ms=1,  # slots of the group's own interval, wherever they lie
                external_labels=labels_of(EXTERNAL),
                external_url=EXTERNAL_URL,
                resend_delay_ms=RESEND_MS,
            )
            phase = evaluation.at_ms % group.interval_ms
            with mock.patch.object(group_module, "slot_offset", return_value=phase):
                manager.tick(evaluation.at_ms - 1)
            self._managers[evaluation.group] = manager
        return self._managers[evaluation.group]

    def _write(self, producer, t_ms, rows):
        rows = list(rows)
        for metric, labels, value in rows:
            if value is not STALE:
                self.ours.written.setdefault(labels_of({**dict(labels), "__name__": metric}), {})[t_ms] = value
        self._writer(producer, t_ms, rows)

    def _look(self):
        """What instant queries would have seen, at the instants at which Prometheus was asked the same."""
        evaluator = promql.compile([WRITTEN]).bind(self._store, "naive")
        for start in grids(self._recorded.evaluations).values():
            for t_ms, vector in evaluator.over(WRITTEN, start, self._recorded.horizon_ms, 200):
                for labels in vector.labels:
                    self.ours.visible.setdefault(labels, set()).add(t_ms)


def notifier(address, clock):
    """A notifier of ours that posts to the common Alertmanager."""
    endpoint = Endpoint(Alertmanager(url=f"http://{address}/ours"))
    return Notifier([endpoint], clock, Limits(queue=1_000_000, resend_delay_ms=1 << 40))

"""The sidecar assembled: one object that ticks, reloads and stops. The only place where rooms meet."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from sidecar import promql
from sidecar.actuators.egress import EgressList
from sidecar.actuators.http import HttpActuator
from sidecar.actuators.notes import Notes
from sidecar.alerting import persistence
from sidecar.alerting.manager import Manager
from sidecar.alerting.rules import literal_queries
from sidecar.alerting.runner import QueryFunc
from sidecar.alerting.writing import StoreWriter
from sidecar.app import collecting, money, records, views
from sidecar.app.control import Control, SilencedAlerts
from sidecar.app.files import claim
from sidecar.app.lines import Lines
from sidecar.app.memory import NewestValues
from sidecar.app.rulebook import Rulebook, load_rulebook
from sidecar.app.selfmetrics import Vitals, price
from sidecar.app.settling import uncollected
from sidecar.clock import Clock
from sidecar.collectors.gpu import dcgm
from sidecar.collectors.runner import Runner, status_samples
from sidecar.errors import Problem, StateError
from sidecar.model import AlertState, Labels, MetricInfo, Sample, labels_of
from sidecar.outputs.alertmanager import Notifier
from sidecar.outputs.exposition import Exposition
from sidecar.outputs.lane import Limits
from sidecar.outputs.silences import SilenceReader
from sidecar.plugins import Registry
from sidecar.recording import Recorder
from sidecar.responses.engine import Responder
from sidecar.responses.journal import Journal
from sidecar.responses.killswitch import FILE as KILL_SWITCH
from sidecar.responses.killswitch import KillSwitch
from sidecar.responses.response import Policy
from sidecar.responses.savings import Savings
from sidecar.responses.store_measure import STEPS, StoreMeasure
from sidecar.settings import Loaded, Settings, load
from sidecar.statedb import StateDB
from sidecar.store import Store
from sidecar.trainer.channel import TrainerChannel

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A rulebook, its rules ready to be evaluated tick after tick, and how far back, in ms, they read each metric."""

    rulebook: Rulebook
    query: QueryFunc
    needs: Mapping[str, int]


class Sidecar:
    """Everything but listeners and signals. Made and used on the event loop's thread."""

    def __init__(
        self,
        config: Path | None,
        loaded: Loaded,
        rulebook: Rulebook,
        registry: Registry,
        clock: Clock,
        *,
        environ: Mapping[str, str] | None = None,
        policy: Policy | None = None,
        write_line: Callable[[str], object] | None = None,
    ) -> None:
        """Opens the state database. Raises StateError, also where another sidecar has it."""
        settings = loaded.settings
        self.rulebook, self.clock = rulebook, clock
        self._config, self._registry, self._environ = config, registry, environ
        self._newest_ms = 0  # time of the newest tick
        self._closing: set[asyncio.Task[None]] = set()  # notifiers from before a reload
        self.vitals = Vitals()
        self.store = Store(settings.store.max_series, settings.store.max_series_per_metric, settings.store.min_keep)
        state_dir, run_dir = loaded.path(settings.state_dir), loaded.path(settings.run_dir)
        self._lock: int | None = claim(state_dir)
        self._started = self._stopped = False
        self._reloading = asyncio.Lock()
        self.db = StateDB(state_dir / "state.db")
        if self.db.set_aside:
            _log.error("the state database was corrupt; it is kept as %s and a new one begun", self.db.set_aside)
        allowed = {os.getuid(), *settings.trainer_uids}
        self.channel = TrainerChannel(run_dir / "trainer.sock", self.store, clock, allowed_uids=allowed)
        self._channel_state = Recorder(self.store, "channel")
        self._responder_state = Recorder(self.store, "responder")  # in the store, so that rules can be about it
        self._price = Recorder(self.store, "settings")
        self.savings = Savings()
        self.journal = Journal(self.db, write_line=write_line or Lines().write, on_entry=self.savings.take)
        egress = settings.egress
        self.http = HttpActuator(
            EgressList(egress.allow),
            state_dir / "requests.json",
            clock,
            timeout_ms=egress.timeout,
            token_file=loaded.path(egress.token_file) if egress.token_file else None,
            judged=self.channel.identity,
        )
        self.collectors = self._runner(rulebook)
        newest = NewestValues(self.store, clock)
        self._facts = collecting.Facts(clock, newest.of)
        measure = StoreMeasure(self.store, settings.evaluation_interval)
        sights = views.Sights(measure, lambda: self._newest_ms)
        platform = settings.kill_switch
        self.switch = KillSwitch(state_dir / KILL_SWITCH, loaded.path(platform) if platform else None)
        self.silenced = SilencedAlerts(clock, self._external)
        self.responder = Responder(
            rulebook.responses,
            {"trainer": self.channel, "http": self.http, "notes": Notes()},
            views.seeing(registry.remediations, sights),
            measure,
            self.journal,
            caps=rulebook.caps,
            policy=policy,
            facts=self._facts,
            usd_per_hour=self._usd_per_hour,
            halted=self.switch.on,
            silenced=self.silenced,
            pod=settings.external_labels.get("pod", "") or socket.gethostname(),
        )
        compiled = self._compile(rulebook)
        self._reserve(compiled)
        self.manager = Manager(
            rulebook.groups,
            compiled.query,
            StoreWriter(self.store),
            look=self._look(rulebook),
            persistence=persistence.SqliteAlertStore(self.db),
            **_surroundings(settings),
        )
        self.notifier, self.silences = _notifier(rulebook, clock), self._silence_reader(rulebook)
        self.control = Control(
            self.responder,
            self.switch,
            clock,
            log=self.journal,
            external=self._external,
            firing=lambda: [a.labels for a in self.manager.alerts() if a.state is AlertState.FIRING],
        )
        self.exposition = Exposition(
            newest,
            (*self.catalogue(), *dcgm.METRICS),
            {
                "dcgm": lambda: dcgm.renamed(newest.of(dcgm.READS)) if self._settings.dcgm_names else (),
                "sidecar": self.samples,
                "notifier": lambda: self.notifier.samples(),
                "silences": lambda: self.silences.samples(),
                "savings": lambda: self.savings.samples(),
            },
        )
        self._adopted(rulebook)

    @property
    def _settings(self) -> Settings:
        return self.rulebook.loaded.settings

    def catalogue(self) -> tuple[MetricInfo, ...]:
        """Every metric this sidecar can export."""
        return records.catalogue(self._registry)

    # --- evaluation --------------------------------------------------------------------------------------------------

    def _compile(self, rulebook: Rulebook) -> _Compiled:
        """For any thread: an evaluator that is new has not looked at the store yet."""
        interval = rulebook.loaded.settings.evaluation_interval
        program = promql.compile([rule.expr for group in rulebook.groups for rule in group.rules])
        query = program.bind(self.store, interval_ms=interval).at
        return _Compiled(rulebook, query, program.also(literal_queries(rulebook.groups)).needs())

    def _reserve(self, compiled: _Compiled) -> None:
        """Has the store keep what rules and responses look back at. Responses are those that run now."""
        rulebook = compiled.rulebook
        seen = views.reads(self._registry.remediations, (r.remediation for r in rulebook.responses))
        judged = promql.compile([*self.responder.exprs(), *seen])
        behind = max((group.query_offset_ms for group in rulebook.groups), default=0)
        self.store.reserve(_spans(compiled.needs, judged, {**seen, **self.responder.spans()}, behind))

    def _look(self, rulebook: Rulebook) -> QueryFunc:
        """How templates look at anything at any time."""
        interval = rulebook.loaded.settings.evaluation_interval
        return lambda expr, t_ms: promql.evaluate(self.store, expr, t_ms, interval)

    def _runner(self, rulebook: Rulebook) -> Runner:
        budget = rulebook.loaded.settings.collector_cpu_budget
        return collecting.runner(rulebook.collectors, self._registry, self.store, self.clock, budget)

    def _external(self) -> Mapping[str, str]:
        return self.rulebook.loaded.settings.external_labels

    def _silence_reader(self, rulebook: Rulebook) -> SilenceReader:
        return SilenceReader(rulebook.endpoints, self.silenced.learn, rulebook.loaded.settings.silence_interval)

    def _usd_per_hour(self) -> float | None:
        settings = self.rulebook.loaded.settings
        if settings.usd_per_gpu_hour is None or settings.gpus is None:
            return None
        return settings.usd_per_gpu_hour * settings.gpus

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Opens the trainer's socket and takes over what a former process left."""
        self.channel.start()
        self._started = True
        money.recover(self.savings, self.journal)
        self.responder.recover(self.clock.now_ms())
        self.notifier.start()
        self.silences.start()

    def tick(self) -> None:
        """One round. A part that fails is counted and logged, and does not keep the others from their turn."""
        now, started = self._instant(), time.perf_counter()
        self.vitals.ticks += 1
        self._part("trainer", lambda: self._listen(now))
        self._part("collectors", lambda: self.collectors.tick(now))
        self._part("settings", lambda: self._price.record(price(self._settings), now))
        self._part("alerting", lambda: self._evaluate(now))
        self._part("responses", lambda: self.control.tick(now))
        self._part("responses", lambda: self.responder.tick(now))
        self._part("responses", lambda: self._responder_state.record(self.responder.samples(), now))
        self._part("savings", lambda: self._book(now))
        self.vitals.tick_seconds = time.perf_counter() - started

    def poll(self) -> None:
        """Between two ticks: collectors that are due."""
        now = self.clock.now_ms()
        self._part("collectors", lambda: self.collectors.poll(now))

    def _instant(self) -> int:
        """The time of this tick, the same for the samples it takes and the rules it evaluates.

        Rules are due at multiples of the interval. A tick wakes up a little beside them, and a sample stamped a
        millisecond after the instant would not be seen until the next one, a whole interval later.
        """
        now, interval = self.clock.now_ms(), self.rulebook.loaded.settings.evaluation_interval
        due = (now + interval // 2) // interval * interval
        instant = due if abs(now - due) <= interval // 10 and due > self._newest_ms else now
        self._newest_ms = instant
        return instant

    def _listen(self, now: int) -> None:
        self.channel.tick(now)
        self._channel_state.record(status_samples("trainer", self.channel.status()), now)

    def _evaluate(self, now: int) -> None:
        # The responder hears of edges first: one that it has not heard of must not be on disk as old news.
        self.manager.tick(now, lambda events: self._part("responses", lambda: self.responder.on_events(events, now)))
        self.notifier.send(self.manager.sendable())

    def _book(self, now: int) -> None:
        who = self.channel.identity()
        self.savings.advance(now, who.run_ids if who else None)

    def _part(self, name: str, work: Callable[[], object]) -> None:
        try:
            work()
        except StateError as e:
            self._failed(name, e)
        except Exception as e:  # noqa: BLE001  the boundary: one room's bug must not end the watch over a training run
            self._failed(name, e, exc_info=True)

    def _failed(self, name: str, error: Exception, *, exc_info: bool = False) -> None:
        first = name not in self.vitals.tick_errors
        self.vitals.failed(name)
        if first or not exc_info:
            _log.error("%s: %s: %s", name, type(error).__name__, error, exc_info=exc_info)

    async def reload(self) -> Sequence[Problem]:
        """Takes a changed configuration, whole or not at all. Raises ConfigError and keeps what runs.

        Files are read and rules compiled in a thread, for thousands of them take many seconds: until then the old ones
        are evaluated, then both change places between two ticks. One reload at a time.
        """
        async with self._reloading:
            try:
                compiled = await asyncio.to_thread(self._load)
            except Exception:
                self.vitals.reload_ok = False
                raise
            return () if self._stopped else self._take(compiled)

    def _load(self) -> _Compiled:
        with uncollected():
            return self._compile(load_rulebook(load(self._config, self._environ), self._registry))

    def _take(self, compiled: _Compiled) -> Sequence[Problem]:
        rulebook = compiled.rulebook
        try:
            notifier, silences = _notifier(rulebook, self.clock), self._silence_reader(rulebook)
            collectors = None
            budgets = [b.loaded.settings.collector_cpu_budget for b in (rulebook, self.rulebook)]
            if rulebook.collectors != self.rulebook.collectors or budgets[0] != budgets[1]:
                collectors = self._runner(rulebook)
        except Exception:
            self.vitals.reload_ok = False
            raise
        now = self.clock.now_ms()
        # From here on nothing may stop it half way; what a full disk refuses is written later.
        self._part("responses", lambda: self.responder.replace(rulebook.responses, rulebook.caps, now))
        self._reserve(compiled)
        self.manager.adjust(**_surroundings(rulebook.loaded.settings))
        self.manager.replace(rulebook.groups, compiled.query, self._look(rulebook))
        if collectors is not None:
            self.collectors.end(max(now, self._newest_ms + 1))  # a tick may be stamped a little ahead of the clock
            self.collectors.close(timeout_s=0)
            self.collectors = collectors
        old, self.notifier = self.notifier, notifier
        read, self.silences = self.silences, silences
        notifier.start()
        silences.start()
        self._adopted(rulebook)
        for work in (old.close(), read.close()):
            closing = asyncio.get_running_loop().create_task(work)
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        return rulebook.warnings

    def _adopted(self, rulebook: Rulebook) -> None:
        self.silenced.only([e.settings.url for e in rulebook.endpoints])
        self.rulebook = rulebook
        settings = rulebook.loaded.settings
        token = settings.egress.token_file
        self.http.replace_egress(
            EgressList(settings.egress.allow),
            settings.egress.timeout,
            rulebook.loaded.path(token) if token else None,
        )
        if self._usd_per_hour() is not None:
            self.savings.expect(r.name for r in rulebook.responses)
        self.vitals.config_hash = rulebook.hash
        self.vitals.reload_ok = True
        self.vitals.loaded_at_ms = self.clock.now_ms()

    async def stop(self) -> None:
        """Sends no new command, writes what is unwritten, and is done within two seconds."""
        now, self._stopped = self.clock.now_ms(), True
        if self._started:  # one that was refused its socket has nothing to say in the journal
            self._part("responses", lambda: self.responder.stop(now))
            self._part("alerting", lambda: self.manager.close(now))
        self.channel.close()
        await self.http.close()
        await self.silences.close()
        await self.notifier.close(drain_s=1.0)
        self.collectors.close(timeout_s=0.3)
        self.db.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- for the API -------------------------------------------------------------------------------------------------

    def samples(self) -> Iterable[Sample]:
        """The sidecar's own metrics only."""
        return self.vitals.samples(self.manager.stats(), self.store.stats(), self.clock.offset_ms())


def _spans(
    needs: Mapping[str, int], judged: promql.Program, reads: Mapping[str, int], behind_ms: int
) -> dict[str, int]:
    """How long each metric is kept: what rules look back, and what experiments read of the past beside that.

    `behind_ms`: the longest `query_offset`, by which a group is evaluated in the past.
    """
    spans = {metric: span + behind_ms for metric, span in needs.items()}
    for metric, span in judged.needs().items():
        spans[metric] = max(spans.get(metric, 0), span)
    for expr, read in reads.items():
        for metric in (*judged.metrics(expr), STEPS):
            spans[metric] = max(spans.get(metric, 0), judged.needs().get(metric, 0) + read)
    return spans


class _Surroundings(TypedDict):
    default_interval_ms: int
    external_labels: Labels
    external_url: str
    resend_delay_ms: int


def _surroundings(settings: Settings) -> _Surroundings:
    """What the alert manager is told beside its rules."""
    return {
        "default_interval_ms": settings.evaluation_interval,
        "external_labels": labels_of(settings.external_labels),
        "external_url": settings.external_url,
        "resend_delay_ms": settings.resend_delay,
    }


def _notifier(rulebook: Rulebook, clock: Clock) -> Notifier:
    return Notifier(rulebook.endpoints, clock, Limits(resend_delay_ms=rulebook.loaded.settings.resend_delay))

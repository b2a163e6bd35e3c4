"""The responder: alerts in, orders to actuators out, everything on record. The part that ties the room together.

Each call decides first, then commits what it decided, and only then sends. If the disk refuses, nothing new is sent
and no lease is renewed, so that the trainer falls back to the values it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sidecar.errors import ResponseError, SpikewatchError, StateError
from sidecar.hooks import Actuator, Remediation
from sidecar.model import AlertEvent, Order, Sample, TrainerIdentity
from sidecar.responses.book import Book
from sidecar.responses.episode import Attempt, Episode, Plan, Refusal, change_id
from sidecar.responses.experiment import Experiment, Phase, Send, recovered, step
from sidecar.responses.gate import Gate, Sight
from sidecar.responses.journal import Journal
from sidecar.responses.limits import Ledger
from sidecar.responses.measure import Measure
from sidecar.responses.records import Records, details
from sidecar.responses.response import Mode, Policy, Response
from sidecar.responses.statistics import Judgement, Window
from sidecar.responses.tally import Tally
from sidecar.responses.trial import OOM_FACT, Trial


class Responder:
    """Use from one thread: `recover` once, then `on_events` and `tick` with every evaluation, `stop` at the end."""

    def __init__(
        self,
        responses: Iterable[Response],
        actuators: Mapping[str, Actuator],
        remediations: Mapping[str, Remediation],
        measure: Measure,
        journal: Journal,
        *,
        caps: Mapping[str, Mode] | None = None,
        policy: Policy | None = None,
        facts: Callable[[], Mapping[str, float]] = dict,
        usd_per_hour: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`facts` feeds the remediations' View; `usd_per_hour` is what the pod costs, None where not known."""
        self._policy = policy or Policy()
        self._actuators, self._remediations, self._measure = actuators, remediations, measure
        self._journal, self._records, self._ledger = journal, Records(journal), Ledger(journal)
        self._facts, self._usd_per_hour = facts, usd_per_hour
        self._tally = Tally()
        self._book = Book(self._records, self._tally, max_open=self._policy.max_episodes, on_trial=self._on_trial)
        self._trials: dict[str, Trial] = {}  # by actuator: one experiment per trainer
        self._undisturbed: dict[str, tuple[TrainerIdentity | None, int]] = {}
        self._outbox: list[tuple[Send, Experiment]] = []
        self._stopped = False
        self._configure(responses, caps or {})

    def _configure(self, responses: Iterable[Response], caps: Mapping[str, Mode]) -> None:
        self._responses = {r.name: r for r in responses}
        self._gate = Gate(self._remediations, self._actuators, self._measure, self._ledger, caps, self._policy)
        self._tally.expect({r.remediation for r in self._responses.values()})

    # --- what others ask --------------------------------------------------------------------------------------------

    def exprs(self) -> tuple[str, ...]:
        """Every expression it will evaluate."""
        return tuple(dict.fromkeys(e for r in self._responses.values() for e in (r.verify.expr, *r.verify.abort_if)))

    def spans(self) -> dict[str, int]:
        """For each verified expression, how far back its samples are read, in ms, beside the expression's own range."""
        spans: dict[str, int] = {}
        for r in self._responses.values():
            longest = max(r.verify.baseline_ms, r.verify.window_ms) * self._policy.stretch
            spans[r.verify.expr] = max(spans.get(r.verify.expr, 0), longest)
        return spans

    def episodes(self) -> tuple[Episode, ...]:
        """The open ones, oldest first."""
        return tuple(self._book)

    def experiments(self) -> tuple[Experiment, ...]:
        """Those under way."""
        return tuple(t.experiment for t in self._trials.values())

    def samples(self) -> Iterable[Sample]:
        """For /metrics."""
        breakers = {name: self._ledger.breaker_open(name, r.limits) for name, r in self._responses.items()}
        return self._tally.samples(active=len(self._trials), episodes=len(self._book), breakers=breakers)

    # --- life -------------------------------------------------------------------------------------------------------

    def recover(self, now_ms: int) -> None:
        """Takes over what a former process left: closes what was never sent, reverts or keeps what may be in effect."""
        for x in self._records.unclosed():
            taken = recovered(x, now_ms)
            if taken.verdict is not x.verdict:
                self._concluded(taken, None, now_ms)
            self._records.save(taken, now_ms, **details(taken))
            if taken.phase is not Phase.CLOSED:
                self._trials[taken.actuator] = Trial(taken)
        self._book.take_over(now_ms)
        self._commit(now_ms)

    def stop(self, now_ms: int) -> None:
        """SIGTERM: sends nothing more. An experiment under way is left to its lease, and to `recover`."""
        if self._stopped:
            return
        self._stopped = True
        self._book.interrupt(now_ms)
        self._records.sidecar("interrupted", now_ms, experiments=[x.change_id for x in self.experiments()])
        self._commit(now_ms)

    def replace(self, responses: Iterable[Response], caps: Mapping[str, Mode] | None, now_ms: int) -> None:
        """A reload. Running experiments keep the response they began with; attempts of one that is gone end."""
        self._configure(responses, caps or {})
        self._book.drop_missing(self._responses, now_ms)
        self._commit(now_ms)

    # --- people -----------------------------------------------------------------------------------------------------

    def approve(self, episode: str, response: str, by: str, now_ms: int) -> None:
        """Somebody says yes to the plan that is shown. Raises ResponseError where none waits for that."""
        found, attempt = self._book.awaiting(episode, response)
        attempt.approved_by = by
        self._note_plan(found, attempt, Phase.APPROVED, now_ms)
        self._commit(now_ms)

    def reject(self, episode: str, response: str, by: str, now_ms: int) -> None:
        """Somebody says no. Raises ResponseError where nothing waits for an answer."""
        found, attempt = self._book.awaiting(episode, response)
        self._decide(found, attempt, Refusal("rejected", f"by {by}"), now_ms)
        self._commit(now_ms)

    def reset_breaker(self, response: str, by: str, now_ms: int) -> None:
        """Lets a response act again. Raises ResponseError where it has no ineffective experiments on record."""
        if not self._ledger.reset(response):
            raise ResponseError(f"{response}: no ineffective experiments are on record")
        self._records.sidecar("breaker_reset", now_ms, response=response, by=by)
        self._commit(now_ms)

    # --- alerts and ticks -------------------------------------------------------------------------------------------

    def on_events(self, events: Sequence[AlertEvent], now_ms: int) -> None:
        """Edges of alerts, in order. Raises StateError when they cannot be journalled (they are kept and retried)."""
        if self._stopped:
            return
        self._book.take(events, self._responses.values(), now_ms)
        self._commit(now_ms)

    def tick(self, now_ms: int) -> None:
        """One look at everything open. Raises StateError when the journal cannot be written; then only the way back
        is open."""
        if self._stopped:
            return
        blocked = self._journal.pending  # the disk refuses: what is under way goes on or back, nothing new begins
        facts = self._facts()
        for name in list(self._trials):
            self._advance(name, facts, now_ms)
        sights = {name: self._look(name, actuator, facts, now_ms) for name, actuator in self._actuators.items()}
        standing: dict[str, Refusal | None] = {}
        for episode in () if blocked else self._book.turns(self._policy.per_tick):
            self._consider(episode, sights, standing, now_ms)
        self._commit(now_ms)

    def _look(self, name: str, actuator: Actuator, facts: Mapping[str, float], now_ms: int) -> Sight:
        identity = actuator.identity()
        last, since = self._undisturbed.get(name, (None, now_ms))
        if identity is not None and identity != last:
            last, since = self._undisturbed[name] = identity, now_ms
        return Sight(identity, actuator.knobs(), facts, since)

    # --- episodes ---------------------------------------------------------------------------------------------------

    def _on_trial(self, episode: Episode) -> bool:
        return any(t.experiment.episode == episode.id for t in self._trials.values())

    def _consider(
        self, episode: Episode, sights: Mapping[str, Sight], standing: dict[str, Refusal | None], now_ms: int
    ) -> None:
        """Tries the responses whose turn it is, until one waits or is on trial."""
        for attempt in episode.undecided:
            if self._on_trial(episode):
                return
            response = self._responses[attempt.response]
            name = self._gate.actuator(response)
            if response.name not in standing:
                standing[response.name] = self._gate.standing(response, sights.get(name), self._trials, now_ms)
            refusal = self._try(episode, attempt, response, sights.get(name), standing[response.name], now_ms)
            if refusal is None:
                standing.clear()  # the trainer is busy now
            elif refusal.final:
                self._decide(episode, attempt, refusal, now_ms)
            else:
                self._book.wait(episode, attempt, refusal, now_ms)
                return
        if not self._on_trial(episode):
            self._book.close(episode, "resolved" if episode.resolved else "exhausted", now_ms)

    def _try(
        self,
        episode: Episode,
        attempt: Attempt,
        response: Response,
        sight: Sight | None,
        standing: Refusal | None,
        now_ms: int,
    ) -> Refusal | None:
        observes = self._gate.mode(response) is Mode.OBSERVE
        if sight is None or (standing is not None and not observes):
            return standing
        plan = self._gate.plan(response, episode.alert, sight)
        if observes:
            attempt.plan = plan if isinstance(plan, Plan) else None
            return Refusal("observe", "" if isinstance(plan, Plan) else f"{plan.reason} {plan.detail}".strip())
        if isinstance(plan, Refusal):
            return plan
        self._take_plan(episode, attempt, plan, now_ms)
        if self._gate.needs_approval(response, plan, sight.knobs) and not attempt.approved_by:
            expired = now_ms - attempt.planned_at_ms >= self._policy.approval_ttl_ms
            return Refusal("approval_expired" if expired else "awaiting_approval")
        refusal = self._gate.guards(response, now_ms)
        if refusal is not None:
            return refusal
        baseline = self._gate.baseline(response, episode.alert.active_at_ms, sight, now_ms)
        if isinstance(baseline, Refusal):
            return baseline
        self._begin(episode, attempt, response, plan, baseline, now_ms)
        return None

    def _take_plan(self, episode: Episode, attempt: Attempt, plan: Plan, now_ms: int) -> None:
        if plan.same_as(attempt.plan):
            return
        # An approval was given to the plan that was shown, not to this one.
        attempt.plan, attempt.planned_at_ms, attempt.approved_by = plan, now_ms, ""
        self._note_plan(episode, attempt, Phase.PLANNED, now_ms)

    def _note_plan(self, episode: Episode, attempt: Attempt, phase: Phase, now_ms: int) -> None:
        x = self._experiment(episode, attempt, self._responses[attempt.response], phase, now_ms)
        self._records.save(x, now_ms, **details(x))

    def _decide(self, episode: Episode, attempt: Attempt, refusal: Refusal, now_ms: int) -> None:
        self._book.decide(episode, attempt, refusal, now_ms)

    # --- experiments ------------------------------------------------------------------------------------------------

    def _experiment(
        self, episode: Episode, attempt: Attempt, response: Response, phase: Phase, now_ms: int
    ) -> Experiment:
        plan = attempt.plan
        assert plan is not None
        return Experiment(
            change_id=change_id(episode.id, response.name),
            episode=episode.id,
            response=response.name,
            remediation=response.remediation,
            actuator=plan.change.actuator,
            scope=self._gate.scope(response, plan.job),
            job=plan.job,
            epoch=plan.epoch,
            run_ids=plan.run_ids,
            values=plan.change.values,
            found=plan.found,
            why=plan.change.why,
            phase=phase,
            since_ms=now_ms,
            approved_by=attempt.approved_by,
            messaged_ms=now_ms,
        )

    def _begin(
        self, episode: Episode, attempt: Attempt, response: Response, plan: Plan, baseline: Window, now_ms: int
    ) -> None:
        x = self._experiment(episode, attempt, response, Phase.INTENDED, now_ms)
        by = attempt.approved_by or "mode act"
        self._book.decide(episode, attempt, Refusal("acted"), now_ms, change_id=x.change_id, by=by)
        self._ledger.applied(response.name, x.scope, now_ms)
        self._records.save(x, now_ms, **details(x))
        self._trials[x.actuator] = Trial(x, response, baseline, self._facts().get(OOM_FACT))
        self._send(x, (Send.APPLY,), now_ms)

    def _advance(self, name: str, facts: Mapping[str, float], now_ms: int) -> None:
        trial = self._trials[name]
        old = trial.experiment
        seen = trial.seen(self._actuators.get(name), self._measure, facts, self._policy, now_ms)
        new, messages = step(old, seen, self._policy)
        trial.experiment = new
        if new.verdict is not old.verdict:
            self._concluded(new, seen.judgement, now_ms)
        if new.phase is not old.phase:
            said = {"actuator_says": seen.outcome.reason} if seen.outcome.reason else {}
            self._records.save(new, now_ms, **details(new), **said)
        if new.phase is Phase.CLOSED:
            del self._trials[name]
            self._undisturbed[name] = (seen.identity, now_ms)
        self._send(new, messages, now_ms)

    def _concluded(self, x: Experiment, judgement: Judgement | None, now_ms: int) -> None:
        assert x.verdict is not None
        usd = self._worth(judgement)
        self._records.verdict(x, judgement, usd, now_ms)
        self._ledger.ended(x.response, x.scope, x.verdict, now_ms)
        self._tally.verdict(x.remediation, x.verdict)
        if x.reason == "oom_kill":
            self._ledger.quarantine(x.job, x.values)
            self._records.sidecar("quarantined", now_ms, job=x.job, knobs=sorted(x.values))

    def _worth(self, judgement: Judgement | None) -> float | None:
        """What the gain is worth: the hours of before that an hour does now, less one, at the pod's price."""
        price = self._usd_per_hour()
        if price is None or judgement is None or judgement.estimate is None:
            return None
        return price * judgement.estimate.speedup

    # --- writing and sending ----------------------------------------------------------------------------------------

    def _send(self, x: Experiment, messages: Iterable[Send], now_ms: int) -> None:
        for message in messages:
            self._records.command(x, message, now_ms)
            self._outbox.append((message, x))

    def _commit(self, now_ms: int) -> None:
        outbox, self._outbox = self._outbox, []
        try:
            self._journal.commit()
        except StateError:
            # The way back is open even without a journal: nothing but found values can come of it.
            self._deliver([m for m in outbox if m[0] is Send.REVERT], now_ms)
            raise
        self._deliver(outbox, now_ms)
        self._journal.commit()
        self._journal.publish()

    def _deliver(self, messages: Iterable[tuple[Send, Experiment]], now_ms: int) -> None:
        for message, x in messages:
            try:
                if x.actuator in self._actuators:
                    self._tell(self._actuators[x.actuator], message, x)
            except SpikewatchError as e:
                self._records.failed(x, message, str(e), now_ms)

    def _tell(self, actuator: Actuator, message: Send, x: Experiment) -> None:
        lease = self._policy.lease_ms
        calls: dict[Send, Callable[[], Any]] = {
            Send.APPLY: lambda: actuator.apply(Order(x.change_id, x.values, x.found, lease)),
            Send.RENEW: lambda: actuator.renew(x.change_id, lease),
            Send.KEEP: lambda: actuator.keep(x.change_id),
            Send.REVERT: lambda: actuator.revert(x.change_id),
        }
        calls[message]()

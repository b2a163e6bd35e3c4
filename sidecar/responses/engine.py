"""The responder: alerts in, orders to actuators out, everything on record. The part that ties the room together.

Each call decides first, then commits what it decided, and only then sends. If the disk refuses, nothing new is sent
and no lease is renewed, so that the trainer falls back to the values it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sidecar.errors import ResponseError, StateError
from sidecar.hooks import Actuator, Remediation
from sidecar.model import Alert, AlertEvent, Sample, Skip
from sidecar.plugins import details
from sidecar.responses.book import Book
from sidecar.responses.episode import Attempt, Episode, Plan, Refusal, change_id
from sidecar.responses.experiment import Experiment, Phase, Result, Send
from sidecar.responses.gate import Gate, Sight
from sidecar.responses.journal import Journal
from sidecar.responses.killswitch import Halt
from sidecar.responses.limits import Ledger
from sidecar.responses.measure import Measure, OneTick
from sidecar.responses.records import Records
from sidecar.responses.records import details as phase_details
from sidecar.responses.response import Mode, Policy, Response
from sidecar.responses.statistics import Judgement, Level, Window
from sidecar.responses.tally import Tally
from sidecar.responses.trial import OOM_FACT
from sidecar.responses.trials import Trials

BATCH = 500
"""Edges, or episodes, between two commits: a storm is written in pieces, and does not pile up in memory."""


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
        halted: Callable[[], Halt | None] = lambda: None,
        silenced: Callable[[Alert], str] = lambda alert: "",
        pod: str = "",
    ) -> None:
        """`facts` feeds the remediations' View; `usd_per_hour` is what the pod costs, None where not known. `halted`
        is the kill switch, `silenced` gives the id of a silence that holds for an alert, `pod` names whose limits
        count where a response's scope is the pod.
        """
        self._policy = policy or Policy()
        self._actuators, self._remediations, self._measure = actuators, remediations, measure
        self._journal, self._records, self._ledger = journal, Records(journal), Ledger(journal)
        self._facts, self._usd_per_hour = facts, usd_per_hour
        self._halted, self._silenced, self._pod = halted, silenced, pod
        self._was_halted = False
        self._tally = Tally()
        self._trials = Trials(
            actuators,
            self._records,
            self._ledger,
            self._tally,
            self._policy,
            worth=lambda x, judgement: self._worth(judgement),
            halted=halted,
        )
        self._book = Book(
            self._records, self._tally, max_open=self._policy.max_episodes, on_trial=lambda e: self._trials.of(e.id)
        )
        self._stopped = False
        self._configure(responses, caps or {})

    def _configure(self, responses: Iterable[Response], caps: Mapping[str, Mode]) -> None:
        self._responses = {r.name: r for r in responses}
        self._gate = Gate(self._remediations, self._actuators, self._ledger, caps, self._policy, self._pod)
        used = {r.remediation for r in self._responses.values()}
        self._tally.expect(used, _skips(self._remediations[name] for name in used if name in self._remediations))

    # --- what others ask --------------------------------------------------------------------------------------------

    def exprs(self) -> tuple[str, ...]:
        """Every expression it will evaluate."""
        return tuple(dict.fromkeys(e for r in self._responses.values() for e in (r.verify.expr, *r.verify.watched)))

    def spans(self) -> dict[str, int]:
        """For each verified or guarded expression, how far back it is read, in ms, beside its own range."""
        spans: dict[str, int] = {}
        for r in self._responses.values():
            longest = max(r.verify.baseline_ms, r.verify.window_ms) * self._policy.stretch
            for expr in (r.verify.expr, *(guard.expr for guard in r.verify.guards)):
                spans[expr] = max(spans.get(expr, 0), longest)
        return spans

    def responses(self) -> tuple[tuple[Response, Mode], ...]:
        """Every response with the mode that the platform's caps leave it, in the files' order."""
        return tuple((r, self._gate.mode(r)) for r in self._responses.values())

    def episodes(self) -> tuple[Episode, ...]:
        """The open ones, oldest first."""
        return tuple(self._book)

    def experiments(self) -> tuple[Experiment, ...]:
        """Those under way."""
        return tuple(self._trials)

    def waiting(self) -> tuple[tuple[Episode, Attempt, Response], ...]:
        """Every plan that waits for an approval, oldest episode first."""
        return tuple((e, a, self._responses[a.response]) for e, a in self._book.waiting_for_approval())

    def expires_ms(self, response: Response) -> int:
        """How long a plan waits for an answer, and an approval counts."""
        own = response.approval.expires_ms
        return self._policy.approval_ttl_ms if own is None else own

    def decision(self, episode: str, response: str) -> str:
        """The reason of a decision that has been taken; empty where there is none."""
        return self._records.decision(episode, response)

    def breakers(self, response: str) -> Mapping[str, int]:
        """By pod, job or fleet: how many experiments in a row did not help."""
        return self._ledger.ineffective(response)

    def samples(self) -> Iterable[Sample]:
        """For /metrics."""
        breakers = {name: self._ledger.breaker_open(name, r.limits) for name, r in self._responses.items()}
        return self._tally.samples(
            active=len(self._trials),
            episodes=len(self._book),
            breakers=breakers,
            approvals=self._book.unanswered,
            halted=self._halted() is not None,
            lost={"entry": self._journal.dropped, "line": self._journal.unwritten_lines},
        )

    # --- life -------------------------------------------------------------------------------------------------------

    def recover(self, now_ms: int) -> None:
        """Takes over what a former process left: closes what was never sent, reverts or keeps what may be in effect."""
        self._trials.take_over(self._facts().get(OOM_FACT), now_ms)
        self._in_batches(self._book.take_over(now_ms), now_ms)

    def stop(self, now_ms: int) -> None:
        """SIGTERM: sends nothing more. An experiment under way is left to its lease, and to `recover`."""
        if self._stopped:
            return
        self._stopped = True
        self._in_batches(self._book.interrupt(now_ms), now_ms)
        self._records.sidecar("interrupted", now_ms, experiments=[x.change_id for x in self.experiments()])
        self._commit(now_ms)

    def replace(self, responses: Iterable[Response], caps: Mapping[str, Mode] | None, now_ms: int) -> None:
        """A reload. Running experiments keep the response they began with; attempts of one that is gone end."""
        self._configure(responses, caps or {})
        self._in_batches(self._book.drop_missing(self._responses, now_ms), now_ms)

    # --- people -----------------------------------------------------------------------------------------------------

    def approve(self, episode: str, response: str, by: str, now_ms: int, *, valid_ms: int | None = None) -> None:
        """Somebody says yes to the plan that is shown; the yes counts for `valid_ms`, by default as long as a plan
        waits for one. Raises ResponseError where none waits for that.
        """
        found, attempt = self._book.awaiting(episode, response)
        attempt.approved_by = by
        attempt.approved_until_ms = now_ms + (valid_ms or self.expires_ms(self._responses[response]))
        self._note_plan(found, attempt, Phase.APPROVED, now_ms, until_ms=attempt.approved_until_ms)
        self._commit(now_ms)

    def reject(self, episode: str, response: str, by: str, now_ms: int) -> None:
        """Somebody says no. Raises ResponseError where nothing waits for an answer."""
        found, attempt = self._book.awaiting(episode, response)
        self._book.decide(found, attempt, Refusal("rejected", f"by {by}"), now_ms)
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
        self._in_batches(self._taken(events, now_ms), now_ms, size=1)

    def _taken(self, events: Sequence[AlertEvent], now_ms: int) -> Iterator[None]:
        for i in range(0, len(events), BATCH):
            self._book.take(events[i : i + BATCH], self._responses.values(), now_ms)
            yield

    def tick(self, now_ms: int) -> None:
        """One look at everything open. Raises StateError when the journal cannot be written; then only the way back
        is open."""
        if self._stopped:
            return
        blocked = self._journal.pending  # the disk refuses: what is under way goes on or back, nothing new begins
        facts, measure, halt = self._facts(), OneTick(self._measure), self._halt(now_ms)
        for x in self._trials.advance(measure, facts, halt, now_ms):
            episode = self._book.get(x.episode)
            if episode is not None and x.result is Result.KEPT:
                episode.helped_at_ms = now_ms
        sights = {name: self._look(actuator, facts, now_ms) for name, actuator in self._actuators.items()}
        turn = _Turn(sights, measure, halt, now_ms)
        for episode in () if blocked else self._book.turns(self._policy.per_tick):
            self._consider(episode, turn)
        self._commit(now_ms)

    def _halt(self, now_ms: int) -> Halt | None:
        halt = self._halted()
        if (halt is not None) != self._was_halted:
            self._was_halted = halt is not None
            said = {"on": True, "file": halt.file, "by": halt.by, "reason": halt.reason} if halt else {"on": False}
            self._records.sidecar("kill_switch", now_ms, **said)
        return halt

    def _look(self, actuator: Actuator, facts: Mapping[str, float], now_ms: int) -> Sight:
        try:
            identity, knobs = actuator.identity(), actuator.knobs()
        except Exception:  # noqa: BLE001  foreign code that fails is an actuator that is not there
            return Sight(None, {}, facts, now_ms)
        since = now_ms if identity is None else self._trials.undisturbed_since(identity, now_ms)
        return Sight(identity, knobs, facts, since)

    # --- episodes ---------------------------------------------------------------------------------------------------

    def _consider(self, episode: Episode, turn: _Turn) -> None:
        """Tries the responses whose turn it is, until one waits or is on trial."""
        for attempt in episode.undecided:
            if self._trials.of(episode.id):
                return
            refusal = self._try(episode, attempt, self._responses[attempt.response], turn)
            if refusal is None:
                turn.standing.clear()  # the trainer is busy now
            elif refusal.final:
                self._book.decide(episode, attempt, refusal, turn.now_ms)
            else:
                self._book.wait(episode, attempt, refusal, turn.now_ms)
                return
        if not self._trials.of(episode.id):
            self._book.close(episode, "resolved" if episode.resolved else "exhausted", turn.now_ms)

    def _standing(self, response: Response, sight: Sight | None, turn: _Turn) -> Refusal | None:
        if response.name not in turn.standing:
            busy = self._trials.busy()
            turn.standing[response.name] = self._gate.standing(response, sight, busy, turn.halt, turn.now_ms)
        return turn.standing[response.name]

    def _try(self, episode: Episode, attempt: Attempt, response: Response, turn: _Turn) -> Refusal | None:
        now_ms, sight = turn.now_ms, turn.sights.get(self._gate.actuator(response))
        if silence := self._silenced(episode.alert):
            return Refusal("silenced", silence)
        observes = self._gate.mode(response) is Mode.OBSERVE
        refusal = self._standing(response, sight, turn)
        if sight is None or (refusal is not None and not observes):
            return refusal
        plan = self._gate.plan(response, episode.alert, sight)
        if observes:
            attempt.plan = plan if isinstance(plan, Plan) else None
            return Refusal("observe", "" if isinstance(plan, Plan) else f"{plan.reason} {plan.detail}".strip())
        if isinstance(plan, Refusal):
            return plan
        if episode.helped_at_ms:
            until = episode.helped_at_ms + self._gate.alert_range_ms(episode.alert, turn.measure)
            if now_ms < until:
                return Refusal("alert_settling", f"for {until - now_ms} ms more")
        self._take_plan(episode, attempt, plan, now_ms)
        refusal = self._unapproved(attempt, response, plan, sight, now_ms)
        if refusal is None:
            refusal = self._gate.guards(response, turn.measure, now_ms)
        if refusal is not None:
            return refusal
        baseline = self._gate.baseline(response, episode.alert.active_at_ms, sight, turn.measure, now_ms)
        if isinstance(baseline, Refusal):
            return baseline
        levels = self._gate.levels(response, baseline, turn.measure)
        if isinstance(levels, Refusal):
            return levels
        self._begin(episode, attempt, response, baseline, levels, now_ms)
        return None

    def _unapproved(
        self, attempt: Attempt, response: Response, plan: Plan, sight: Sight, now_ms: int
    ) -> Refusal | None:
        if not self._gate.needs_approval(response, plan, sight.knobs):
            return None
        if attempt.approved_by:
            return None if now_ms < attempt.approved_until_ms else Refusal("approval_expired", attempt.approved_by)
        expired = now_ms - attempt.planned_at_ms >= self.expires_ms(response)
        return Refusal("approval_expired" if expired else "awaiting_approval", response.approval.owner)

    def _take_plan(self, episode: Episode, attempt: Attempt, plan: Plan, now_ms: int) -> None:
        if plan.same_as(attempt.plan):
            return
        # An approval was given to the plan that was shown, not to this one.
        attempt.plan, attempt.planned_at_ms, attempt.approved_by = plan, now_ms, ""
        self._note_plan(episode, attempt, Phase.PLANNED, now_ms)

    def _note_plan(self, episode: Episode, attempt: Attempt, phase: Phase, now_ms: int, **data: int) -> None:
        x = self._experiment(episode, attempt, self._responses[attempt.response], phase, now_ms)
        self._records.save(x, now_ms, **phase_details(x), **data)

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
            oom_kills=self._facts().get(OOM_FACT) if phase is Phase.INTENDED else None,
        )

    def _begin(
        self,
        episode: Episode,
        attempt: Attempt,
        response: Response,
        baseline: Window,
        levels: Mapping[str, Level],
        now_ms: int,
    ) -> None:
        x = self._experiment(episode, attempt, response, Phase.INTENDED, now_ms)
        by = attempt.approved_by or "mode act"
        self._book.decide(episode, attempt, Refusal("acted"), now_ms, change_id=x.change_id, by=by)
        self._trials.begin(x, response, baseline, levels, now_ms)

    def _worth(self, judgement: Judgement | None) -> float | None:
        """What the gain is worth: the hours of before that an hour does now, less one, at the pod's price."""
        price = self._usd_per_hour()
        if price is None or judgement is None or judgement.estimate is None:
            return None
        return price * judgement.estimate.speedup

    # --- writing and sending ----------------------------------------------------------------------------------------

    def _in_batches(self, work: Iterable[None], now_ms: int, size: int = BATCH) -> None:
        """Commits after every so many pieces of work. Where the disk refuses, all of it is done first."""
        refused: StateError | None = None
        number = 0
        for number, _ in enumerate(work, 1):
            if number % size == 0:
                try:
                    self._commit(now_ms)
                except StateError as e:
                    refused = e
        if number == 0 or number % size:
            self._commit(now_ms)
        if refused is not None and self._journal.pending:
            raise refused

    def _commit(self, now_ms: int) -> None:
        outbox = self._trials.take_outbox()
        try:
            self._journal.commit()
        except StateError:
            # The way back is open even without a journal: nothing but found values can come of it.
            self._trials.deliver([m for m in outbox if m[0] is Send.REVERT], now_ms)
            raise
        self._trials.deliver(outbox, now_ms)
        self._journal.commit()
        self._journal.publish()


def _skips(remediations: Iterable[Remediation]) -> set[str]:
    """The reasons that these have for doing nothing, as far as their cases show them."""
    answers = [case.answer for plugin in remediations for case in details(plugin).cases]
    return {answer.reason for answer in answers if isinstance(answer, Skip)}


class _Turn:
    """What one tick looks at, and the refusals it has found to hold for a response whatever the alert."""

    __slots__ = ("halt", "measure", "now_ms", "sights", "standing")

    def __init__(self, sights: Mapping[str, Sight], measure: Measure, halt: Halt | None, now_ms: int) -> None:
        self.sights, self.measure, self.halt, self.now_ms = sights, measure, halt, now_ms
        self.standing: dict[str, Refusal | None] = {}

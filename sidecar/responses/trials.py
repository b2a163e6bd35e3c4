"""The experiments under way: each is moved by what a tick sees of it, and what it wants to say is collected.

One at a time for each trainer (job and rendezvous epoch), whichever actuators they use: two changes of one trainer
at once could not be told apart by any metric. Trainers do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sidecar.errors import SpikewatchError
from sidecar.hooks import Actuator
from sidecar.model import ChangeState, Order, Outcome, TrainerIdentity
from sidecar.responses.experiment import UNVERIFIED, Experiment, Phase, Seen, Send, recovered, step
from sidecar.responses.killswitch import Halt
from sidecar.responses.limits import Ledger
from sidecar.responses.measure import Measure
from sidecar.responses.records import Records, details
from sidecar.responses.response import Policy, Response
from sidecar.responses.statistics import Judgement, Level, Window
from sidecar.responses.tally import Tally
from sidecar.responses.trial import OOM_FACT, Trial

Worth = Callable[[Experiment, Judgement | None], float | None]
"""What the verdict of an experiment is worth, in US$ an hour; None where that is not known."""

_Undisturbed = tuple[tuple[str, ...], int]  # of these processes, since then


def unit_of(who: TrainerIdentity | Experiment) -> str:
    """The trainer: what one experiment at a time is for."""
    return f"{who.job}/{who.epoch}"


class Trials:
    """Messages are collected while a tick decides, and `deliver`ed once it is on disk."""

    def __init__(
        self,
        actuators: Mapping[str, Actuator],
        records: Records,
        ledger: Ledger,
        tally: Tally,
        policy: Policy,
        *,
        worth: Worth,
        halted: Callable[[], Halt | None],
    ) -> None:
        """`halted` is asked again before each message leaves."""
        self._actuators, self._records, self._ledger, self._tally = actuators, records, ledger, tally
        self._policy, self._worth, self._halted = policy, worth, halted
        self._open: dict[str, Trial] = {}
        self._undisturbed: dict[str, _Undisturbed] = {}
        self._outbox: list[tuple[Send, Experiment]] = []

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Experiment]:
        """Oldest first."""
        return iter([t.experiment for t in self._open.values()])

    def busy(self) -> frozenset[str]:
        """The trainers that are being experimented with."""
        return frozenset(unit_of(x) for x in self)

    def of(self, episode: str) -> bool:
        """Whether an experiment of that episode is under way."""
        return any(x.episode == episode for x in self)

    def undisturbed_since(self, identity: TrainerIdentity, now_ms: int) -> int:
        """Since when this trainer has run without a restart or a change of ours."""
        unit = unit_of(identity)
        runs, since = self._undisturbed.get(unit, ((), now_ms))
        if runs != identity.run_ids:
            since = now_ms
            self._undisturbed.pop(unit, None)
            self._undisturbed[unit] = identity.run_ids, since
            while len(self._undisturbed) > 64:  # trainers that were here once
                del self._undisturbed[next(iter(self._undisturbed))]
        return since

    # --- life -------------------------------------------------------------------------------------------------------

    def take_over(self, oom_kills: float | None, now_ms: int) -> None:
        """What a former process left: closes what was never sent, reverts or keeps what may be in effect."""
        for x in self._records.unclosed():
            taken = recovered(x, now_ms)
            trial = Trial(taken, oom_kills=x.oom_kills)
            if trial.killed({} if oom_kills is None else {OOM_FACT: oom_kills}):
                if taken.verdict is not x.verdict:
                    taken = trial.experiment = replace(taken, reason="oom_kill")
                self._quarantine(trial, now_ms)
            if taken.verdict is not x.verdict:
                trial.experiment = taken
                self._concluded(trial, Seen(now_ms, None, Outcome(ChangeState.UNKNOWN)))
            self._records.save(taken, now_ms, **details(taken))
            if taken.phase is not Phase.CLOSED:
                self._open[taken.change_id] = trial

    def begin(
        self, x: Experiment, response: Response, baseline: Window, levels: Mapping[str, Level], now_ms: int
    ) -> None:
        """An order goes out, once this is on disk."""
        self._ledger.applied(response.name, x.scope, now_ms)
        self._records.save(x, now_ms, **details(x))
        self._open[x.change_id] = Trial(x, response, baseline, x.oom_kills, levels)
        self._send(x, (Send.APPLY,), now_ms)

    def advance(
        self, measure: Measure, facts: Mapping[str, float], halt: Halt | None, now_ms: int
    ) -> Iterable[Experiment]:
        """Moves every experiment by one tick; returns those that ended. Nothing is said while the switch is on."""
        ended = []
        for key, trial in list(self._open.items()):
            old = trial.experiment
            seen = trial.seen(self._actuators.get(old.actuator), measure, facts, self._policy, now_ms)
            if halt is not None and old.phase in UNVERIFIED:
                seen = replace(seen, broken=seen.broken or "kill_switch", judgement=None)
            new, messages = step(old, seen, self._policy)
            trial.experiment = new
            if trial.killed(facts):
                self._quarantine(trial, now_ms)
            if new.verdict is not old.verdict:
                self._concluded(trial, seen)
            if new.phase is not old.phase:
                said = {"actuator_says": seen.outcome.reason} if seen.outcome.reason else {}
                self._records.save(new, now_ms, **details(new), **said)
            if new.phase is Phase.CLOSED:
                del self._open[key]
                self._undisturbed[unit_of(new)] = new.run_ids, now_ms
                ended.append(new)
            self._send(new, () if halt is not None else messages, now_ms)
        return ended

    def _concluded(self, trial: Trial, seen: Seen) -> None:
        x = trial.experiment
        assert x.verdict is not None
        worth = self._worth(x, seen.judgement)
        self._records.verdict(x, seen.judgement, worth, seen.now_ms, detail=seen.detail, baseline=trial.baseline)
        self._ledger.ended(x.response, x.scope, x.verdict, seen.now_ms)
        self._tally.verdict(x.remediation, x.verdict)

    def _quarantine(self, trial: Trial, now_ms: int) -> None:
        x = trial.experiment
        trial.oom_kills = None  # once is enough
        self._ledger.quarantine(x.job, x.values)
        self._records.sidecar("quarantined", now_ms, job=x.job, knobs=sorted(x.values), change_id=x.change_id)

    # --- messages ---------------------------------------------------------------------------------------------------

    def _send(self, x: Experiment, messages: Iterable[Send], now_ms: int) -> None:
        for message in messages:
            self._records.command(x, message, now_ms)
            self._outbox.append((message, x))

    def take_outbox(self) -> list[tuple[Send, Experiment]]:
        """What is to be said, once; empties the outbox."""
        outbox, self._outbox = self._outbox, []
        return outbox

    def deliver(self, messages: Iterable[tuple[Send, Experiment]], now_ms: int) -> None:
        """Sends. What cannot leave is on record; the state machine will see that it had no effect."""
        for message, x in messages:
            try:
                if (halt := self._halted()) is not None:
                    self._records.failed(x, message, f"the kill switch is on: {halt.file}", now_ms)
                elif x.actuator in self._actuators:
                    self._tell(self._actuators[x.actuator], message, x)
            except SpikewatchError as e:
                self._records.failed(x, message, str(e), now_ms)
            except Exception as e:  # noqa: BLE001  an actuator may be foreign code: its bug is a message that got lost
                self._records.failed(x, message, f"{type(e).__name__}: {e}", now_ms)

    def _tell(self, actuator: Actuator, message: Send, x: Experiment) -> None:
        lease = self._policy.lease_ms
        calls: dict[Send, Callable[[], Any]] = {
            Send.APPLY: lambda: actuator.apply(Order(x.change_id, x.values, x.found, lease)),
            Send.RENEW: lambda: actuator.renew(x.change_id, lease),
            Send.KEEP: lambda: actuator.keep(x.change_id),
            Send.REVERT: lambda: actuator.revert(x.change_id),
        }
        calls[message]()

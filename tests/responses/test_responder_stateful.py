"""Whatever happens in whatever order, the promises hold: a model that crashes, loses, repeats, jumps and reloads."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sidecar.errors import ResponseError, StateError
from sidecar.model import Change
from sidecar.responses.experiment import SENT
from sidecar.responses.killswitch import Halt
from sidecar.responses.response import Limits, Mode

FOUND, WANTED = 2, 4
STEPS = 30
SPEEDS = {"helps": lambda w: 100.0 * w, "hurts": lambda w: 400.0 / w, "does nothing": lambda w: 100.0}


class Crash(BaseException):
    """SIGKILL in the middle of something."""


class Sidecar(RuleBasedStateMachine):
    """`kit` is set by the test that runs it; `seen` counts what happened over all lives."""

    kit = None
    seen: Counter[str] = Counter()

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.world = self.kit.World(str(self.folder / "state.db"))
        self.world.responses = [self.made("first"), self.made("second", mode=Mode.SUGGEST)]
        self.firing = {}  # pod -> alert
        self.past = []  # alerts that have been, with the time of their end
        self.by_hand = {FOUND}
        self.ended = set()  # episodes whose alert had resolved
        self.wrongly_sent = []  # for a resolved or silenced alert, before its commit, against the kill switch
        self.twice = False  # whether messages arrive twice
        self.crash_in = -1
        self.watch(self.world.trainer)
        self.start()

    def made(self, name, **changes):
        return self.kit.response(name, limits=Limits("job", 0, 1000, 1000), **changes)

    def watch(self, trainer):
        def watched(message, send):
            def sent(first, *more):
                change = getattr(first, "change_id", first)
                episode = change.split(".")[0]
                if self.world.halt is not None or self.world.db.connection.in_transaction:
                    self.wrongly_sent.append((message, change))
                if message == "apply" and (episode in self.ended or self.silenced(episode)):
                    self.wrongly_sent.append((message, change))
                for _ in range(1 + self.twice):
                    send(first, *more)

            return sent

        for message in ("apply", "renew", "keep", "revert"):
            setattr(trainer, message, watched(message, getattr(trainer, message)))

    def silenced(self, episode):
        row = self.world.db.connection.execute("SELECT alert FROM episodes WHERE id = ?", (episode,)).fetchone()
        return json.loads(row["alert"])["labels"].get("pod") in self.world.silences

    def start(self):
        if hasattr(self.world, "db"):
            self.world.db.close()
        self.crash_in = -1
        self.world.start()
        self.seen["sidecars"] += 1
        commit = self.world.journal.commit

        def doomed():
            if self.world.journal.pending and self.crash_in >= 0:
                self.crash_in -= 1
                if self.crash_in < 0:
                    raise Crash
            commit()

        self.world.journal.commit = doomed

    def survive(self, work):
        try:
            work()
        except Crash:
            self.start()

    def episode_of(self, subject):
        rows = self.world.db.connection.execute("SELECT id, alert FROM episodes").fetchall()
        return {
            row["id"]
            for row in rows
            if row["id"].endswith(f"-{subject.fired_at_ms}")
            and json.loads(row["alert"])["labels"] == dict(subject.labels)
        }

    # Chance alone would rarely bring an experiment far enough for a misfortune to matter.
    @rule(seconds=st.integers(24, 60), speed=st.sampled_from(["helps", "helps", *SPEEDS]))
    def everything_goes_well_for_a_while(self, seconds, speed):
        self.all_is_well(speed)
        self.survive(lambda: self.world.run(seconds))

    @rule(phase=st.sampled_from(sorted(p.value for p in SENT)), speed=st.sampled_from(["helps", "hurts"]))
    def an_experiment_gets_that_far(self, phase, speed):
        self.all_is_well(speed)
        here = self.world.responder
        self.survive(lambda: self.world.run(90, lambda: phase in [x.phase.value for x in here.experiments()]))

    def all_is_well(self, speed):
        world = self.world
        trainer, measure = world.trainer, world.measure
        trainer.lose, trainer.broken, trainer.delay_ms, trainer.refuse = set(), False, 0, ""
        world.halt, self.twice = None, False
        world.silences.clear()
        measure.broken, measure.unseen, measure.elements = False, False, 1
        world.speed, world.stall, world.alive, world.remediation.plans = SPEEDS[speed], 1, True, None
        trainer.attach()
        if trainer.values()["workers"] == WANTED and not trainer.open_changes():
            self.somebody_sets_the_knob(3)
        if len(world.responses) != 2 or world.responses[0].mode is not Mode.ACT or world.caps:
            world.responses, world.caps = [self.made("first"), self.made("second", mode=Mode.SUGGEST)], {}
            world.responder.replace(world.responses, {}, world.now)
        if not world.responder.episodes():
            self.firing.clear()
            self.an_alert_fires("a")
            self.an_alert_fires("b")

    # --- time and alerts ----------------------------------------------------------------------------------------

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds):
        self.survive(lambda: self.world.run(seconds))

    @rule(seconds=st.integers(20, 7200))
    def the_process_is_suspended(self, seconds):
        self.world.clock.advance(seconds * 1000)
        self.survive(lambda: self.world.run(1))

    @rule(pod=st.sampled_from("ab"))
    def an_alert_fires(self, pod):
        if pod not in self.firing:
            self.firing[pod] = self.kit.alert(active_at_ms=self.world.now, fired_at_ms=self.world.now, pod=pod)
        self.send(self.kit.firing(self.firing[pod], self.world.now))  # again where it fires already: a duplicate

    @precondition(lambda self: self.firing)
    @rule(data=st.data())
    def an_alert_resolves(self, data):
        pod = data.draw(st.sampled_from(sorted(self.firing)))
        subject = self.firing.pop(pod)
        self.past.append((subject, self.world.now))
        self.send(self.kit.resolved(subject, self.world.now))
        self.ended |= self.episode_of(subject)

    @precondition(lambda self: self.past)
    @rule(data=st.data(), fires=st.booleans())
    def an_old_message_comes_again(self, data, fires):
        subject, at_ms = data.draw(st.sampled_from(self.past))
        self.send(self.kit.firing(subject) if fires else self.kit.resolved(subject, at_ms))
        self.ended |= self.episode_of(subject)

    def send(self, event):
        self.survive(lambda: self.world.responder.on_events([event], self.world.now))

    # --- the sidecar ----------------------------------------------------------------------------------------------

    @rule()
    def the_sidecar_is_killed(self):
        self.start()

    @rule(seconds=st.integers(-7200, 7200))
    def the_sidecar_is_killed_and_comes_back_with_another_wall_clock(self, seconds):
        self.world.skew += seconds * 1000
        self.world.measure.samples.clear()  # the store is in memory
        self.world.measure.step_times.clear()
        self.start()

    @rule()
    def the_sidecar_is_killed_and_told_of_the_alerts_it_had(self):
        self.start()
        before = self.world.db.connection.execute("SELECT count(*) FROM episodes").fetchone()[0]
        for subject in self.firing.values():
            self.send(self.kit.firing(subject, self.world.now, restored=True))
        assert self.world.db.connection.execute("SELECT count(*) FROM episodes").fetchone()[0] == before

    @rule(on=st.booleans())
    def the_kill_switch_is_turned(self, on):
        self.world.halt = Halt("kill-switch", "ada") if on else None

    @rule(pods=st.sets(st.sampled_from("ab")))
    def alerts_are_silenced(self, pods):
        self.world.silences = {pod: "s1" for pod in pods}

    @rule(commits=st.integers(0, 4))
    def the_sidecar_is_killed_in_the_middle_of_something(self, commits):
        self.crash_in = commits
        self.survive(lambda: self.world.run(40))
        self.crash_in = -1

    @rule()
    def the_sidecar_is_stopped_and_started(self):
        self.world.responder.stop(self.world.now)
        self.start()

    @rule(first=st.sampled_from(Mode), second=st.booleans(), cap=st.sampled_from([None, *Mode]))
    def the_files_are_reloaded(self, first, second, cap):
        self.world.responses = [self.made("first", mode=first)] + ([self.made("second")] if second else [])
        self.world.caps = {} if cap is None else {"set_workers": cap}
        self.world.responder.replace(self.world.responses, self.world.caps, self.world.now)

    @rule(yes=st.booleans(), valid_ms=st.sampled_from([None, 1, 30_000]))
    def somebody_answers_a_suggestion(self, yes, valid_ms):
        for episode in self.world.responder.episodes():
            for attempt in episode.undecided:
                responder = self.world.responder
                try:
                    if yes:
                        responder.approve(episode.id, attempt.response, "ada", self.world.now, valid_ms=valid_ms)
                    else:
                        responder.reject(episode.id, attempt.response, "ada", self.world.now)
                except ResponseError:
                    assert attempt.waits_for != "awaiting_approval"
                    assert not attempt.approved_by

    @rule(seconds=st.integers(1, 40))
    def the_disk_is_full_for_a_while(self, seconds):
        self.world.db.connection.execute("PRAGMA query_only=1")
        for _ in range(seconds):
            self.world.pass_second()
            try:
                self.world.responder.tick(self.world.now)
            except StateError:
                continue
        self.world.db.connection.execute("PRAGMA query_only=0")

    # --- the trainer ------------------------------------------------------------------------------------------------

    @rule()
    def the_trainer_restarts(self):
        self.world.trainer.restart_trainer()

    @rule()
    def the_trainer_is_away(self):
        self.world.trainer.detach()

    @rule(after=st.integers(0, 20_000))
    def the_trainer_comes_back(self, after):
        self.world.trainer.attach(after)

    @rule(lost=st.sets(st.sampled_from(["apply", "renew", "keep", "revert"])), broken=st.booleans())
    def messages_get_lost(self, lost, broken):
        self.world.trainer.lose, self.world.trainer.broken = lost, broken

    @rule(twice=st.booleans())
    def messages_arrive_twice(self, twice):
        self.twice = twice

    @rule()
    def something_is_killed_for_memory(self):
        self.world.facts["oom_kills_total"] = self.world.facts.get("oom_kills_total", 0) + 1

    @rule(delay=st.sampled_from([0, 3000, 40_000]), refuse=st.sampled_from(["", "unsupported"]))
    def the_trainer_answers_differently(self, delay, refuse):
        self.world.trainer.delay_ms, self.world.trainer.refuse = delay, refuse

    @rule(value=st.sampled_from([3, 6]))
    def somebody_sets_the_knob(self, value):
        self.world.trainer.set_by_hand("workers", value)
        self.by_hand.add(value)

    @rule(
        speed=st.sampled_from(sorted(SPEEDS)),
        stall=st.sampled_from([1, 1, 5]),
        alive=st.sampled_from([True, True, False]),
    )
    def the_training_changes(self, speed, stall, alive):
        self.world.speed, self.world.stall, self.world.alive = SPEEDS[speed], stall, alive

    @rule(broken=st.booleans(), unseen=st.booleans(), elements=st.sampled_from([1, 1, 2]))
    def the_measurements_change(self, broken, unseen, elements):
        measure = self.world.measure
        measure.broken, measure.unseen, measure.elements = broken and unseen, unseen, elements

    @rule(to=st.sampled_from([4, 4, 4, 99]))
    def the_plan_changes(self, to):
        self.world.remediation.plans = Change("trainer", {"workers": to})

    # --- the promises -----------------------------------------------------------------------------------------------

    @invariant()
    def no_order_for_a_resolved_or_silenced_alert_none_before_its_commit_and_nothing_against_the_kill_switch(self):
        assert self.wrongly_sent == []

    @invariant()
    def at_most_one_experiment(self):
        rows = self.world.db.connection.execute("SELECT phase FROM experiments").fetchall()
        assert sum(row["phase"] in {p.value for p in SENT} for row in rows) <= 1

    @invariant()
    def nothing_out_of_bounds(self):
        assert all(0 <= values["workers"] <= 16 for values in self.world.trainer.history)

    @invariant()
    def helped_rests_on_enough_samples_and_steps(self):
        for verdict in self.world.kinds("verdict"):
            if verdict["verdict"] == "helped":
                for window in (verdict["estimate"]["baseline"], verdict["estimate"]["after"]):
                    assert window["bins"] >= self.world.policy.min_samples
                    assert window["steps"] >= self.world.policy.min_steps

    def teardown(self):
        try:
            self.end_well()
        finally:
            self.world.db.close()
            shutil.rmtree(self.folder)

    def end_well(self):
        """Once everything works again, what is in effect was proved, found, or set by somebody."""
        trainer = self.world.trainer
        trainer.lose, trainer.broken, trainer.delay_ms, trainer.refuse = set(), False, 0, ""
        self.world.halt = None
        self.start()
        self.world.clock.advance(1000)
        for pod in list(self.firing):
            self.send(self.kit.resolved(self.firing.pop(pod), self.world.now))
        self.world.run(200)
        assert trainer.open_changes() == []
        assert self.world.responder.experiments() == ()
        assert self.world.responder.episodes() == ()
        proved = ("helped", "gain_is_real") in self.world.verdicts()
        assert trainer.values()["workers"] in self.by_hand | ({WANTED} if proved else set())
        decided = {
            (row["episode"], row["response"])
            for row in self.world.db.connection.execute("SELECT episode, response FROM decisions")
        }
        expected = {
            (row["id"], response)
            for row in self.world.db.connection.execute("SELECT id, alert FROM episodes")
            for response in json.loads(row["alert"])["responses"]
        }
        assert decided == expected
        entries = self.world.kinds("decision")
        assert len(entries) == len(decided)
        self.seen["lives"] += 1
        self.seen.update(f"decision {entry['reason']}" for entry in entries)
        self.seen.update(f"verdict {verdict} {reason}" for verdict, reason in self.world.verdicts())
        self.seen.update(f"end {result}" for result in self.world.results() if result)


@pytest.mark.timeout(120)
def test_the_promises_hold_whatever_happens(kit):
    seen = play(kit, examples=60)
    # What never happened proves nothing.
    assert seen["verdict helped gain_is_real"]
    assert seen["end rolled_back"]
    assert seen["verdict inconclusive interrupted"]


@pytest.mark.proof
@pytest.mark.timeout(3000)
def test_the_promises_hold_over_many_lives(kit, record_proof):
    seen = play(kit, examples=1000)
    record_proof("responses", {"steps_a_life": STEPS, **dict(sorted(seen.items()))})


def play(kit, examples):
    machine = type("Machine", (Sidecar,), {"kit": kit, "seen": Counter()})
    machine.__module__ = __name__
    sys.modules[__name__].Machine = machine
    case = machine.TestCase
    # Shrinking takes minutes; the steps of a failure are printed either way.
    case.settings = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        phases=[Phase.reuse, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    case("runTest").runTest()
    return machine.seen

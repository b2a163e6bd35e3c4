"""The sidecar dies at any moment; the next one finds out what is in effect and leaves a proved or the found value."""

from __future__ import annotations

import pytest

from sidecar.responses.response import Mode

MESSAGES = ("apply", "renew", "keep", "revert")


class Crash(BaseException):
    """SIGKILL, as far as one process can pretend it."""


class Doom:
    """Counts commits and messages of a world; dies before or after the one it is given."""

    def __init__(self, world, at: int = -1, *, after: bool = False) -> None:
        self.count, self.at, self.after = 0, at, after
        for target, name in [(world.journal, "commit"), *((world.trainer, m) for m in MESSAGES)]:
            setattr(target, name, self._wrapped(world, target, getattr(target, name)))

    def _wrapped(self, world, target, call):
        def doomed(*args):
            if target is world.journal and not target.pending:
                return call(*args)
            mine = self.count == self.at
            self.count += 1
            if mine and not self.after:
                raise Crash
            result = call(*args)
            if mine:
                raise Crash
            return result

        return doomed

    @staticmethod
    def lifted(world) -> None:
        for name in MESSAGES:
            vars(world.trainer).pop(name, None)


def same(workers):
    return 100.0


def play(world, kit, at=-1, *, after=False, seconds=60):
    """An episode with a crash somewhere; returns how many places to crash there were."""
    world.start()
    doom = Doom(world, at, after=after)
    try:
        subject = world.fire()
        world.run(seconds)
        world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    except Crash:
        world.db.close()
        Doom.lifted(world)
        world.start()
        world.run(150)
    return doom.count


def check(world):
    value, proven = world.trainer.values()["workers"], ("helped", "gain_is_real") in world.verdicts()
    assert value == 2 or (value == 4 and proven)
    assert world.trainer.open_changes() == []
    assert world.responder.experiments() == ()
    open_rows = world.db.connection.execute("SELECT count(*) FROM experiments WHERE phase != 'closed'").fetchone()[0]
    assert open_rows == 0
    open_episodes = world.db.connection.execute("SELECT count(*) FROM episodes WHERE closed_at_ms = 0").fetchone()[0]
    assert open_episodes == 0
    episodes = world.db.connection.execute("SELECT count(*) FROM episodes").fetchone()[0]
    assert len(world.decisions()) == episodes


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("speed", ["helps", "does nothing"])
@pytest.mark.parametrize("trainer", ["stays", "reconnects", "restarts", "is gone"])
def test_a_crash_at_any_commit_or_message_ends_with_a_proved_or_the_found_value(tmp_path, kit, after, speed, trainer):
    def made(i):
        world = kit.World(str(tmp_path / f"{i}.db"))
        if speed == "does nothing":
            world.speed = same
        return world

    first = made("first")
    places = play(first, kit)
    assert places >= 12
    first.db.close()
    for i in range(places):
        world = made(i)
        restarted = world.start

        def start(world=world, restarted=restarted):
            if hasattr(world, "db"):  # what happens to the trainer meanwhile
                {
                    "stays": lambda: None,
                    "reconnects": lambda: (world.trainer.detach(), world.trainer.attach(after_ms=7000)),
                    "restarts": world.trainer.restart_trainer,
                    "is gone": world.trainer.detach,
                }[trainer]()
            return restarted()

        world.start = start
        play(world, kit, i, after=after)
        check(world)
        world.db.close()


@pytest.mark.parametrize(
    ("phase", "verdict", "result"),
    [
        ("intended", "inconclusive", "rolled_back"),
        ("settling", "inconclusive", "rolled_back"),
        ("measuring", "inconclusive", "rolled_back"),
        ("keeping", "helped", "kept"),
    ],
)
def test_a_restart_within_the_lease_decides_by_what_was_proved(world, phase, verdict, result):
    world.trainer.lose = {"keep"} if phase == "keeping" else set()
    world.trainer.delay_ms = 3000 if phase == "intended" else 0
    world.start()
    world.fire()
    world.until_phase(phase)
    world.trainer.lose, world.trainer.delay_ms = set(), 0
    world.db.close()
    world.start()
    world.run(20)
    assert world.verdicts()[0][0] == verdict
    assert world.results() == [result]
    assert world.trainer.values()["workers"] == (4 if verdict == "helped" else 2)


@pytest.mark.parametrize(("phase", "verdict"), [("measuring", "inconclusive"), ("keeping", "helped")])
def test_a_restart_after_the_lease_finds_the_found_values_and_says_who_brought_them_back(world, phase, verdict):
    world.trainer.lose = {"keep"}
    world.start()
    world.fire()
    world.until_phase(phase)
    world.db.close()
    world.clock.advance(40_000)
    assert world.trainer.values()["workers"] == 2
    world.trainer.lose = set()
    world.start()
    world.run(5)
    assert world.verdicts()[-1][0] == verdict
    assert world.results() == ["reverted_by_lease"]


def test_a_plan_that_was_only_shown_is_closed(world, kit):
    world.responses = [kit.response(mode=Mode.SUGGEST)]
    world.start()
    world.fire()
    world.run(5)
    world.db.close()
    world.start()
    world.run(60)
    assert world.decisions() == [("feed", "interrupted")]
    assert world.trainer.sent == []


def test_a_crash_counts_as_ineffective_so_that_a_change_that_kills_the_pod_is_not_tried_for_ever(world, kit):
    world.responses = [kit.response(limits=kit.response().limits.__class__("job", 0, 100, 2))]
    world.start()
    for _ in range(3):
        subject = world.fire()
        world.run(40, lambda: [x.phase.value for x in world.responder.experiments()] == ["measuring"])
        world.db.close()
        world.start()
        world.run(20)
        world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    assert [reason for _, reason in world.decisions()] == ["acted", "acted", "breaker_open"]


def test_a_duplicate_of_an_old_edge_after_a_restart_opens_nothing(world, kit):
    world.start()
    subject = world.fire()
    world.run(60)
    world.db.close()
    world.start()
    world.responder.on_events([kit.firing(subject)], world.now)
    world.run(60)
    assert world.decisions() == [("feed", "acted")]
    assert [m for m, _ in world.trainer.sent if m != "renew"] == ["apply", "keep"]


def test_after_sigterm_the_next_process_finishes_what_the_last_one_left(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.responder.stop(world.now)
    world.db.close()
    world.start()
    world.run(10)
    assert world.verdicts() == [("inconclusive", "interrupted")]
    assert world.results() == ["rolled_back"]


def test_recovering_twice_is_the_same_as_once(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    for _ in range(3):
        world.db.close()
        world.start()
    world.run(10)
    assert world.verdicts() == [("inconclusive", "interrupted")]
    assert world.results() == ["rolled_back"]

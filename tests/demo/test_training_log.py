"""Speed, starvation and sample accounting from hand-made training logs."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.cli.demo.traininglog import Accounting, TrainingLog, account


def write(directory, rank, *entries):
    """Appends entries to a rank's log, newline-terminated."""
    with (directory / f"rank{rank}.jsonl").open("a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)


def start(world=1):
    return {"event": "start", "world": world}


def step(number, end, step_s=0.1, wait_s=0.0, samples=(), epoch=0):
    samples = list(samples)
    return {
        "event": "step", "step": number, "t": end, "step_s": step_s, "wait_s": wait_s, "samples": samples,
        "epoch": epoch,
    }  # fmt: skip


def steps(first, count, **values):
    """`count` steps of 0.1 s from second `first` on, four samples each."""
    values = {"samples": (1, 2, 3, 4), **values}
    return [step(i + 1, first + 0.1 * (i + 1), **values) for i in range(count)]


@pytest.fixture
def log(tmp_path):
    return TrainingLog(tmp_path)


def test_a_line_still_being_written_waits_for_the_next_poll(tmp_path, log):
    """Half a line is neither an error nor lost."""
    write(tmp_path, 0, start())
    whole = json.dumps(step(1, 10.0)) + "\n"
    with (tmp_path / "rank0.jsonl").open("a") as file:
        file.write(whole[:20])
        file.flush()
        log.poll()
        assert log.ranks[0].steps == []
        file.write(whole[20:])
    log.poll()
    assert [s.number for s in log.ranks[0].steps] == [1]
    log.poll()
    assert len(log.ranks[0].steps) == 1


def test_the_run_has_begun_when_every_rank_has_done_a_step(tmp_path, log):
    """With two ranks announced, one rank's step is not enough."""
    write(tmp_path, 0, start(world=2), step(1, 10.0))
    log.poll()
    assert log.first_step() is None
    write(tmp_path, 1, start(world=2), step(1, 10.5))
    log.poll()
    assert log.first_step() == 10.5


def test_samples_per_second_add_up_over_ranks(tmp_path, log):
    """Four samples each 0.1 s on two ranks are 80 a second."""
    write(tmp_path, 0, start(2), *steps(100, 50))
    write(tmp_path, 1, start(2), *steps(100, 50))
    log.poll()
    assert log.samples_per_s(101.05, 104.05) == pytest.approx(80)


def test_a_pause_in_the_time_or_at_its_end_counts_against_the_rate(tmp_path, log):
    """A second of work, one between two epochs, one of work, one of standing still: half the rate."""
    write(tmp_path, 0, start(), *steps(100, 10), *steps(102, 10))
    log.poll()
    assert log.samples_per_s(100.05, 104.05) == pytest.approx(20)
    assert log.samples_per_s(105, 110) == 0


def test_a_rank_that_has_not_begun_makes_the_rate_unknown_not_smaller(tmp_path, log):
    """Missing is not zero."""
    assert TrainingLog(tmp_path).samples_per_s(0, 1e9) is None
    write(tmp_path, 0, start(2), *steps(100, 50))
    write(tmp_path, 1, start(2), *steps(103, 10))
    log.poll()
    assert log.samples_per_s(101, 102) is None
    assert log.wait_share(200, 300) is None
    assert log.step_s(200, 300) is None


def test_the_wait_share_weighs_long_steps_more(tmp_path, log):
    """A step of 0.9 s without waiting and one of 0.1 s spent waiting are 10 %, not 50 %."""
    write(tmp_path, 0, start(), step(1, 10.0, 0.9, 0.0), step(2, 10.1, 0.1, 0.1))
    log.poll()
    assert log.wait_share(0, 20) == pytest.approx(0.1)


def test_starvation_began_where_its_first_starved_step_began(tmp_path, log):
    """Calm until second 101, starved from there on."""
    write(tmp_path, 0, start(), *steps(100, 10), *steps(101, 20, wait_s=0.05))
    log.poll()
    assert log.starved_since(0, 104) == pytest.approx(101.0)
    assert log.starved_since(102.05, 104) == pytest.approx(102.1)


def test_a_short_calm_does_not_end_a_starvation_and_a_long_one_does(tmp_path, log):
    """Loader workers deliver in bunches: seven calm steps are within one starvation, eight end it."""
    bunches = steps(100, 3, wait_s=0.05) + steps(100.3, 7) + steps(101, 5, wait_s=0.05)
    write(tmp_path, 0, start(), *bunches)
    log.poll()
    assert log.starved_since(0, 200) == pytest.approx(100.0)
    write(tmp_path, 0, *steps(101.5, 8), *steps(102.3, 5, wait_s=0.05))
    log.poll()
    assert log.starved_since(0, 102.32) is None
    assert log.starved_since(0, 200) == pytest.approx(102.3)


def test_the_first_rank_to_starve_dates_the_starvation(tmp_path, log):
    """Rank 1 starves a second before rank 0."""
    write(tmp_path, 0, start(2), *steps(100, 10), *steps(101, 20, wait_s=0.05))
    write(tmp_path, 1, start(2), *steps(100, 30, wait_s=0.05))
    log.poll()
    assert log.starved_since(0, 104) == pytest.approx(100.0)


def test_exactly_thirty_percent_is_not_starved(tmp_path, log):
    """As in the rule, the share must be above 30 %."""
    write(tmp_path, 0, start(), step(1, 10.0, step_s=1.0, wait_s=0.3))
    log.poll()
    assert log.starved_since(0, 20) is None


def test_every_epoch_of_every_rank_is_held_against_its_own_order(tmp_path, log):
    """A finished epoch owes all its samples; the running one only what came before its furthest sample."""
    order = {"event": "epoch", "epoch": 0, "order": [3, 1, 2, 0]}
    write(tmp_path, 0, start(2), order, step(1, 1.0, samples=(3, 1)), step(2, 2.0, samples=(2, 0)))
    write(tmp_path, 0, {**order, "epoch": 1, "order": [0, 1, 2, 3]}, step(3, 3.0, samples=(0, 1), epoch=1))
    write(tmp_path, 1, start(2), {**order, "order": [7, 6, 5, 4]}, step(1, 1.0, samples=(7, 6)))
    log.poll()
    assert log.accounting() == Accounting(consumed=8)
    write(tmp_path, 1, {**order, "epoch": 1, "order": [4, 5, 6, 7]}, step(2, 3.0, samples=(5, 4), epoch=1))
    log.poll()
    assert log.accounting() == Accounting(consumed=10, lost=2, reordered=2)


def test_a_line_that_the_script_does_not_write_is_an_error(tmp_path, log):
    """A misread log must not look like a clean one."""
    write(tmp_path, 0, {"event": "stop"})
    with pytest.raises(ValueError, match="unknown event 'stop'"):
        log.poll()


orders = st.lists(st.integers(0, 30), min_size=1, max_size=30)


@given(orders, st.data())
def test_a_prefix_of_the_order_is_never_a_finding_while_the_epoch_runs(order, data):
    """Also with samples that the sampler itself repeats to fill up ranks."""
    taken = data.draw(st.integers(0, len(order)))
    assert account(order, order[:taken], finished=False) == Accounting(taken)
    assert account(order, order[:taken], finished=True).lost == len(order) - taken


@given(st.permutations(range(20)), st.sets(st.integers(0, 19), max_size=18), st.booleans())
def test_dropped_samples_are_lost_and_the_rest_is_in_order(order, dropped, finished):
    """However many are missing, those that came are not reported as moved."""
    got = [sample for sample in order if sample not in dropped]
    due = order if finished else order[: 1 + order.index(got[-1])]
    assert account(order, got, finished=finished) == Accounting(len(got), lost=len(set(due) & dropped))


@given(st.permutations(range(20)), st.integers(0, 19), st.integers(1, 3))
def test_a_sample_seen_again_is_repeated_as_often_as_that(order, place, times):
    """The repeats follow their first occurrence at any distance."""
    got = [*order, *[order[place]] * times]
    assert account(order, got, finished=True) == Accounting(20 + times, repeated=times)


@given(st.permutations(range(20)), st.permutations(range(20)))
def test_other_orders_lose_nothing_and_count_every_place_that_differs(order, got):
    """A permutation is neither lost nor repeated."""
    differing = sum(a != b for a, b in zip(order, got, strict=True))
    assert account(order, got, finished=True) == Accounting(20, reordered=differing)


@given(orders, st.lists(st.integers(0, 35), max_size=40), st.booleans())
def test_lost_and_repeated_always_balance_the_counts(order, got, finished):
    """Consumed is what was due, less the lost, plus the repeated."""
    found = account(order, got, finished=finished)
    assert found.consumed == len(got)
    if finished:
        assert found.lost - found.repeated == len(order) - len(got)
        assert found.lost == (Counter(order) - Counter(got)).total()
    assert found.lost >= 0
    assert found.repeated >= 0

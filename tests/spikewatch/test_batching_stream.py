"""Cut anew, a pass keeps its samples, their order, and which of them belong to one step."""

import gc
import random
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spikewatch.batching_stream import Cut, Cutter, Regrouped


def own_batches(samples, size, drop_last=False):
    batches = [list(range(i, min(i + size, samples))) for i in range(0, samples, size)]
    return [batch for batch in batches if len(batch) == size or not drop_last]


def take(cutter, ahead=0):
    """(batches, pieces) of a pass read with so many batches under way."""
    batches, pieces, under_way = [], [], []
    for batch in cutter:
        under_way.append(batch)
        if len(under_way) > ahead:
            batches.append(under_way.pop(0))
            pieces.append(cutter.handed(len(under_way)))
    while under_way:
        batches.append(under_way.pop(0))
        pieces.append(cutter.handed(len(under_way)))
    return batches, pieces


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 4), st.integers(1, 9), st.integers(0, 5), st.booleans())
def test_every_step_has_the_samples_it_would_have_had(samples, own, span, size, ahead, drop_last):
    source = own_batches(samples, own, drop_last)
    batches, pieces = take(Cutter(iter(source), Cut(size, span)), ahead)
    steps, step = [], []
    for batch, piece in zip(batches, pieces, strict=True):
        step += batch
        assert piece.samples == len(batch) <= size
        if piece.last:
            assert piece.total == len(step)
            steps.append(step)
            step = []
    assert step == []
    assert steps == [sum(source[i : i + span], []) for i in range(0, len(source), span)]


@settings(deadline=None)
@given(st.data(), st.integers(1, 60), st.integers(1, 6))
def test_changed_again_and_again_between_two_groups_nothing_is_lost_repeated_or_moved(data, samples, own):
    source = own_batches(samples, own)
    cutter, seen, under_way = Cutter(iter(source), Cut()), [], []
    while True:
        if cutter.aligned and data.draw(st.booleans()):
            under_way.clear()  # what was made ready in the old size is dropped
            cut = Cut(data.draw(st.none() | st.integers(1, 8)), data.draw(st.integers(1, 3)))
            cutter = Cutter(cutter.rest(), cut, cutter.done)
        under_way += islice(cutter, data.draw(st.integers(1, 4)))
        if not under_way:
            break
        seen += under_way.pop(0)
        cutter.handed(len(under_way))
        if cutter.aligned:
            assert seen == [index for batch in source[: cutter.done] for index in batch]
    assert seen == list(range(samples))
    assert cutter.done == len(source)


def test_uncut_batches_go_through_as_the_sampler_made_them_and_nobody_looks_ahead():
    drawn = []

    def sampler():
        for batch in [(1, 2), [3], range(4, 6)]:
            drawn.append(batch)
            yield batch

    cutter = Cutter(sampler(), Cut())
    assert next(cutter) == (1, 2)
    assert len(drawn) == 1
    assert list(cutter) == [[3], range(4, 6)]


def test_a_samplers_error_comes_after_the_batches_before_it_also_where_it_was_met_looking_ahead():
    def sampler():
        yield [1, 2]
        yield [3, 4]
        raise LookupError("broken")

    cutter, seen = Cutter(sampler(), Cut(1, 3)), []
    with pytest.raises(LookupError, match="broken"):
        for batch in cutter:
            seen += batch
    assert seen == [1, 2, 3, 4]
    # and where batches were cut anew after the error was met
    cutter = Cutter(sampler(), Cut(1, 3))
    next(cutter)
    rest = Cutter(cutter.rest(), Cut(2, 1))
    seen = []
    with pytest.raises(LookupError, match="broken"):
        for batch in rest:
            seen += batch
    assert seen == [1, 2, 3, 4]


def test_an_error_that_the_loader_holds_back_is_not_lost_when_batches_are_cut_anew():
    cutter = Cutter(iter([[1, 2]]), Cut())
    next(cutter)
    again = Cutter(cutter.rest(LookupError("held")), Cut(1, 1))
    assert [next(again), next(again)] == [[1], [2]]
    with pytest.raises(LookupError, match="held"):
        next(again)


def test_nothing_left_unfinished_touches_the_random_state_when_it_is_collected():
    """A generator that restores it in a `finally` would, at a moment nobody chose."""
    before = random.getstate()

    def sampler():
        mine = random.Random(1)
        while True:
            yield [mine.randrange(10)]

    cutter = Cutter(sampler(), Cut(2, 2))
    next(cutter)
    rest = cutter.rest()
    next(rest)
    try:
        random.random()
        moved = random.getstate()
        del cutter, rest
        gc.collect()
        assert random.getstate() == moved
    finally:
        random.setstate(before)


@pytest.mark.parametrize("cut", [Cut(), Cut(2, 3)])
def test_what_is_remembered_is_what_is_under_way_however_long_the_pass(cut):
    ahead, cutter, under_way = 8, Cutter(([i, i + 1] for i in range(20_000)), cut), 0
    most = 0
    for _ in cutter:
        under_way += 1
        if under_way > ahead:
            under_way -= 1
            cutter.handed(under_way)
        most = max(most, len(cutter._issued) + len(cutter._pending) + len(cutter._pieces))
    assert most <= 2 * ahead + 6


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 3), st.data(), st.booleans())
def test_the_length_told_is_the_number_of_batches_that_come(samples, own, span, data, drop_last):
    size = data.draw(st.sampled_from([n for n in range(1, own * span + 1) if own * span % n == 0]))

    class Sampler:
        sampler = range(samples)

        def __iter__(self):
            return iter(own_batches(samples, own, drop_last))

        def __len__(self):
            return len(own_batches(samples, own, drop_last))

    Sampler.drop_last = drop_last
    regrouped = Regrouped(Sampler(), Cut(size, span), own)
    assert len(regrouped) == len(list(regrouped))
    assert regrouped.batch_size == size
    assert regrouped.sampler == range(samples)

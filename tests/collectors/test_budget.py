"""Who is slowed, and by how much, when collectors use more CPU than they may."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.collectors.budget import MAX_STRETCH, ROOM, Cost, adjust

NAMES = "abcdef"


def costs():
    one = st.tuples(
        st.floats(0, 0.2, allow_nan=False), st.integers(0, 100), st.sampled_from([1, 2, 4, 8, 16, MAX_STRETCH])
    )
    return st.lists(one, max_size=len(NAMES)).map(
        lambda found: [Cost(name, *rest) for name, rest in zip(NAMES, found, strict=False)]
    )


def expected(found, stretch):
    """What the collectors will use at another stretch."""
    return sum(c.ratio * c.stretch / stretch[c.name] for c in found)


def test_within_the_budget_everybody_keeps_their_pace():
    assert adjust([Cost("a", 0.004, 10), Cost("b", 0.005, 90)], 0.01) == {"a": 1, "b": 1}


def test_the_one_worth_least_gives_way_even_where_another_costs_more():
    assert adjust([Cost("a", 0.004, 10), Cost("b", 0.008, 90)], 0.01) == {"a": 2, "b": 1}


def test_where_the_least_worth_is_as_slow_as_it_gets_the_next_one_follows():
    assert adjust([Cost("a", 0.001, 10, MAX_STRETCH), Cost("b", 0.018, 90)], 0.01) == {"a": MAX_STRETCH, "b": 2}


def test_a_collector_that_costs_next_to_nothing_is_left_alone():
    assert adjust([Cost("trifle", 0.0001, 0), Cost("b", 0.04, 90)], 0.01) == {"trifle": 1, "b": 8}


def test_pace_comes_back_one_step_at_a_time_to_the_one_worth_most():
    assert adjust([Cost("a", 0.001, 10, 4), Cost("b", 0.001, 90, 4)], 0.01) == {"a": 4, "b": 2}


def test_pace_does_not_come_back_where_that_would_use_up_the_budget_again():
    assert adjust([Cost("a", 0.005, 10, 2)], 0.01) == {"a": 2}


@given(costs(), st.floats(1e-4, 0.1))
def test_after_an_adjustment_the_sum_is_expected_to_fit_or_everybody_who_matters_is_as_slow_as_can_be(found, budget):
    stretch = adjust(found, budget)
    if expected(found, stretch) > budget * (1 + 1e-9):
        for cost in found:
            at_end = stretch[cost.name] == MAX_STRETCH
            assert at_end or cost.ratio * cost.stretch / stretch[cost.name] <= 0.02 * budget * (1 + 1e-9)


@given(costs(), st.floats(1e-4, 0.1))
def test_nobody_is_sped_up_into_a_new_overrun_and_stretches_stay_powers_of_two(found, budget):
    stretch = adjust(found, budget)
    assert set(stretch.values()) <= {1, 2, 4, 8, 16, MAX_STRETCH}
    if any(stretch[c.name] < c.stretch for c in found):
        assert expected(found, stretch) <= ROOM * budget * (1 + 1e-9)
        assert sum(stretch[c.name] != c.stretch for c in found) == 1


@given(costs(), st.floats(1e-4, 0.1))
def test_whoever_is_slowed_is_worth_no_more_than_anybody_who_could_have_been_instead(found, budget):
    stretch = adjust(found, budget)
    slowed = [c for c in found if stretch[c.name] > c.stretch]
    spared = [c for c in found if stretch[c.name] == c.stretch < MAX_STRETCH and c.ratio > 0.02 * budget]
    if slowed and spared:
        assert max(c.worth for c in slowed) <= min(c.worth for c in spared)

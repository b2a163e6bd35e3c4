"""The comparisons behind the cost signals, with the guards that keep a thin or young bill from crying wolf."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.collectors.cost import trends
from sidecar.collectors.cost.rows import Category, CostRow, RowProblem
from sidecar.collectors.cost.totals import KEPT_PROBLEMS, Totals

TODAY = date(2026, 11, 20)
LAST = TODAY - timedelta(days=trends.OPEN_DAYS)


def totals(cost, days=40, category=Category.VCPU, skip=()):
    """Bills of the days before today; `cost` of how many days ago."""
    made = Totals()
    for n in range(1, days + 1):
        day = TODAY - timedelta(days=n)
        if day not in skip:
            made.billed[day] = made.effective[day, category] = float(cost(n))
            made.rows += 1
    return made


def test_the_newest_two_days_are_not_final_and_never_compared():
    made = totals(lambda n: 1000 if n <= 1 else 10)
    assert trends.weeks(made, Category.VCPU, TODAY) == (10, 10)


def test_days_a_source_calls_estimated_are_not_final_either():
    made = totals(lambda n: 10 if n > 4 else 1000)
    made.estimated = {TODAY - timedelta(days=n) for n in (1, 2, 3, 4)}
    assert trends.closed_until(made, TODAY) == TODAY - timedelta(days=5)
    assert trends.weeks(made, Category.VCPU, TODAY) == (10, 10)


def test_a_week_is_compared_with_the_week_before():
    made = totals(lambda n: 12 if n < 2 + 7 else 10)
    assert trends.weeks(made, Category.VCPU, TODAY) == (12, 10)


@pytest.mark.parametrize(("gone", "known"), [(1, True), (2, False)])
def test_a_week_with_days_missing_says_nothing_from_the_second_on(gone, known):
    made = totals(lambda n: 10, skip={LAST - timedelta(days=n) for n in range(gone)})
    assert (trends.weeks(made, Category.VCPU, TODAY) is not None) is known


def test_a_month_so_far_is_compared_with_the_same_days_of_the_month_before():
    made = totals(lambda n: 1, days=60)
    assert trends.month_to_date(made.billed, LAST) == trends.Months(18, 18, 18)


def test_the_thirty_first_is_compared_with_all_of_a_shorter_month():
    values = {date(2026, 2, 1) + timedelta(days=n): 1.0 for n in range(59)}
    assert trends.month_to_date(values, date(2026, 3, 31)) == trends.Months(31, 28, 31)


def test_a_month_before_that_is_not_known_is_no_comparison():
    assert trends.month_to_date(totals(lambda n: 1, days=25).billed, LAST) is None


def test_the_forecast_is_so_far_and_the_last_weeks_mean_for_the_days_to_come():
    made = totals(lambda n: 20 if n < 2 + 7 else 10)
    assert trends.forecast(made, LAST) == pytest.approx(11 * 10 + 7 * 20 + 12 * 20)
    assert trends.elapsed(LAST) == pytest.approx(18 / 30)


@given(st.lists(st.floats(0, 1e6), min_size=40, max_size=40))
def test_a_forecast_is_never_below_what_is_spent(costs):
    made = totals(lambda n: costs[n - 1])
    spent = sum(made.billed[LAST.replace(day=n)] for n in range(1, LAST.day + 1))
    assert trends.forecast(made, LAST) >= spent * (1 - 1e-12)


WEEK = [LAST - timedelta(days=n) for n in range(7)]
QUIET = dict.fromkeys(WEEK, 0.0)
CALM = dict.fromkeys(WEEK, 0.01)


def test_a_resource_is_idle_on_days_without_load_and_traffic():
    assert trends.idle_days(CALM, QUIET, LAST) == 7
    assert trends.idle_days(CALM | {LAST: 0.05}, QUIET, LAST) == 6
    assert trends.idle_days(CALM, QUIET | {LAST: 5.0}, LAST) == 6
    assert trends.idle_days(CALM, QUIET | {LAST: 5.0}, LAST, bytes_up_to=5.0) == 7
    assert trends.idle_days(CALM, QUIET, LAST, cpu_below=0.01) == 0


@pytest.mark.parametrize("known", [(CALM, {}), ({}, QUIET), ({d: 0.0 for d in WEEK[1:]}, QUIET), (CALM, {LAST: 0.0})])
def test_a_machine_that_sends_nothing_on_some_day_is_gone_and_not_idle(known):
    assert trends.idle_days(*known, LAST) is None


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50))
def test_nineteen_of_twenty_values_are_not_above_the_95th_percentile_and_it_is_one_of_them(values):
    found = trends.percentile_95(values)
    assert found in values
    assert sum(value <= found for value in values) >= 0.95 * len(values)
    assert sum(value < found for value in values) < 0.95 * len(values)
    assert trends.percentile_95([]) is None


# --- sums ---


def row(cost=1.0, **more):
    from datetime import UTC, datetime

    start = datetime(2026, 11, 10, tzinfo=UTC)
    given_ = {"usage": True, "correction": False, "currency": "USD"} | more
    return CostRow("t", "r", Category.EGRESS, "m", start, start, cost, 2 * cost, quantity=3.0, unit="GB", **given_)


def test_trends_take_the_effective_cost_of_usage_and_budgets_all_that_is_billed():
    made = Totals().take([row(), row(usage=False), row(correction=True)])
    day = date(2026, 11, 10)
    assert made.effective == {(day, Category.EGRESS): 1.0}
    assert made.quantity == {(day, Category.EGRESS): 3.0}
    assert made.billed == {day: 6.0}


def test_what_could_not_be_read_is_counted_and_the_first_of_it_kept():
    made = Totals().take([RowProblem("f", n, "c", "p") for n in range(1000)] + [row()])
    assert (made.rows, made.skipped, len(made.problems)) == (1, 1000, KEPT_PROBLEMS)


def test_several_currencies_are_noticed():
    assert Totals().take([row(), row(currency="EUR")]).mixed_currencies
    assert not Totals().take([row(), row()]).mixed_currencies

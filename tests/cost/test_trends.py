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


@pytest.mark.parametrize(("estimated", "newest"), [(7, LAST - timedelta(days=7)), (8, LAST), (30, LAST)])
def test_a_month_that_is_estimated_as_a_whole_is_only_not_invoiced_yet(estimated, newest):
    made = totals(lambda n: 10)
    made.estimated = {TODAY - timedelta(days=n + 1) for n in range(estimated + 1)}
    assert trends.closed_until(made, TODAY) == newest


def test_a_month_so_far_is_compared_with_the_same_days_of_the_month_before():
    made = totals(lambda n: 1, days=60)
    assert trends.months(made.billed, LAST) == trends.Months(18, 18, 18)
    assert trends.month_to_date(made.billed, LAST) == 18


@pytest.mark.parametrize(
    ("last", "days"),
    [
        (date(2026, 3, 31), 28),
        (date(2026, 3, 28), 28),
        (date(2028, 3, 31), 29),
        (date(2028, 2, 29), 29),
        (date(2027, 1, 31), 31),
        (date(2026, 1, 3), 3),
    ],
)
def test_only_days_that_both_months_have_are_compared(last, days):
    values = {date(2025, 11, 1) + timedelta(days=n): 1.0 for n in range(1000)}
    assert trends.months(values, last) == trends.Months(days, days, days)
    assert trends.month_to_date(values, last) == last.day


@pytest.mark.parametrize("day", [1, 2])
def test_the_first_two_days_of_a_month_are_compared_with_nothing(day):
    values = {date(2026, 10, 1) + timedelta(days=n): 1.0 for n in range(60)}
    assert trends.months(values, date(2026, 11, day)) is None
    assert trends.month_to_date(values, date(2026, 11, day)) == day


def test_a_month_before_that_is_not_known_is_no_comparison_but_this_month_is_known():
    made = totals(lambda n: 1, days=25)
    assert trends.months(made.billed, LAST) is None
    assert trends.month_to_date(made.billed, LAST) == 18


def test_the_forecast_is_so_far_and_the_last_weeks_mean_for_the_days_to_come():
    made = totals(lambda n: 20 if n < 2 + 7 else 10)
    assert trends.forecast(made, LAST) == pytest.approx(11 * 10 + 7 * 20 + 12 * 20)
    assert trends.elapsed(LAST) == pytest.approx(18 / 30)


def test_what_was_paid_once_in_the_last_week_is_not_forecast_for_every_day_to_come():
    fees = totals(lambda n: 1000 if n == 4 else 10)
    assert trends.forecast(fees, LAST) == pytest.approx(17 * 10 + 1000 + 12 * 10)
    rare = totals(lambda n: 70 if n == 4 else 0)
    assert trends.forecast(rare, LAST) == pytest.approx(70 + 12 * 10)


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
    given_ = {"usage": True, "correction": False, "currency": "USD", "end": start} | more
    return CostRow(
        "t", "r", Category.EGRESS, "m", start, given_.pop("end"), cost, 2 * cost, quantity=3.0, unit="GB", **given_
    )


def test_trends_take_the_effective_cost_of_usage_and_budgets_all_that_is_billed():
    made = Totals().take([row(), row(usage=False), row(correction=True)])
    day = date(2026, 11, 10)
    assert made.effective == {(day, Category.EGRESS): 1.0}
    assert made.quantity == {(day, Category.EGRESS): 3.0}
    assert made.billed == {day: 6.0}


def test_a_months_fee_belongs_to_all_its_days_and_a_years_to_the_day_it_is_paid_on():
    from datetime import UTC, datetime

    made = Totals().take([row(0.5), row(5.0, end=datetime(2026, 11, 20, tzinfo=UTC))])
    assert made.billed == {date(2026, 11, 10): 11.0}
    made.merge(Totals().take([row(0.5, end=datetime(2027, 11, 10, tzinfo=UTC))]))
    assert made.accrued() == {date(2026, 11, 10): pytest.approx(1.0 + 1.0 + 1.0)}
    made.billed[date(2026, 11, 19)] = 0.0
    made.billed[date(2026, 11, 20)] = 0.0
    assert made.accrued()[date(2026, 11, 19)] == pytest.approx(1.0)
    assert made.accrued()[date(2026, 11, 20)] == 0.0


def test_what_could_not_be_read_is_counted_and_the_first_of_it_kept():
    made = Totals().take([RowProblem("f", n, "c", "p") for n in range(1000)] + [row()])
    assert (made.rows, made.skipped, len(made.problems)) == (1, 1000, KEPT_PROBLEMS)


def test_several_currencies_are_noticed():
    assert Totals().take([row(), row(currency="EUR")]).mixed_currencies
    assert not Totals().take([row(), row()]).mixed_currencies

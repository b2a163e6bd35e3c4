"""The cost collector over real files, an OpenCost that answers, and an AWS that is scripted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from bills import EGRESS, READS, TODAY, charge, history
from pydantic import ValidationError

from sidecar.clock import FakeClock
from sidecar.collectors.cost.catalogue import METRICS
from sidecar.collectors.cost.collector import CostCollector, CostSettings
from sidecar.collectors.runner import Runner
from sidecar.errors import CollectError
from sidecar.model import Availability
from sidecar.promql import evaluate
from sidecar.store import Store

NOW = int(TODAY.timestamp() * 1000)


def collector(**settings):
    made = {k: v for k, v in settings.items() if k in ("clients", "transport")}
    return CostCollector(CostSettings(enabled=True, **{k: v for k, v in settings.items() if k not in made}), **made)


def values(samples):
    return {(s.metric.removeprefix("spikewatch_"), *(v for _, v in s.labels)): s.value for s in samples}


def test_it_is_off_unless_it_is_switched_on_and_without_a_source_says_what_to_name():
    assert CostSettings().enabled is False
    status = collector().probe()
    assert (status.state, status.reason) == (Availability.UNAVAILABLE, "no_source")
    assert "FOCUS" in status.fix


def test_two_months_of_an_export_become_the_numbers_the_signals_compare(export):
    rows = history(60, lambda n: 240.0 if n < 9 else 200.0)
    rows += history(60, lambda n: 30.0 if n <= 20 else 10.0, **EGRESS)
    rows += history(60, lambda n: 0.1, **READS, ConsumedQuantity="1000")
    one = collector(focus=[str(export(rows))], budgets=[{"name": "team", "amount": 5000}])
    found = values(one.sample(NOW))
    assert found["cost_daily", "vcpu", "last7"] == 240
    assert found["cost_daily", "vcpu", "previous7"] == 200
    assert found["cost_month_to_date", "egress", "current"] == 18 * 30
    assert found["cost_month_to_date", "egress", "previous"] == 18 * 10
    assert found["object_store_reads", "current"] == found["object_store_reads", "previous"] == 18_000
    assert found["budget_amount", "team"] == 5000
    assert found["budget_elapsed_ratio", "team"] == pytest.approx(0.6)
    assert found["budget_approved", "team"] == 0
    assert found["cost_rows_total", "focus"] == 180
    assert found["cost_newest_day_timestamp_seconds", "focus"] == (TODAY - timedelta(days=1)).timestamp()
    assert one.probe().state is Availability.AVAILABLE


def test_everything_it_emits_is_in_the_catalogue(export):
    one = collector(focus=[str(export(history(60, lambda n: 1.0)))], budgets=[{"name": "b", "amount": 1}])
    known = {info.name: set(info.labels) for info in METRICS}
    assert all({k for k, _ in s.labels} <= known[s.metric] for s in one.sample(NOW))


def test_a_bill_is_read_again_after_its_refresh_and_not_before(export):
    path = export(history(30, lambda n: 10.0))
    one = collector(focus=[str(path)])
    before = values(one.sample(NOW))
    export(history(30, lambda n: 20.0))
    assert values(one.sample(NOW + 3_600_000)) == before
    after = values(one.sample(NOW + 21_600_000))
    assert after["cost_daily", "vcpu", "last7"] == 20


def test_a_young_bill_gives_no_comparison_at_all(export):
    found = values(collector(focus=[str(export(history(5, lambda n: 10.0)))]).sample(NOW))
    assert not [key for key in found if key[0] in ("cost_daily", "cost_month_to_date", "cost_forecast")]
    assert found["cost_rows_total", "focus"] == 5


def test_rows_that_cannot_be_read_are_counted_and_shown(export):
    rows = history(30, lambda n: 10.0)
    rows[3]["EffectiveCost"] = "$12"
    one = collector(focus=[str(export(rows))])
    assert values(one.sample(NOW))["cost_rows_skipped_total", "focus"] == 1
    status = one.probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, "rows_skipped")
    assert "row 4, column EffectiveCost" in status.fix


def test_a_source_that_fails_loses_its_own_numbers_only(export, tmp_path):
    one = collector(focus=[str(export(history(30, lambda n: 10.0))), str(tmp_path / "none*.csv")])
    assert values(one.sample(NOW))["cost_daily", "vcpu", "last7"] == 10
    assert (one.probe().state, one.probe().reason) == (Availability.DEGRADED, "no_file")


def test_half_of_a_bill_counts_for_nothing(export):
    whole = export(history(60, lambda n: 10.0), "whole.csv")
    broken = export(history(60, lambda n: 10.0) * 50, "broken.csv.gz")
    broken.write_bytes(broken.read_bytes()[:-200])
    one = collector(focus=[str(whole), str(broken)])
    found = values(one.sample(NOW))
    assert found["cost_daily", "vcpu", "last7"] == 10
    assert one.probe().reason == "unreadable"


def test_without_any_row_it_fails(tmp_path):
    one = collector(focus=[str(tmp_path / "none.csv")])
    with pytest.raises(CollectError, match="no such file"):
        one.sample(NOW)
    assert (one.probe().state, one.probe().reason) == (Availability.DEGRADED, "no_file")


def test_a_running_sidecar_reads_the_bill_and_reads_again_after_a_reading_that_failed(export, tmp_path):
    path = tmp_path / "focus.csv"
    settings = CostSettings(enabled=True, focus=[str(path)], refresh="60s", interval="60s")
    store, clock = Store(), FakeClock(NOW)
    runner = Runner([(CostCollector(settings), settings)], store, clock)

    def seen():
        runner.tick(clock.now_ms())
        assert runner.settle(30)
        runner.tick(clock.now_ms() + 1)  # what was found is written in the tick after
        found = evaluate(store, "spikewatch_cost_daily", clock.now_ms() + 1)
        clock.advance(600_000)  # longer than any pause for having failed
        return len(found)

    try:
        assert seen() == 0
        export(history(60, lambda n: 1.0))
        assert [seen(), seen(), seen()][-1] == 8
    finally:
        assert runner.close(30) == []


def test_two_patterns_that_match_one_file_count_it_once_and_give_each_series_once(export):
    path = export(history(60, lambda n: 10.0))
    other = export(history(60, lambda n: 10.0), "other.csv")
    one = collector(focus=[str(path), str(path.parent / "f*.csv"), str(other)])
    samples = list(one.sample(NOW))
    assert len({(s.metric, s.labels) for s in samples}) == len(samples)
    assert values(samples)["cost_daily", "vcpu", "last7"] == 20


def test_a_source_that_raises_anything_loses_its_own_numbers_only(export):
    def broken():
        raise RuntimeError("no region")

    one = collector(focus=[str(export(history(60, lambda n: 10.0)))], aws=True, clients=broken)
    assert values(one.sample(NOW))["cost_daily", "vcpu", "last7"] == 10
    assert one.probe().fix == "cost: aws: RuntimeError: no region"


def test_bills_of_several_currencies_are_not_added_up(export):
    rows = history(30, lambda n: 10.0) + history(30, lambda n: 10.0, BillingCurrency="EUR")
    one = collector(focus=[str(export(rows))])
    assert not [key for key in values(one.sample(NOW)) if key[0] == "cost_daily"]
    assert one.probe().reason == "mixed_currencies"


@pytest.mark.parametrize(
    ("amount", "until", "approved"), [(9000, "2026-12-31", 1), (9000, "2026-11-01", 0), (100, "2026-12-31", 0)]
)
def test_an_approval_counts_until_its_day_and_up_to_its_amount(export, tmp_path, amount, until, approved):
    file = tmp_path / "approvals.yaml"
    file.write_text(f"approvals:\n- {{budget: team, owner: cfo, amount: {amount}, until: {until}}}\n")
    one = collector(
        focus=[str(export(history(60, lambda n: 400.0)))], budgets=[{"name": "team", "amount": 5000}], approvals=file
    )
    assert values(one.sample(NOW))["budget_approved", "team"] == approved


@pytest.mark.parametrize(("today", "approved"), [((2026, 12, 1), 1), ((2026, 12, 2), 1), ((2026, 12, 3), 0)])
def test_an_approval_to_the_end_of_a_month_holds_while_that_month_is_judged(export, tmp_path, today, approved):
    now = datetime(*today, tzinfo=UTC)
    file = tmp_path / "approvals.yaml"
    file.write_text("approvals:\n- {budget: team, owner: cfo, amount: 20000, until: 2026-11-30}\n")
    rows = [charge(now - timedelta(days=n), 400.0) for n in range(1, 62)]
    one = collector(focus=[str(export(rows))], budgets=[{"name": "team", "amount": 5000}], approvals=file)
    found = values(one.sample(int(now.timestamp() * 1000)))
    assert found["budget_approved", "team"] == approved
    assert found["cost_month_to_date", "all", "current"] == {1: 29, 2: 30, 3: 1}[today[2]] * 400


def test_an_approval_counts_as_soon_as_it_is_written_and_no_longer_than_the_file_is_right(export, tmp_path):
    file = tmp_path / "approvals.yaml"
    path = export(history(60, lambda n: 400.0))
    one = collector(focus=[str(path)], budgets=[{"name": "team", "amount": 5000}], approvals=file)

    def approved(minute):
        (section,) = one.sections(NOW + minute * 60_000)
        return None if section.samples is None else values(section.samples)["budget_approved", "team"]

    assert (approved(0), one.probe().reason) == (0, "approvals")
    path.unlink()  # the bill is not read again
    file.write_text("approvals:\n- {budget: team, owner: cfo, amount: 9000, until: 2026-12-31}\n")
    assert (approved(1), one.probe().reason) == (1, "")
    file.write_text("approvals:\n- {budget: team, owner: cfo, amount: 100, until: 2026-12-31}\n")
    assert approved(2) == 0
    file.write_text("approvals:\n- {budget: team, owner: cfo, amount: 9000, until: 2026-12-31}\n\n")
    assert approved(3) == 1
    file.write_text("aprovals: []\n")
    assert (approved(4), one.probe().reason) == (0, "approvals")


def test_an_approval_of_a_budget_that_nobody_configured_is_told(export, tmp_path):
    file = tmp_path / "approvals.yaml"
    file.write_text("approvals:\n- {budget: taem, owner: cfo, amount: 9000, until: 2026-12-31}\n")
    path = export(history(60, lambda n: 400.0))
    one = collector(focus=[str(path)], budgets=[{"name": "team", "amount": 5000}], approvals=file)
    assert values(one.sample(NOW))["budget_approved", "team"] == 0
    assert one.probe().reason == "approvals"
    assert "no budget is called taem" in one.probe().fix


def test_an_approval_that_is_written_while_the_sidecar_restarts_counts(export, tmp_path):
    file, cache = tmp_path / "approvals.yaml", tmp_path / "cost.json"
    file.write_text("approvals: []\n")
    settings = {"focus": [str(export(history(60, lambda n: 400.0)))], "approvals": file, "cache": cache}
    settings["budgets"] = [{"name": "team", "amount": 5000}]
    assert values(collector(**settings).sample(NOW))["budget_approved", "team"] == 0
    file.write_text("approvals:\n- {budget: team, owner: cfo, amount: 7200, until: 2026-12-31}\n")
    found = values(collector(**settings).sample(NOW + 60_000))
    assert found["budget_approved", "team"] == 1
    assert found["cost_last_read_timestamp_seconds", "focus"] == NOW / 1000


def test_a_fee_for_the_month_is_no_spike_on_its_first_days(export):
    now = datetime(2026, 12, 6, tzinfo=UTC)
    rows = [charge(now - timedelta(days=n), 100.0) for n in range(1, 60)]
    fee = {"ChargePeriodEnd": "2027-01-01T00:00:00Z", "ChargeCategory": "Purchase", "SkuMeter": "Support"}
    rows.append(charge(datetime(2026, 12, 1, tzinfo=UTC), 3100.0) | fee)
    found = values(collector(focus=[str(export(rows))]).sample(int(now.timestamp() * 1000)))
    assert found["cost_month_to_date", "all", "current"] == pytest.approx(4 * 200)
    assert found["cost_forecast",] == pytest.approx(4 * 200 + 27 * (4 * 200 + 3 * 100) / 7)


def test_a_budget_is_judged_by_an_export_of_this_month_alone(export):
    one = collector(focus=[str(export(history(19, lambda n: 400.0)))], budgets=[{"name": "team", "amount": 5000}])
    found = values(one.sample(NOW))
    assert found["cost_month_to_date", "all", "current"] == 18 * 400
    assert ("cost_month_to_date", "all", "previous") not in found


def test_a_clock_that_was_set_back_does_not_end_reading(export):
    one = collector(focus=[str(export(history(60, lambda n: 10.0)))])
    one.sample(NOW + 365 * 86_400_000)
    assert values(one.sample(NOW))["cost_daily", "vcpu", "last7"] == 10


@pytest.mark.parametrize("text", ["approvals: [{budget: team}]", "approvals: 3", "aprovals: []", "[]", "["])
def test_an_approvals_file_that_is_wrong_approves_nothing_and_is_told(export, tmp_path, text):
    file = tmp_path / "approvals.yaml"
    file.write_text(text)
    one = collector(
        focus=[str(export(history(60, lambda n: 400.0)))], budgets=[{"name": "team", "amount": 5000}], approvals=file
    )
    assert values(one.sample(NOW))["budget_approved", "team"] == 0
    assert one.probe().reason == "approvals"
    assert "approvals.yaml:" in one.probe().fix


# --- OpenCost ---


def allocation(day, **more):
    window = {
        "start": day.strftime("%Y-%m-%dT00:00:00Z"),
        "end": (day + timedelta(days=1)).strftime("%Y-%m-%dT00:00:00Z"),
    }
    own = {"cpuCost": 24.0, "gpuCost": 100.0, "pvCost": 1.0, "networkInternetCost": 0.0, "cpuCoreHours": 96.0}
    use = {"cpuCoreUsageAverage": 1.0, "cpuCoreRequestAverage": 4.0}
    return {"window": window, "minutes": 1440.0} | own | use | more


def opencost(days=25, code=200, body=None):
    steps = [{"train/pod-0": allocation(TODAY - timedelta(days=n))} for n in range(days, 0, -1)]

    def answer(request):
        assert request.url.path == "/allocation/compute"
        return httpx.Response(code, json={"code": code, "data": steps} if body is None else body)

    return httpx.MockTransport(answer)


def test_opencost_gives_cost_and_how_much_of_the_request_is_used():
    found = values(collector(opencost="http://opencost", transport=opencost()).sample(NOW))
    assert found["cost_daily", "vcpu", "last7"] == 24
    assert found["cost_daily", "gpu", "last7"] == 100
    assert found["cost_cpu_utilization_ratio",] == pytest.approx(0.25)


def test_an_allocation_with_a_number_that_is_none_is_skipped():
    steps = [{"a": allocation(TODAY - timedelta(days=4)) | {"cpuCost": "nan"}}]
    one = collector(opencost="http://o", transport=opencost(body={"data": steps}))
    assert values(one.sample(NOW))["cost_rows_skipped_total", "opencost"] == 1
    assert "OpenCost a: row 1: ValueError: cpuCost is nan" in one.probe().fix


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"budgets": [{"name": "a", "amount": 1}, {"name": "a", "amount": 2}]}, "budget a is there twice"),
        ({"budgets": [{"name": "a"}]}, "give either `amount`, or `aws_account`"),
        ({"budgets": [{"name": "a", "amount": 1, "aws_account": "1"}]}, "give either `amount`, or `aws_account`"),
        ({"budgets": [{"name": "a", "amount": float("inf")}]}, "finite"),
        ({"opencost": "opencost:9003"}, r"not an http\(s\) URL"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, says):
    with pytest.raises(ValidationError, match=says):
        CostSettings(enabled=True, **settings)


def test_what_opencost_reckons_is_not_added_to_a_bill_that_has_it_already(export):
    one = collector(focus=[str(export(history(60, lambda n: 10.0)))], opencost="http://opencost", transport=opencost())
    found = values(one.sample(NOW))
    assert found["cost_daily", "vcpu", "last7"] == 10
    assert found["cost_month_to_date", "all", "current"] == 180
    assert found["cost_rows_total", "opencost"] > 0
    assert ("cost_cpu_utilization_ratio",) in found


def test_budgets_are_judged_to_the_end_of_the_month_where_opencost_is_the_bill():
    last = TODAY + timedelta(days=12)  # 2 December: the 30th is judged

    def answer(request):
        days = int(request.url.params["window"].removesuffix("d"))
        return httpx.Response(200, json={"data": [{"a": allocation(last - timedelta(days=n))} for n in range(days)]})

    one = collector(
        opencost="http://o", transport=httpx.MockTransport(answer), budgets=[{"name": "team", "amount": 5000}]
    )
    found = values(one.sample(int(last.timestamp() * 1000)))
    assert found["cost_month_to_date", "all", "current"] > 0
    assert found["budget_elapsed_ratio", "team"] == 1


def test_a_bill_that_cannot_be_read_is_not_replaced_by_what_opencost_reckons(tmp_path):
    one = collector(focus=[str(tmp_path / "none.csv")], opencost="http://opencost", transport=opencost())
    found = values(one.sample(NOW))
    assert ("cost_cpu_utilization_ratio",) in found
    assert not [key for key in found if key[0] in ("cost_daily", "cost_month_to_date", "cost_forecast")]
    assert one.probe().reason == "no_file"


def test_cpu_use_is_that_of_the_days_the_bill_is_compared_on():
    now = NOW + 12 * 86_400_000
    found = values(collector(opencost="http://opencost", transport=opencost()).sample(now))
    assert ("cost_cpu_utilization_ratio",) not in found


@pytest.mark.parametrize(
    "transport", [opencost(code=500), opencost(body={"data": None}), opencost(body=[]), opencost(body={"data": 3})]
)
def test_an_opencost_that_gives_nothing_is_an_error(transport):
    with pytest.raises(CollectError, match="OpenCost"):
        collector(opencost="http://opencost", transport=transport).sample(NOW)


def test_an_allocation_that_makes_no_sense_costs_itself():
    steps = [{"a": allocation(TODAY), "b": {"window": None}, "c": allocation(TODAY) | {"cpuCost": "x"}}]
    found = values(collector(opencost="http://o", transport=opencost(body={"data": steps})).sample(NOW))
    assert found["cost_rows_skipped_total", "opencost"] == 2
    assert found["cost_rows_total", "opencost"] >= 3


# --- AWS ---


class Aws:
    """boto3's clients, scripted by answers in the shape AWS documents."""

    def __init__(self, days=60, pages=1):
        self.asked, self._days, self._pages = [], days, pages

    def __call__(self):
        return lambda service: self

    def get_cost_and_usage(self, **asked):
        self.asked.append(asked)
        first = TODAY - timedelta(days=self._days)
        results = []
        for n in range(self._days):
            day = first + timedelta(days=n)
            period = {"Start": day.date().isoformat(), "End": (day + timedelta(days=1)).date().isoformat()}
            amount = {"Amount": "10.0", "Unit": "USD"}
            metrics = {
                "AmortizedCost": amount,
                "UnblendedCost": amount,
                "UsageQuantity": {"Amount": "24", "Unit": "Hrs"},
            }
            group = {"Keys": ["EC2 - Other", "USE1-DataTransfer-Out-Bytes"], "Metrics": metrics}
            box = {"Keys": ["Amazon EC2", "BoxUsage:p5.48xlarge"], "Metrics": metrics}
            results.append(
                {"TimePeriod": period, "Total": {}, "Groups": [group, box], "Estimated": n >= self._days - 1}
            )
        more = {"NextPageToken": "more"} if len(self.asked) < self._pages else {}
        return {"ResultsByTime": results if len(self.asked) == 1 else []} | more

    def describe_budget(self, AccountId, BudgetName):
        if BudgetName != "known":
            raise RuntimeError("NotFoundException")
        return {"Budget": {"BudgetLimit": {"Amount": "123.0", "Unit": "USD"}}}


def test_cost_explorer_is_asked_by_day_and_meter_without_credits():
    aws = Aws(pages=2)
    found = values(collector(aws=True, clients=aws).sample(NOW))
    assert found["cost_daily", "egress", "last7"] == 10
    assert found["cost_month_to_date", "egress", "current"] == 180
    first, second = aws.asked
    assert first["TimePeriod"]["End"] == "2026-11-20"
    assert first["Filter"]["Not"]["Dimensions"]["Values"] == ["Credit", "Refund"]
    assert second["NextPageToken"] == "more"


@pytest.mark.parametrize(
    ("service", "amortised", "on", "so_far"),
    [
        ("Amazon Elastic Compute Cloud - Compute", "0", 1, 18),
        ("Tax", "30.0", 1, 18),
        ("AWS Support (Business)", "30.0", 1, 18),
        ("Amazon Elastic Compute Cloud - Compute", "0", 2, 30),
        ("Amazon Elastic Compute Cloud - Compute", "30.0", 1, 30),
    ],
)
def test_a_months_fee_of_cost_explorer_belongs_to_all_its_days(service, amortised, on, so_far):
    class Fee(Aws):
        def get_cost_and_usage(self, **asked):
            page = super().get_cost_and_usage(**asked)
            for result in page["ResultsByTime"]:
                metrics = {
                    "AmortizedCost": {"Amount": amortised, "Unit": "USD"},
                    "UnblendedCost": {"Amount": "30.0", "Unit": "USD"},
                    "UsageQuantity": {"Amount": "1", "Unit": "Hrs"},
                }
                if result["TimePeriod"]["Start"] == f"2026-11-0{on}":
                    result["Groups"].append({"Keys": [service, "HeavyUsage:p5.48xlarge"], "Metrics": metrics})
            return page

    found = values(collector(aws=True, clients=Fee()).sample(NOW))
    assert found["cost_month_to_date", "all", "current"] == pytest.approx(18 * 20 + so_far)


def test_pages_without_end_are_not_paid_for():
    with pytest.raises(CollectError, match="more than 20 pages"):
        collector(aws=True, clients=Aws(pages=10**6)).sample(NOW)


def test_a_budget_may_come_from_aws_and_one_that_is_not_there_is_told():
    budgets = [{"name": "known", "aws_account": "1"}, {"name": "unknown", "aws_account": "1"}]
    one = collector(aws=True, clients=Aws(), budgets=budgets)
    found = values(one.sample(NOW))
    assert found["budget_amount", "known"] == 123
    assert ("budget_amount", "unknown") not in found
    assert one.probe().reason == "aws_refused"


def test_a_charge_of_today_does_not_count_yet(export):
    rows = [*history(60, lambda n: 10.0), charge(datetime(2026, 11, 20, tzinfo=UTC), 1e6)]
    assert values(collector(focus=[str(export(rows))]).sample(NOW))["cost_daily", "vcpu", "last7"] == 10

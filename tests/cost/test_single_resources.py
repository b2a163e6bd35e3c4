"""Volumes and idle resources: generated bills, and an AWS that moto plays."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from bills import TODAY, charge
from hypothesis import given
from hypothesis import strategies as st

from sidecar.collectors.cost import cloudwatch, inventory, resources
from sidecar.collectors.cost.cloudwatch import Series
from sidecar.collectors.cost.collector import CostCollector, CostSettings
from sidecar.collectors.cost.focus import FocusFile
from sidecar.collectors.cost.resources import Bounds, PodDay
from sidecar.collectors.cost.totals import Totals
from sidecar.errors import CollectError

DAY = TODAY.date()


def bounds(most=500):
    return Bounds(resources=most, idle_cpu=0.05, idle_bytes=5_000_000)


IO2 = {"SkuMeter": "EBS:VolumeP-IOPS.io2", "ConsumedUnit": "IOPS-Mo", "ServiceCategory": "Storage"}
ARN = "arn:aws:ec2:us-east-1:123456789012:volume/vol-0abc"


def billed(export, rows):
    totals = Totals().take(FocusFile(str(export(rows))).rows())
    assert totals.problems == []
    return resources.billed_volumes(totals, DAY)


def hourly(day, iops_months, **more):
    """A row for each hour of a day."""
    rows = []
    for hour in range(24):
        start = day + timedelta(hours=hour)
        end = (start + timedelta(hours=1)).strftime("%Y-%m-%d %H:%M:%S")
        rows.append(charge(start, 1.0, ConsumedQuantity=iops_months / 24, ChargePeriodEnd=end, **IO2, **more))
    return rows


# --- what is provisioned ---


def test_iops_months_of_a_bill_become_iops(export):
    day = TODAY - timedelta(days=2)
    rows = [charge(day, 1.0, ResourceId=ARN, ConsumedQuantity=16_000 / 30, **IO2)]
    rows += hourly(day, 9_000 / 30, ResourceId="vol-0def")
    assert billed(export, rows) == {"vol-0abc": pytest.approx(16_000), "vol-0def": pytest.approx(9_000)}


def test_only_the_newest_day_counts_and_a_day_that_is_not_over_is_not_less(export):
    before, day = TODAY - timedelta(days=3), TODAY - timedelta(days=1)
    rows = hourly(day, 5_000 / 30, ResourceId="vol-1")[:7] + hourly(before, 9_000 / 30, ResourceId="vol-1")
    assert billed(export, rows) == {"vol-1": pytest.approx(5_000)}


def test_a_volume_that_nobody_charged_for_lately_is_gone(export):
    rows = [charge(TODAY - timedelta(days=n), 1.0, ResourceId=f"vol-{n}", ConsumedQuantity=300, **IO2) for n in (5, 6)]
    assert list(billed(export, rows)) == ["vol-5"]


def test_meters_of_one_volume_add_up_and_gp3_has_some_included(export):
    day = TODAY - timedelta(days=2)
    tiers = [IO2 | {"SkuMeter": f"EBS:VolumeP-IOPS.io2{tier}"} for tier in ("", ".tier2")]
    rows = [charge(day, 1.0, ResourceId="vol-1", ConsumedQuantity=32_000 / 30, **tier) for tier in tiers]
    gp3 = IO2 | {"SkuMeter": "EBS:VolumeP-IOPS.gp3"}
    rows.append(charge(day, 1.0, ResourceId="vol-2", ConsumedQuantity=1_000 / 30, **gp3))
    assert billed(export, rows) == {"vol-1": pytest.approx(64_000), "vol-2": pytest.approx(4_000)}


def test_what_a_disk_can_do_counts_where_the_unit_tells_nothing_of_iops(export):
    day = TODAY - timedelta(days=2)
    tier = {
        "SkuMeter": "P30 provisioned performance",
        "ConsumedUnit": "Hours",
        "SkuPriceDetails": '{"DiskMaxIops": 5000}',
    }
    rows = [charge(day, 1.0, ResourceId="/disks/one", ConsumedQuantity=24, **tier)]
    by_hour = {"SkuMeter": "provisioned IOPS", "ConsumedUnit": "IOPS Hours"}
    rows.append(charge(day, 1.0, ResourceId="/disks/two", ConsumedQuantity=24 * 700, **by_hour))
    assert billed(export, rows) == {"/disks/one": pytest.approx(5_000), "/disks/two": pytest.approx(700)}


def test_credits_and_corrections_provision_nothing(export):
    day = TODAY - timedelta(days=2)
    rows = [charge(day, 1.0, ResourceId="vol-1", ConsumedQuantity=300, ChargeCategory="Credit", **IO2)]
    rows.append(charge(day, 1.0, ResourceId="vol-2", ConsumedQuantity=300, ChargeClass="Correction", **IO2))
    assert billed(export, rows) == {}


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(1, 1e5)), min_size=1, max_size=30), st.randoms())
def test_the_order_of_rows_and_the_files_they_come_in_do_not_matter(rows, chance):
    def made(some):
        totals = Totals()
        for days, iops in some:
            totals._provision(("vol-1", "m"), DAY - timedelta(days=days), iops * 24, 24.0, "")
        return totals

    shuffled = chance.sample(rows, len(rows))
    apart = made(shuffled[::2])
    apart.merge(made(shuffled[1::2]))
    found = [resources.billed_volumes(totals, DAY)["vol-1"] for totals in (made(rows), apart)]
    assert found[0] == pytest.approx(found[1])


# --- AWS ---


@pytest.fixture
def aws(monkeypatch):
    """Makes boto3's clients of a region, of an account that moto plays."""
    moto = pytest.importorskip("moto")
    import boto3

    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # a second's work, and nobody looks at them

    with moto.mock_aws():
        made = {}

        def clients(region="us-east-1"):
            def client(service):
                if (service, region) not in made:
                    made[service, region] = boto3.client(service, region_name=region)
                return made[service, region]

            return client

        yield clients
        for one in made.values():
            one.close()


def put(client, namespace, metric, dimension, resource, points):
    """Hands CloudWatch points as it takes them, a thousand at once."""
    own = {"MetricName": metric, "Dimensions": [{"Name": dimension, "Value": resource}]}
    data = [own | {"Timestamp": at, "Value": value} for at, value in points]
    for first in range(0, len(data), 1000):
        client.put_metric_data(Namespace=namespace, MetricData=data[first : first + 1000])


def machines(ec2, number):
    """Instances that run; their ids."""
    image = ec2.register_image(Name="tests")["ImageId"]
    made = ec2.run_instances(ImageId=image, MinCount=number, MaxCount=number, InstanceType="m5.large")
    return [one["InstanceId"] for one in made["Instances"]]


def volume(ec2, kind, iops, to=None):
    """A volume, attached to an instance; its id."""
    own = {"Iops": iops} if iops else {}
    made = ec2.create_volume(AvailabilityZone="us-east-1a", Size=500, VolumeType=kind, **own)["VolumeId"]
    if to:
        ec2.attach_volume(VolumeId=made, InstanceId=to, Device="/dev/sdf")
    return made


def test_volumes_of_the_account_that_pay_for_iops_are_found_and_no_others(aws):
    ec2 = aws()("ec2")
    (one,) = machines(ec2, 1)
    io2, gp3 = volume(ec2, "io2", 10_000, one), volume(ec2, "gp3", 8_000, one)
    volume(ec2, "gp3", 3_000, one), volume(ec2, "gp2", None, one), volume(ec2, "io1", 500)
    assert inventory.provisioned(ec2) == {io2: 10_000, gp3: 8_000}
    found = resources.volumes({gp3: 7_500.0, "vol-billed": 100.0}, ("us-east-1",), aws, DAY, bounds())
    assert {v.name: (v.provisioned, v.used) for v in found} == {
        io2: (10_000, None), gp3: (7_500, None), "vol-billed": (100, None)
    }  # fmt: skip
    assert [v.name for v in resources.volumes({gp3: 7_500.0}, ("us-east-1",), aws, DAY, bounds(1))] == [io2]


def test_what_a_volume_used_is_the_95th_percentile_of_its_week(aws, monkeypatch):
    monkeypatch.setattr(resources, "PERIOD_S", 3_600)  # a twelfth of the points to hand over
    ec2, watch = aws()("ec2"), aws()("cloudwatch")
    (to,) = machines(ec2, 1)
    one, young = volume(ec2, "io2", 10_000, to), volume(ec2, "io2", 9_000, to)
    times = [TODAY - timedelta(hours=n) for n in range(1, 7 * 24 + 1)]
    busy = 6 * len(times) // 100
    for name, share in ((one, 1.0), (young, 0.5)):
        known = times[: int(len(times) * share)]
        put(
            watch,
            "AWS/EBS",
            "VolumeReadOps",
            "VolumeId",
            name,
            [(at, 3.6e6 if n < busy else 3.6e3) for n, at in enumerate(known)],
        )
        put(watch, "AWS/EBS", "VolumeWriteOps", "VolumeId", name, [(at, 0.0) for at in known])
    found = {v.name: v.used for v in resources.volumes({}, ("us-east-1",), aws, DAY, bounds())}
    assert found == {one: pytest.approx(1_000), young: None}


def test_an_instance_is_idle_on_days_with_little_load_and_traffic(aws):
    ec2, watch = aws()("ec2"), aws()("cloudwatch")
    *names, off = machines(ec2, 6)
    idle, busy, talking, new, silent = names
    ec2.stop_instances(InstanceIds=[off])
    for name in (*names[:4], off):
        for n in range(1, 8 if name != new else 7):
            at = TODAY - timedelta(days=n) + timedelta(hours=6)
            put(
                watch, "AWS/EC2", "CPUUtilization", "InstanceId", name, [(at, 40.0 if name == busy and n == 2 else 1.0)]
            )
            for metric in ("NetworkIn", "NetworkOut"):
                put(watch, "AWS/EC2", metric, "InstanceId", name, [(at, 3e6 if name == talking and n > 4 else 1e6)])
    found = resources.idle_instances(("us-east-1", "eu-west-1"), aws, DAY, bounds())
    assert found == {idle: 7, busy: 6, talking: 4}
    assert resources.idle_instances((), aws, DAY, bounds()) == {}
    assert len(resources.idle_instances(("us-east-1",), aws, DAY, bounds(1))) <= 1
    assert silent not in found


class Paged:
    """GetMetricData in pages, and how often it was asked."""

    def __init__(self, pages=2, code="Complete"):
        self.asked, self._pages, self._code = [], pages, code

    def get_metric_data(self, **asked):
        self.asked.append(asked)
        page = int(asked.get("NextToken", 0))
        at = TODAY - timedelta(minutes=5 * (page + 1))
        results = [
            {"Id": q["Id"], "Timestamps": [at], "Values": [1.0], "StatusCode": self._code}
            for q in asked["MetricDataQueries"]
        ]
        return {"MetricDataResults": results} | ({"NextToken": str(page + 1)} if page + 1 < self._pages else {})


def test_many_series_are_asked_for_together_as_far_as_one_answer_holds_them():
    client = Paged()
    series = [Series("AWS/EBS", "VolumeReadOps", "VolumeId", f"vol-{n}", "Sum") for n in range(120)]
    found = cloudwatch.points(client, series, TODAY - timedelta(days=7), TODAY, 300)
    assert [len(asked["MetricDataQueries"]) for asked in client.asked] == [50, 50, 50, 50, 20, 20]
    assert all(len(points) == 2 for points in found.values())
    assert set(found) == set(series)
    daily = Paged(pages=1)
    cloudwatch.points(daily, series * 5, TODAY - timedelta(days=7), TODAY, 86_400)
    assert [len(asked["MetricDataQueries"]) for asked in daily.asked] == [500, 100]


@pytest.mark.parametrize(
    ("client", "reason"), [(Paged(code="InternalError"), "cloudwatch_answer"), (Paged(pages=10**6), "too_many_pages")]
)
def test_an_answer_in_parts_without_end_or_with_errors_counts_for_nothing(client, reason):
    with pytest.raises(CollectError) as failed:
        cloudwatch.points(client, [Series("n", "m", "d", "r", "Sum")], TODAY - timedelta(days=7), TODAY, 300)
    assert failed.value.reason == reason


# --- OpenCost ---


def week(hours=24.0, cpu=0.01, moved=0.0, days=7):
    return {DAY - timedelta(days=n): PodDay(hours, cpu, moved) for n in range(1, days + 1)}


def test_pods_are_idle_by_use_of_their_request_where_the_network_is_counted():
    pods = {
        "a/idle": week(), "a/busy": week(cpu=0.5), "a/talking": week(moved=1e9), "a/young": week(days=6),
        "a/short": week(hours=6.0), "a/unbounded": week(cpu=None),
    }  # fmt: skip
    assert resources.idle_pods(pods, DAY, bounds()) == {"a/idle": 7, "a/busy": 0, "a/talking": 0}
    assert resources.idle_pods(pods, DAY, bounds(1)) == {"a/idle": 7}


def test_a_network_that_nobody_counts_is_unknown_and_not_silent():
    assert resources.idle_pods({"a/idle": week(), "a/busy": week(cpu=0.9)}, DAY, bounds()) == {}


def test_days_are_those_of_utc():
    late = datetime(2026, 11, 19, 23, 55, tzinfo=UTC)
    assert resources._days({late: 1.0}) == {date(2026, 11, 19): 1.0}


def test_the_bill_and_a_budget_are_read_from_an_account(aws):
    import requests

    first = TODAY - timedelta(days=60)
    results = []
    for day in (first + timedelta(days=n) for n in range(60)):
        amount = {"Amount": "10.0", "Unit": "USD"}
        metrics = {"AmortizedCost": amount, "UnblendedCost": amount, "UsageQuantity": {"Amount": "24", "Unit": "Hrs"}}
        period = {"Start": day.date().isoformat(), "End": (day + timedelta(days=1)).date().isoformat()}
        group = {"Keys": ["Amazon Elastic Compute Cloud - Compute", "BoxUsage:p5.48xlarge"], "Metrics": metrics}
        results.append({"TimePeriod": period, "Total": {}, "Groups": [group], "Estimated": False})
    queue = "http://motoapi.amazonaws.com/moto-api/static/ce/cost-and-usage-results"
    assert requests.post(
        queue, json={"results": [{"ResultsByTime": results, "DimensionValueAttributes": []}]}, timeout=9
    ).ok
    limit = {"BudgetName": "research", "BudgetLimit": {"Amount": "5000", "Unit": "USD"}}
    own = limit | {"TimeUnit": "MONTHLY", "BudgetType": "COST"}
    aws()("budgets").create_budget(AccountId="123456789012", Budget=own)
    budgets = [{"name": "research", "aws_account": "123456789012"}, {"name": "none", "aws_account": "123456789012"}]
    one = CostCollector(CostSettings(enabled=True, aws=True, budgets=budgets), clients=aws)
    found = {(s.metric, *(v for _, v in s.labels)): s.value for s in one.sample(int(TODAY.timestamp() * 1000))}
    assert found["spikewatch_cost_daily", "vcpu", "last7"] == 10
    assert found["spikewatch_budget_amount", "research"] == 5000
    assert ("spikewatch_budget_amount", "none") not in found
    assert "NotFoundException" in one.probe().fix

"""What the cost collector says of single resources, and what it keeps over a restart."""

from __future__ import annotations

import json
from datetime import timedelta

import httpx
import pytest
from bills import TODAY, charge, history
from pydantic import ValidationError

from sidecar.collectors.cost.catalogue import METRICS
from sidecar.collectors.cost.collector import CostCollector, CostSettings
from sidecar.errors import CollectError
from sidecar.model import Availability

NOW = int(TODAY.timestamp() * 1000)
HOUR = 3_600_000
IO2 = {"SkuMeter": "EBS:VolumeP-IOPS.io2", "ConsumedUnit": "IOPS-Mo", "ServiceCategory": "Storage"}


class Account:
    """An account with one volume and one machine, both without use for a week; or one that refuses."""

    def __init__(self, refuses=()):
        self.regions, self.asked, self._refuses = [], [], refuses

    def __call__(self, region="us-east-1"):
        self.regions.append(region)
        return lambda service: self

    def _say(self, what, answer):
        self.asked.append(what)
        if what in self._refuses:
            raise RuntimeError(f"AccessDenied: {what}")
        return answer

    def describe_volumes(self, **asked):
        return self._say("volumes", {"Volumes": [{"VolumeId": "vol-1", "VolumeType": "io2", "Iops": 10_000}]})

    def describe_instances(self, **asked):
        return self._say("instances", {"Reservations": [{"Instances": [{"InstanceId": "i-1"}]}]})

    def get_metric_data(self, **asked):
        period = asked["MetricDataQueries"][0]["MetricStat"]["Period"]
        times = [TODAY - timedelta(seconds=period * n) for n in range(1, 7 * 86_400 // period + 1)]
        found = {"Timestamps": times, "Values": [0.0] * len(times), "StatusCode": "Complete"}
        return self._say(
            "metrics", {"MetricDataResults": [found | {"Id": q["Id"]} for q in asked["MetricDataQueries"]]}
        )


def collector(clients=None, transport=None, **settings):
    own = {} if clients is None else {"clients": clients}
    return CostCollector(CostSettings(enabled=True, **settings), transport=transport, **own)


def values(samples):
    return {(s.metric.removeprefix("spikewatch_"), *(v for _, v in s.labels)): s.value for s in samples}


def test_a_volume_and_a_machine_that_nobody_uses_are_told_without_any_bill():
    aws = Account()
    one = collector(aws, cloudwatch=["eu-west-1"])
    samples = list(one.sample(NOW))
    assert values(samples) == {
        ("volume_iops", "provisioned", "vol-1"): 10_000,
        ("volume_iops", "p95_7d", "vol-1"): 0,
        ("cost_idle_days", "i-1"): 7,
    }
    assert set(aws.regions) == {"eu-west-1"}
    assert one.probe().state is Availability.AVAILABLE
    known = {info.name: set(info.labels) for info in METRICS}
    assert all({k for k, _ in s.labels} <= known[s.metric] for s in samples)


def test_what_the_bill_provisions_is_told_though_aws_refuses_and_the_rest_is_missing(export):
    rows = history(60, lambda n: 10.0)
    rows.append(charge(TODAY - timedelta(days=2), 1.0, ResourceId="vol-2", ConsumedQuantity=300, **IO2))
    one = collector(Account(refuses=("volumes", "instances")), focus=[str(export(rows))], cloudwatch=["eu-west-1"])
    found = values(one.sample(NOW))
    assert found["volume_iops", "provisioned", "vol-2"] == pytest.approx(9_000)
    assert not [key for key in found if key[0] == "cost_idle_days" or "p95_7d" in key]
    assert found["cost_daily", "vcpu", "last7"] == 10
    assert (one.probe().reason, "AccessDenied: volumes" in one.probe().fix) == ("aws_refused", True)


def test_an_account_that_refuses_all_is_a_failure():
    with pytest.raises(CollectError, match="AccessDenied"):
        collector(Account(refuses=("volumes", "instances")), cloudwatch=["eu-west-1"]).sample(NOW)


def test_an_idle_pod_is_told_by_opencost():
    def allocation(day, used, **more):
        window = {
            "start": day.strftime("%Y-%m-%dT00:00:00Z"),
            "end": (day + timedelta(days=1)).strftime("%Y-%m-%dT00:00:00Z"),
        }
        use = {"cpuCoreUsageAverage": used, "cpuCoreRequestAverage": 4.0, "networkTransferBytes": 1e8 * used}
        return {"window": window, "minutes": 1440.0, "cpuCost": 24.0} | use | more

    days = [TODAY - timedelta(days=n) for n in range(20, 0, -1)]
    steps = [
        {
            "train/idle": allocation(day, 0.01),
            "train/busy": allocation(day, 2.0),
            "train/gpu": allocation(day, 0.01, gpuUsageAverage=0.9),
            "__idle__": allocation(day, 0.01),
            "train/__unmounted__": allocation(day, 0.01),
        }
        for day in days
    ]
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json={"data": steps}))
    found = values(collector(opencost="http://opencost", transport=transport).sample(NOW))
    assert {k: v for k, v in found.items() if k[0] == "cost_idle_days"} == {
        ("cost_idle_days", "train/idle"): 7,
        ("cost_idle_days", "train/busy"): 0,
        ("cost_idle_days", "train/gpu"): 0,
    }


@pytest.mark.parametrize("paid", [{"aws": True}, {"cloudwatch": ["eu-west-1"]}])
def test_what_costs_money_to_ask_is_asked_four_times_a_day_at_most(paid):
    with pytest.raises(ValidationError, match="6h or longer"):
        CostSettings(refresh="5h", **paid)
    aws = Account()
    one = collector(aws, cloudwatch=["eu-west-1"])
    for hour in range(24):
        one.sample(NOW + hour * HOUR)
    assert aws.asked == ["volumes", "metrics", "instances", "metrics"] * 4


def test_what_has_no_series_for_want_of_room_is_counted(export):
    day = TODAY - timedelta(days=2)
    rows = [charge(day, 1.0, ResourceId=f"vol-{n}", ConsumedQuantity=300 + n, **IO2) for n in range(5)]
    one = collector(focus=[str(export(rows))], max_resources=2)
    assert sorted(key[2] for key in values(one.sample(NOW)) if key[0] == "volume_iops") == ["vol-3", "vol-4"]
    assert (one.probe().reason, one.probe().fix[:2]) == ("too_many_resources", "3 ")


def test_what_was_read_hours_ago_is_written_often_enough_to_be_found_and_no_oftener():
    one = collector(Account(), cloudwatch=["eu-west-1"])
    sections = [next(iter(one.sections(NOW + 5_000 * n))) for n in range(12 * 10)]
    written = [n * 5 for n, section in enumerate(sections) if section.samples is not None]
    assert written == list(range(0, 600, 50))
    slowed = collector(Account(), cloudwatch=["eu-west-1"])
    assert all(next(iter(slowed.sections(NOW + 160_000 * n))).samples for n in range(5))


# --- kept over a restart ---


def test_a_process_that_restarts_does_not_pay_again_until_it_is_time(tmp_path):
    settings = {"cloudwatch": ["eu-west-1"], "cache": tmp_path / "cost.json"}
    first = values(collector(Account(), **settings).sample(NOW))
    again = Account()
    one = collector(again, **settings)
    assert values(one.sample(NOW + HOUR)) == first
    assert again.asked == []
    one.sample(NOW + 6 * HOUR)
    assert again.asked


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_text("{"), lambda file: file.write_text("[]"), lambda file: file.write_bytes(b"\xff"),
        lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | {"samples": [1]})),
        lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 0})),
        lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | {"read_ms": NOW + 9 * HOUR})),
        lambda file: file.write_bytes(b" " * (9 << 20)), lambda file: (file.unlink(), file.mkdir()),
    ],
)  # fmt: skip
def test_a_kept_reading_that_cannot_be_used_is_as_none(tmp_path, spoil):
    file = tmp_path / "cost.json"
    settings = {"cloudwatch": ["eu-west-1"], "cache": file}
    collector(Account(), **settings).sample(NOW)
    spoil(file)
    again = Account()
    assert values(collector(again, **settings).sample(NOW + HOUR))["cost_idle_days", "i-1"] == 7
    assert again.asked


def test_a_reading_under_other_settings_or_one_that_failed_in_part_is_not_kept(tmp_path):
    file = tmp_path / "cost.json"
    collector(Account(), cloudwatch=["eu-west-1"], cache=file).sample(NOW)
    other = Account()
    collector(other, cloudwatch=["us-east-2"], cache=file).sample(NOW + 1)
    assert other.asked
    file.unlink()
    collector(Account(refuses=("instances",)), cloudwatch=["eu-west-1"], cache=file).sample(NOW)
    assert not file.exists()

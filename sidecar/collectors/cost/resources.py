"""Single resources that are paid for and not used: volumes' IOPS, idle machines and pods."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TypeVar

from sidecar.collectors.cost import inventory, trends
from sidecar.collectors.cost.aws import ClientFactory
from sidecar.collectors.cost.cloudwatch import Points, Series, points
from sidecar.collectors.cost.totals import Totals

_T = TypeVar("_T")
PERIOD_S = 300  # of volumes' operations: the finest every volume has
BILLED_WITHIN_DAYS = 5  # a volume that nobody charged for longer is gone
_DAY_S = 86_400
_VOLUME = re.compile(r"vol-[0-9a-f]+")
_GP3 = re.compile(r"\bgp3\b", re.IGNORECASE)


@dataclass(slots=True)
class Bounds:
    """Of what is asked, and what counts as no use. `left_out` counts what is beyond them."""

    resources: int  # of a kind, in all regions together
    idle_cpu: float  # 0..1
    idle_bytes: float  # of network, a day
    left_out: int = 0

    def first(self, names: Iterable[_T], taken: int = 0) -> list[_T]:
        """As many as there is room for beside `taken` others."""
        listed = list(names)
        room = max(0, self.resources - taken)
        self.left_out += max(0, len(listed) - room)
        return listed[:room]


@dataclass(frozen=True, slots=True)
class Volume:
    """IOPS that are paid for; `used` is the 95th percentile of a week, None where too little is known."""

    name: str
    provisioned: float
    used: float | None = None


def billed_volumes(totals: Totals, today: date) -> dict[str, float]:
    """Provisioned IOPS by volume, as the newest bill says, with those that come with the volume."""
    found: dict[str, float] = {}
    for (resource, meter), one in totals.provisioned.items():
        if one.day >= today - timedelta(days=BILLED_WITHIN_DAYS) and one.hours > 0:
            name = _short(resource)
            iops = one.iops_hours / one.hours + (inventory.INCLUDED["gp3"] if _GP3.search(meter) else 0.0)
            found[name] = found.get(name, 0.0) + iops
    return found


def volumes(
    billed: Mapping[str, float],
    regions: Sequence[str],
    clients: Callable[[str], ClientFactory],
    today: date,
    bounds: Bounds,
) -> list[Volume]:
    """Volumes of the bill, and of the account where the bill does not name them; the largest, where there are too many.

    What they use is asked in each region; a volume that CloudWatch knows nothing of keeps `used` None.
    Raises CollectError when AWS refuses.
    """
    found, used = dict(billed), {}
    own: dict[str, list[str]] = {}
    for region in regions:
        there = inventory.provisioned(clients(region)("ec2"))
        own[region] = list(there)
        found = there | found
    kept = dict(bounds.first(sorted(found.items(), key=lambda item: (-item[1], item[0]))))
    for region, names in own.items():
        asked = [name for name in names if name in kept]
        used.update(_used(clients(region)("cloudwatch"), asked, today) if asked else {})
    return [Volume(name, iops, used.get(name)) for name, iops in kept.items()]


def _used(client: object, names: Sequence[str], today: date) -> dict[str, float]:
    """The 95th percentile over a week of the mean IOPS of five minutes. Only of volumes that have four fifths of them:
    one that was attached yesterday has not been idle for a week.
    """
    kinds = ("VolumeReadOps", "VolumeWriteOps")
    series = [Series("AWS/EBS", kind, "VolumeId", name, "Sum") for name in names for kind in kinds]
    start, end = _week(today)
    known = points(client, series, start, end, PERIOD_S)
    wanted = (end - start).total_seconds() / PERIOD_S
    found = {}
    for name in names:
        reads, writes = (known.get(Series("AWS/EBS", kind, "VolumeId", name, "Sum"), {}) for kind in kinds)
        rates = [(reads[at] + writes[at]) / PERIOD_S for at in reads.keys() & writes.keys()]
        p95 = trends.percentile_95(rates)
        if p95 is not None and len(rates) >= trends.LEAST_SHARE * wanted:
            found[name] = p95
    return found


def idle_instances(
    regions: Sequence[str], clients: Callable[[str], ClientFactory], today: date, bounds: Bounds
) -> dict[str, int]:
    """Idle days of the last seven by instance, of those with data of all seven. Raises CollectError."""
    found: dict[str, int] = {}
    taken = 0
    for region in regions:
        names = bounds.first(inventory.running(clients(region)("ec2")), taken)
        taken += len(names)
        if names:
            found |= _idle(clients(region)("cloudwatch"), names, today, bounds)
    return found


def _idle(client: object, names: Sequence[str], today: date, bounds: Bounds) -> dict[str, int]:
    kinds = (("CPUUtilization", "Average"), ("NetworkIn", "Sum"), ("NetworkOut", "Sum"))
    series = {
        name: [Series("AWS/EC2", metric, "InstanceId", name, stat) for metric, stat in kinds]  # type: ignore[arg-type]
        for name in names
    }
    start, end = _week(today)
    known = points(client, [one for each in series.values() for one in each], start, end, _DAY_S)
    found = {}
    for name, (cpu, came, went) in series.items():
        percent, received, sent = (_days(known.get(one, {})) for one in (cpu, came, went))
        moved = {day: received[day] + sent[day] for day in received.keys() & sent.keys()}
        days = _idle_days({day: value / 100 for day, value in percent.items()}, moved, today, bounds)
        if days is not None:
            found[name] = days
    return found


@dataclass(frozen=True, slots=True)
class PodDay:
    """A pod on a day: hours it ran, CPU used over requested or GPUs where these are busier (None: no CPU is requested),
    bytes over the network.
    """

    hours: float
    cpu: float | None
    bytes: float


def idle_pods(days: Mapping[str, Mapping[date, PodDay]], today: date, bounds: Bounds) -> dict[str, int]:
    """Idle days of the last seven by pod. None of any pod where no pod moved a byte: OpenCost counts the network only
    with its daemon, and 0 then means unknown.
    """
    if not any(day.bytes for pod in days.values() for day in pod.values()):
        return {}
    found = {}
    for name, pod in days.items():
        whole = {at: day for at, day in pod.items() if day.hours >= trends.LEAST_SHARE * 24}
        cpu = {at: day.cpu for at, day in whole.items() if day.cpu is not None}
        idle = _idle_days(cpu, {at: day.bytes for at, day in whole.items()}, today, bounds)
        if idle is not None:
            found[name] = idle
    return dict(bounds.first(sorted(found.items(), key=lambda item: (-item[1], item[0]))))


def _idle_days(cpu: Mapping[date, float], moved: Mapping[date, float], today: date, bounds: Bounds) -> int | None:
    last = today - timedelta(days=1)
    return trends.idle_days(cpu, moved, last, cpu_below=bounds.idle_cpu, bytes_up_to=bounds.idle_bytes)


def _week(today: date) -> tuple[datetime, datetime]:
    """The last seven whole days."""
    end = datetime(today.year, today.month, today.day, tzinfo=UTC)
    return end - timedelta(days=trends.WEEK), end


def _days(found: Points) -> dict[date, float]:
    return {at.astimezone(UTC).date(): value for at, value in found.items()}


def _short(resource: str) -> str:
    """A volume's id out of its ARN; any other name as it is."""
    found = _VOLUME.search(resource)
    return found[0] if found else resource

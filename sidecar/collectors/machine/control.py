"""What one control group has used, been refused and been killed for, whichever version it is of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.collectors import cgroup
from sidecar.collectors.io import pressure
from sidecar.collectors.machine.groups import controller, enclosing, entry, memberships, number, whole
from sidecar.model import Sample

NO_LIMIT = 1 << 60  # version 1 writes "no limit" as the largest page-aligned number


@dataclass(slots=True)
class Reading:
    """One group now. Counters are since the group was made, seconds and bytes; None: not limited, or not told."""

    cpu_seconds: float | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_seconds: float | None = None
    memory_used: int | None = None
    memory_limit: int | None = None
    memory_cache: int | None = None  # page cache, charged to whoever read a page first
    memory_high: int | None = None  # how often it was slowed down for reaching memory.high
    oom_kills: float | None = None
    pressure: dict[str, dict[str, float]] = field(default_factory=dict)  # resource → kind → seconds


def read(cgroup_root: Path, proc_root: Path, pid: int | str) -> Reading:
    """The group of a process, as found below `cgroup_root`. Raises nothing: what cannot be read is None.

    On a machine with both versions each controller belongs to one of them; version 1 is read last, and wins where it
    has the file, for the unified group then counts more than it controls.
    """
    paths = memberships(proc_root, pid)
    reading = Reading()
    unified = cgroup_root / "unified" if (cgroup_root / "unified").is_dir() else cgroup_root
    group = next(enclosing(unified, paths.get("", "/")))
    _unified(group, reading)
    _cpu_v1(cgroup_root, paths, reading)
    _memory_v1(cgroup_root, paths, reading)
    reading.oom_kills = cgroup.OomKills(cgroup_root, proc_root, pid)()
    for resource in ("cpu", "memory"):
        try:
            found = pressure.totals(group / f"{resource}.pressure")
        except OSError:
            continue  # not ours to read
        if found:
            reading.pressure[resource] = found
    return reading


def _unified(group: Path, reading: Reading) -> None:
    stat = group / "cpu.stat"
    microseconds, throttled = whole(entry(stat, "usage_usec")), whole(entry(stat, "throttled_usec"))
    reading.cpu_seconds = None if microseconds is None else microseconds / 1e6
    reading.periods = whole(entry(stat, "nr_periods"))
    reading.throttled_periods = whole(entry(stat, "nr_throttled"))
    reading.throttled_seconds = None if throttled is None else throttled / 1e6
    reading.memory_used = number(group / "memory.current")
    reading.memory_limit = number(group / "memory.max")
    reading.memory_cache = whole(entry(group / "memory.stat", "file"))
    reading.memory_high = whole(entry(group / "memory.events", "high"))


def _cpu_v1(root: Path, paths: dict[str, str], reading: Reading) -> None:
    accounting = next(enclosing(controller(root, "cpuacct"), paths.get("cpuacct", "/")))
    nanoseconds = number(accounting / "cpuacct.usage")
    if nanoseconds is not None:
        reading.cpu_seconds = nanoseconds / 1e9
    stat = next(enclosing(controller(root, "cpu"), paths.get("cpu", "/"))) / "cpu.stat"
    periods, throttled = whole(entry(stat, "nr_periods")), whole(entry(stat, "throttled_time"))
    if periods is not None and throttled is not None:  # version 2 has no throttled_time
        reading.periods = periods
        reading.throttled_periods = whole(entry(stat, "nr_throttled"))
        reading.throttled_seconds = throttled / 1e9


def _memory_v1(root: Path, paths: dict[str, str], reading: Reading) -> None:
    group = next(enclosing(controller(root, "memory"), paths.get("memory", "/")))
    used = number(group / "memory.usage_in_bytes")
    if used is None:
        return
    limit = number(group / "memory.limit_in_bytes")
    reading.memory_used = used
    reading.memory_limit = None if limit is None or limit >= NO_LIMIT else limit
    reading.memory_cache = whole(entry(group / "memory.stat", "total_cache"))


def room(name: str, cgroup_root: Path, proc_root: Path, pid: int | str) -> Iterator[Sample]:
    """The tightest CPU quota around a process, in cores, and the memory that is left; what is not known is left out."""
    facts = cgroup.facts(cgroup_root, proc_root, pid)
    return room_samples(name, facts.get("cpu_quota"), facts.get("memory_available_bytes"))


def room_samples(name: str, cores: float | None, available: float | None) -> Iterator[Sample]:
    """The series of these two."""
    for metric, value in (("cpu_quota_cores", cores), ("memory_available_bytes", available)):
        if value is not None:
            yield Sample(f"spikewatch_cgroup_{metric}", (("group", name),), value)


def samples(name: str, reading: Reading) -> Iterator[Sample]:
    """The series of one group; what is None is left out."""
    labels = (("group", name),)
    for metric, value in (
        ("cpu_seconds_total", reading.cpu_seconds),
        ("cpu_periods_total", reading.periods),
        ("cpu_throttled_periods_total", reading.throttled_periods),
        ("cpu_throttled_seconds_total", reading.throttled_seconds),
        ("memory_used_bytes", reading.memory_used),
        ("memory_limit_bytes", reading.memory_limit),
        ("memory_cache_bytes", reading.memory_cache),
        ("memory_high_total", reading.memory_high),
        ("oom_kills_total", reading.oom_kills),
    ):
        if value is not None:
            yield Sample(f"spikewatch_cgroup_{metric}", labels, value)
    for resource, kinds in reading.pressure.items():
        for kind, seconds in kinds.items():
            both = (*labels, ("kind", kind), ("resource", resource))
            yield Sample("spikewatch_cgroup_pressure_seconds_total", both, seconds)

"""What the control group allows: CPU quota and memory left, for planning a change before it is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from sidecar.collectors.machine.groups import controller, enclosing, entry, memberships, number, text, whole

_NO_LIMIT = 1 << 60  # cgroup v1 writes "no limit" as the largest page-aligned int64


def facts(
    cgroup_root: Path = Path("/sys/fs/cgroup"), proc_root: Path = Path("/proc"), pid: int | str = "self"
) -> Mapping[str, float]:
    """`cpu_quota` in cores and `memory_available_bytes`; a fact that is not known or not limited is absent.

    Memory available is the tightest of every enclosing group's limit less what it uses, page cache that can be
    dropped not counted as used, and of the machine's own MemAvailable. In a container the mount usually starts at
    the container's own group, so limits further out are not visible.
    """
    found: dict[str, float] = {}
    quotas = list(_quotas(cgroup_root, proc_root, pid))
    if quotas:
        found["cpu_quota"] = min(quotas)
    available = list(_available(cgroup_root, proc_root, pid))
    if available:
        found["memory_available_bytes"] = float(max(0, min(available)))
    return found


class OomKills:
    """Processes killed for memory so far, of the outermost visible group that counts them; None where none does.

    With control groups v2 a group counts what is below it, too. A container usually sees its own group only; the
    whole pod shows where the pod's group is mounted. Which file tells is looked for once, and again when it is gone:
    this is asked every second.
    """

    def __init__(
        self, cgroup_root: Path = Path("/sys/fs/cgroup"), proc_root: Path = Path("/proc"), pid: int | str = "self"
    ) -> None:
        self._roots, self._pid = (cgroup_root, proc_root), pid
        self._file: Path | None = None

    def __call__(self) -> float | None:
        """Reads the file anew."""
        known = self._count(self._file)
        if known is None:
            self._file = next((f for f in self._files() if self._count(f) is not None), None)
            known = self._count(self._file)
        return known

    def _files(self) -> Iterator[Path]:
        """Where it may stand, the outermost group first."""
        cgroup_root, proc_root = self._roots
        paths = memberships(proc_root, self._pid)
        for groups, file in (
            (enclosing(cgroup_root, paths.get("", "/")), "memory.events"),
            (enclosing(controller(cgroup_root, "memory"), paths.get("memory", "/")), "memory.oom_control"),
        ):
            for group in reversed(list(groups)):
                yield group / file

    @staticmethod
    def _count(file: Path | None) -> float | None:
        count = None if file is None else whole(entry(file, "oom_kill"))
        return None if count is None else float(count)


def _quotas(cgroup_root: Path, proc_root: Path, pid: int | str) -> Iterator[float]:
    paths = memberships(proc_root, pid)
    for group in enclosing(cgroup_root, paths.get("", "/")):
        words = [*(text(group / "cpu.max") or "").split(), "", ""]
        quota, period = whole(words[0]), whole(words[1])  # `max` is no number: no quota
        if quota and period:
            yield quota / period
    for group in enclosing(controller(cgroup_root, "cpu"), paths.get("cpu", "/")):
        quota, period = number(group / "cpu.cfs_quota_us"), number(group / "cpu.cfs_period_us")
        if quota and period:  # -1 is no number here: no quota
            yield quota / period


def _available(cgroup_root: Path, proc_root: Path, pid: int | str) -> Iterator[int]:
    paths = memberships(proc_root, pid)
    for group in enclosing(cgroup_root, paths.get("", "/")):
        yield from _left(group, "memory.max", "memory.current", "inactive_file")
    for group in enclosing(controller(cgroup_root, "memory"), paths.get("memory", "/")):
        yield from _left(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    kib = whole(entry(proc_root / "meminfo", "MemAvailable:"))
    if kib is not None:
        yield kib * 1024


def _left(group: Path, limit_file: str, usage_file: str, cache: str) -> Iterator[int]:
    limit, used = number(group / limit_file), number(group / usage_file)
    if limit is None or used is None or limit >= _NO_LIMIT:
        return
    droppable = whole(entry(group / "memory.stat", cache)) or 0
    yield limit - max(0, used - droppable)

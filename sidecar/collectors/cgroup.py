"""What the control group allows: CPU quota and memory left, for planning a change before it is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

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


def oom_kills(
    cgroup_root: Path = Path("/sys/fs/cgroup"), proc_root: Path = Path("/proc"), pid: int | str = "self"
) -> float | None:
    """Processes killed for memory so far, of the outermost visible group that counts them; None where none does.

    With control groups v2 a group counts what is below it, too. A container usually sees its own group only; the
    whole pod shows where the pod's group is mounted.
    """
    paths = _paths(proc_root, pid)
    for groups, file in (
        (_enclosing(cgroup_root, paths.get("", "/")), "memory.events"),
        (_enclosing(_controller(cgroup_root, "memory"), paths.get("memory", "/")), "memory.oom_control"),
    ):
        counts = [n for group in groups if (n := _whole(_entry(group / file, "oom_kill"))) is not None]
        if counts:
            return float(counts[-1])
    return None


def _quotas(cgroup_root: Path, proc_root: Path, pid: int | str) -> Iterator[float]:
    paths = _paths(proc_root, pid)
    for group in _enclosing(cgroup_root, paths.get("", "/")):
        words = [*(_text(group / "cpu.max") or "").split(), "", ""]
        quota, period = _whole(words[0]), _whole(words[1])  # `max` is no number: no quota
        if quota and period:
            yield quota / period
    for group in _enclosing(_controller(cgroup_root, "cpu"), paths.get("cpu", "/")):
        quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if quota and period:  # -1 is no number here: no quota
            yield quota / period


def _available(cgroup_root: Path, proc_root: Path, pid: int | str) -> Iterator[int]:
    paths = _paths(proc_root, pid)
    for group in _enclosing(cgroup_root, paths.get("", "/")):
        yield from _left(group, "memory.max", "memory.current", "inactive_file")
    for group in _enclosing(_controller(cgroup_root, "memory"), paths.get("memory", "/")):
        yield from _left(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    kib = _whole(_entry(proc_root / "meminfo", "MemAvailable:"))
    if kib is not None:
        yield kib * 1024


def _left(group: Path, limit_file: str, usage_file: str, cache: str) -> Iterator[int]:
    limit, used = _number(group / limit_file), _number(group / usage_file)
    if limit is None or used is None or limit >= _NO_LIMIT:
        return
    droppable = _whole(_entry(group / "memory.stat", cache)) or 0
    yield limit - max(0, used - droppable)


def _paths(proc_root: Path, pid: int | str) -> dict[str, str]:
    """Controller → path of the process's group; the unified hierarchy has the empty name."""
    found = {}
    for line in (_text(proc_root / str(pid) / "cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _controller(cgroup_root: Path, name: str) -> Path:
    """v1 mounts cpu and cpuacct together on most machines, under either spelling."""
    for spelling in (name, f"{name},cpuacct", f"cpuacct,{name}"):
        if (cgroup_root / spelling).is_dir():
            return cgroup_root / spelling
    return cgroup_root / name


def _enclosing(root: Path, path: str) -> Iterator[Path]:
    """The group and everything around it up to the mount. Where /proc names a path that the mount does not show
    (a container without a cgroup namespace of its own), only the mount itself.
    """
    group = root / path.strip("/")
    if ".." in path or not group.is_dir():
        group = root
    while True:
        yield group
        if group == root:
            return
        group = group.parent


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # ValueError: a path with a NUL in it
        return None


def _entry(path: Path, key: str) -> str:
    """The word after `key` in a file of one entry a line."""
    for line in (_text(path) or "").splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == key:
            return words[1]
    return ""


def _number(path: Path) -> int | None:
    """None for a file that is missing, or says `max` or -1."""
    return _whole((_text(path) or "").strip())


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None

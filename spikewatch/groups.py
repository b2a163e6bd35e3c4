"""The trainer's control group for a sidecar that cannot see it: read here, from the container's own files, when asked.

Only the process of local rank 0 tells: all ranks of a container are in one group. It reads on the client's own thread.
Errors are counted, and after a few in a row nothing is read any more; the training never sees one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from spikewatch.asked import AskedFolder
from spikewatch.meter import Meter

FOLDER, FILE = "groups", "group.json"
EVERY = 5.0  # seconds between two readings
MOST_FAILURES = 5  # in a row

_NO_LIMIT = 1 << 60  # version 1 writes "no limit" as the largest page-aligned number
_PRESSURE = re.compile(r"^(some|full) .*total=(\d{1,19})", re.M)


class Groups:
    """The folders of one process's control groups, version 1, 2 or both, as its own mounts show them."""

    def __init__(self, proc_root: str = "/proc") -> None:
        """Raises OSError where /proc does not tell."""
        self.meminfo = _tried(f"{proc_root}/meminfo")
        paths = {}
        for line in _text(f"{proc_root}/self/cgroup").splitlines():
            _, _, rest = line.partition(":")
            names, _, path = rest.partition(":")
            paths.update(dict.fromkeys(names.split(","), path))
        self._found: dict[str, tuple[str, str]] = {}  # controller, "" for version 2 → (folder, top of its mount)
        for line in _text(f"{proc_root}/self/mountinfo").splitlines():
            words, _, behind = line.partition(" - ")
            fields, kind = words.split(), behind.split()
            if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
                continue
            root, top = (_unescaped(word) for word in fields[3:5])
            for name in [""] if kind[0] == "cgroup2" else kind[2].split(","):
                if name in paths and name not in self._found:
                    self._found[name] = _below(root, top, paths[name]), top

    def file(self, controller: str, name: str) -> str:
        """What a file of the own group says; empty where it is not there or not ours to read."""
        folder, _ = self._found.get(controller, ("", ""))
        return _tried(f"{folder}/{name}") if folder else ""

    def around(self, controller: str, *names: str) -> Iterator[tuple[str, ...]]:
        """The same of some files, of the own group and of every one around it that the mount shows."""
        folder, top = self._found.get(controller, ("", ""))
        while folder:
            yield tuple(_tried(f"{folder}/{name}") for name in names)
            folder = "" if folder == top else os.path.dirname(folder)


def read(groups: Groups, shm: str = "/dev/shm") -> dict[str, Any]:
    """What the group used, was refused and may have: seconds, bytes, cores. What is not known or not limited is left
    out. `pressure`: resource → kind → seconds.
    """
    found: dict[str, Any] = {}
    stat = _entries(groups.file("", "cpu.stat"))
    _put(found, "cpu_seconds", stat.get("usage_usec"), 1e6)
    _put(found, "periods", stat.get("nr_periods"))
    _put(found, "throttled_periods", stat.get("nr_throttled"))
    _put(found, "throttled_seconds", stat.get("throttled_usec"), 1e6)
    _put(found, "memory_used", _number(groups.file("", "memory.current")))
    _put(found, "memory_limit", _number(groups.file("", "memory.max")))
    _put(found, "memory_cache", _entries(groups.file("", "memory.stat")).get("file"))
    _put(found, "memory_high", _entries(groups.file("", "memory.events")).get("high"))
    _version_1(groups, found)
    _put(found, "oom_kills", _oom_kills(groups))
    quotas = list(_quotas(groups))
    if quotas:
        found["quota_cores"] = min(quotas)
    left = [*_left(groups), *_free(groups)]
    if left:
        found["memory_available"] = max(0, min(left))
    pressure = {}
    for resource in ("cpu", "memory"):
        kinds = _PRESSURE.findall(groups.file("", f"{resource}.pressure"))
        if kinds:
            pressure[resource] = {kind: int(total) / 1e6 for kind, total in kinds}
    try:
        room = os.statvfs(shm)
    except OSError:
        return {**found, "pressure": pressure}
    used = (room.f_blocks - room.f_bfree) * room.f_frsize
    return {**found, "pressure": pressure, "shm_size": room.f_blocks * room.f_frsize, "shm_used": used}


def _version_1(groups: Groups, found: dict[str, Any]) -> None:
    """Where a controller is in the old hierarchy, the unified one counts more than it controls: the old one wins."""
    _put(found, "cpu_seconds", _number(groups.file("cpuacct", "cpuacct.usage")), 1e9)
    stat = _entries(groups.file("cpu", "cpu.stat"))
    if "throttled_time" in stat:  # version 2 has none
        _put(found, "periods", stat.get("nr_periods"))
        _put(found, "throttled_periods", stat.get("nr_throttled"))
        _put(found, "throttled_seconds", stat["throttled_time"], 1e9)
    used = _number(groups.file("memory", "memory.usage_in_bytes"))
    if used is not None:
        limit = _number(groups.file("memory", "memory.limit_in_bytes"))
        found.pop("memory_limit", None)
        _put(found, "memory_used", used)
        _put(found, "memory_limit", None if limit is None or limit >= _NO_LIMIT else limit)
        _put(found, "memory_cache", _entries(groups.file("memory", "memory.stat")).get("total_cache"))


def _oom_kills(groups: Groups) -> int | None:
    """Of the outermost group that counts them: it counts what is below it, too."""
    for controller, name in (("", "memory.events"), ("memory", "memory.oom_control")):
        counts = [_entries(text).get("oom_kill") for (text,) in groups.around(controller, name)]
        known = [count for count in counts if count is not None]
        if known:
            return known[-1]
    return None


def _quotas(groups: Groups) -> Iterator[float]:
    for (text,) in groups.around("", "cpu.max"):
        quota, period = (_number(word) for word in [*text.split(), "", ""][:2])  # `max` is no number: no quota
        if quota and period:
            yield quota / period
    for texts in groups.around("cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us"):
        quota, period = (_number(text) for text in texts)  # -1 is no number here: no quota
        if quota and period:
            yield quota / period


def _left(groups: Groups) -> Iterator[int]:
    """What each group with a limit has left, page cache that can be dropped not counted as used."""
    for controller, limit, usage, cache in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for texts in groups.around(controller, limit, usage, "memory.stat"):
            most, used = _number(texts[0]), _number(texts[1])
            if most is not None and used is not None and most < _NO_LIMIT:
                yield most - max(0, used - _entries(texts[2]).get(cache, 0))


def _free(groups: Groups) -> Iterator[int]:
    """The machine's own MemAvailable."""
    kib = _entries(groups.meminfo).get("MemAvailable:")
    if kib is not None:
        yield kib * 1024


class GroupTeller:
    """What the client's thread does about it at every turn."""

    def __init__(
        self,
        folder: str,
        meter: Meter,
        *,
        proc_root: str = "/proc",
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder`: that of the sidecar's socket."""
        self._asked = AskedFolder(os.path.join(folder, FOLDER), FILE)
        self._meter, self._proc_root, self._every, self._clock = meter, proc_root, every, clock
        self._due = 0.0
        self._failures = 0

    def look(self) -> None:
        """Tells, where it is time and the sidecar asks. Never raises."""
        now = self._clock()
        if now < self._due or self._failures >= MOST_FAILURES:
            return
        self._due = now + self._every
        try:
            if self._asked.wanted():
                self._asked.tell(read(Groups(self._proc_root)))
            self._failures = 0
        except Exception:  # noqa: BLE001  the trainer must not see our mistakes
            self._meter.errors += 1
            self._failures += 1


def _below(root: str, top: str, path: str) -> str:
    """Where a group is, of which /proc says `path`, in a mount at `top` that shows the hierarchy from `root` on."""
    inside = path if root == "/" else path[len(root) :] if path == root or path.startswith(root + "/") else ""
    folder = top + inside.rstrip("/") if ".." not in inside else top
    return folder if os.path.isdir(folder) else top  # a path from outside a namespace names nothing here


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _tried(path: str) -> str:
    try:
        return _text(path)
    except OSError:
        return ""


def _unescaped(word: str) -> str:
    r"""Mountinfo writes a space as \040."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), word)


def _entries(text: str) -> dict[str, int]:
    """A file of one name and number a line."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        number = _number(words[1]) if len(words) > 1 else None
        if number is not None:
            found[words[0]] = number
    return found


def _number(text: str) -> int | None:
    """None for anything but a number without a sign."""
    word = text.strip()
    return int(word) if word.isascii() and word.isdigit() and len(word) < 20 else None


def _put(found: dict[str, Any], name: str, value: int | None, divisor: float = 1) -> None:
    if value is not None:
        found[name] = value if divisor == 1 else value / divisor

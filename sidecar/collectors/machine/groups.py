"""Control groups as the kernel shows them, version 1, 2 or both at once: plain readers, None where it does not tell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def memberships(proc_root: Path, pid: int | str) -> dict[str, str]:
    """Controller → path of the process's group; the unified hierarchy has the empty name."""
    found = {}
    for line in (text(proc_root / str(pid) / "cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for name in controllers.split(","):
            found[name] = path
    return found


def controller(cgroup_root: Path, name: str) -> Path:
    """v1 mounts cpu and cpuacct together on most machines, under either spelling."""
    for spelling in (name, "cpu,cpuacct", "cpuacct,cpu") if name in ("cpu", "cpuacct") else (name,):
        if (cgroup_root / spelling).is_dir():
            return cgroup_root / spelling
    return cgroup_root / name


def enclosing(root: Path, path: str) -> Iterator[Path]:
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


def text(path: Path) -> str | None:
    """None for a file that cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # ValueError: a path with a NUL in it
        return None


def entry(path: Path, key: str) -> str:
    """The word after `key` in a file of one entry a line."""
    for line in (text(path) or "").splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == key:
            return words[1]
    return ""


def number(path: Path) -> int | None:
    """None for a file that is missing, or says `max` or -1."""
    return whole((text(path) or "").strip())


def whole(word: str) -> int | None:
    """None for anything but a number without a sign."""
    return int(word) if word.isascii() and word.isdigit() and len(word) < 20 else None

"""Whose input and output is measured: the pod's processes, without the sidecar and what it started."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from sidecar.collectors.procfs import Process, pids, read_process, self_pid

MAX_PROCESSES = 256  # the processes with the most memory are kept: loaders and trainers, not shells
MAX_COMMANDS = 32  # label values; the rest is summed as "other"
OTHER = "other"


def targets(root: Path, commands: Collection[str] = ()) -> list[Process]:
    """The processes to look at, of the given commands where any are given. Raises OSError without /proc."""
    visible = [p for pid in pids(root) if (p := read_process(root, pid)) is not None and not p.kernel]
    ours = _own(visible, self_pid(root))
    found = [p for p in visible if p.pid not in ours and p.state != "Z" and (not commands or p.command in commands)]
    found.sort(key=lambda p: (-p.rss_pages, p.pid))
    return found[:MAX_PROCESSES]


def _own(visible: list[Process], me: int | None) -> set[int]:
    own = set() if me is None else {me}
    while True:
        more = {p.pid for p in visible if p.parent in own} - own
        if not more:
            return own
        own |= more


class Names:
    """Bounds the values of the label `command`. Commands that are gone make room where it is needed."""

    def __init__(self, limit: int = MAX_COMMANDS) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def make_room(self, present: Collection[str]) -> set[str]:
        """The commands that lost their name: their totals are to be forgotten."""
        if len(self._known | set(present)) <= self._limit:
            return set()
        gone = self._known - set(present)
        self._known -= gone
        return gone

    def __call__(self, command: str) -> str:
        """The command, or `other` where there are too many."""
        if command not in self._known:
            if len(self._known) >= self._limit:
                return OTHER
            self._known.add(command)
        return command

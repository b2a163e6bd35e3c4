"""The trainer's control group as the trainer tells of it, where it cannot be seen from here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sidecar.collectors.machine import control
from sidecar.collectors.trainerfile import TrainerFile
from sidecar.model import Sample

FOLDER, FILE = "groups", "group.json"  # as in spikewatch/groups.py, which this room must not import; held by a test
FRESH_S = 20.0  # it tells every five seconds

_COUNTS = ("periods", "throttled_periods", "memory_used", "memory_limit", "memory_cache", "memory_high", "oom_kills")
_SECONDS = ("cpu_seconds", "throttled_seconds")


class ToldGroup:
    """What the trainer told last, with every number looked at before it is used."""

    def __init__(self, run_dir: Path, clock: Callable[[], float]) -> None:
        """`clock`: seconds since 1970."""
        self._file = TrainerFile(run_dir / FOLDER, FILE, clock, FRESH_S)
        self._told: Mapping[str, Any] | None = None

    def ask(self) -> None:
        """To be called once a minute at least, as long as somebody wants to know."""
        self._file.ask()

    def stop(self) -> None:
        """Nobody needs to tell any more."""
        self._file.stop()

    def look(self) -> bool:
        """Reads the file again. Whether there is a fresh one."""
        self._told = self._file.told()
        return self._told is not None

    def reading(self) -> control.Reading:
        """The group, as `control.read` would find it in the trainer's container."""
        told = self._told or {}
        found = control.Reading()
        for name in (*_COUNTS, *_SECONDS):
            value = _number(told.get(name))
            if value is not None:
                setattr(found, name, value if name in _SECONDS else int(value))
        pressure = told.get("pressure")
        for resource in ("cpu", "memory"):
            kinds = pressure.get(resource) if isinstance(pressure, dict) else None
            if isinstance(kinds, dict):
                seconds = {kind: value for kind in ("some", "full") if (value := _number(kinds.get(kind))) is not None}
                found.pressure[resource] = seconds
        return found

    def room(self, group: str) -> Iterator[Sample]:
        """CPU it may use, and memory it may still take; nothing of what has no limit."""
        told = self._told or {}
        return control.room_samples(group, _number(told.get("quota_cores")), _number(told.get("memory_available")))

    def shm(self, group: str) -> Iterator[Sample]:
        """Its /dev/shm."""
        for what in ("size", "used"):
            value = _number((self._told or {}).get(f"shm_{what}"))
            if value is not None:
                yield Sample(f"spikewatch_shm_{what}_bytes", (("group", group),), value)


def _number(value: Any) -> float | None:
    """A number that a counter or a size can be; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 1e19 else None  # neither NaN nor infinity nor a whole number without end is

"""What this very GPU delivers when it is well: learned from clean samples, kept on disk, compared with today's.

A table of what each product should do would be wrong where it matters: fleets differ by up to 14 % between GPUs of one
kind, and published tables hold slips of a factor of a thousand.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

LEAST_SAMPLES = 20
MAD_TO_SIGMA = 1.4826
FLOOR = 0.55
"""Below so much of the rated bandwidth a GPU is not taken for well, however often it says so."""
SLOW_RATIO, SLOW_WINDOWS, SLOW_Z = 0.95, 3, 4.0
LOST_RATIO = 0.85


@dataclass(frozen=True, slots=True)
class Key:
    """What has to be the same for two measurements to be comparable."""

    uuid: str
    mig_profile: str
    driver: str
    ptx: str  # hash of the kernels
    power_limit_w: int
    memory_clock_khz: int

    def text(self) -> str:
        """As it is written to disk."""
        return "|".join(
            map(str, (self.uuid, self.mig_profile, self.driver, self.ptx, self.power_limit_w, self.memory_clock_khz))
        )


def ptx_hash(folder: Path) -> str:
    """Of all shipped kernels: another compiler or source starts a new baseline."""
    found = hashlib.sha256()
    for file in sorted(folder.glob("*.ptx")):
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Learned:
    """One number's past. `samples`: the clean ones it was learned from, newest last."""

    samples: tuple[float, ...] = ()
    slow: int = 0  # windows in a row that were slow

    @property
    def ready(self) -> bool:
        """Whether it can be compared with."""
        return len(self.samples) >= LEAST_SAMPLES

    @property
    def median(self) -> float:
        """Of the clean samples."""
        return statistics.median(self.samples)

    @property
    def mad(self) -> float:
        """Median absolute deviation; at least 0.1 % of the median, or a quiet GPU would alarm at nothing."""
        middle = self.median
        return max(statistics.median(abs(s - middle) for s in self.samples), abs(middle) * 1e-3)

    def with_sample(self, value: float, keep: int = 200) -> Learned:
        """With one clean sample more."""
        return replace(self, samples=(*self.samples, value)[-keep:])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Today's number against the learned one. `verdict`: learning, healthy, slow (not yet long), degraded."""

    ratio: float | None  # > 1 is better than usual, also where less is better
    z: float | None
    verdict: str


def compare(learned: Learned, value: float, *, higher_is_better: bool = True) -> tuple[Comparison, Learned]:
    """The comparison, and what is known afterwards. Nothing is learned here: see `clean`."""
    if not learned.ready:
        return Comparison(None, None, "learning"), learned
    ratio = value / learned.median if higher_is_better else learned.median / value if value else float("inf")
    z = (value - learned.median) / (MAD_TO_SIGMA * learned.mad)
    z = z if higher_is_better else -z
    slow = ratio < SLOW_RATIO and z < -SLOW_Z
    after = replace(learned, slow=learned.slow + 1 if slow else 0)
    if ratio < LOST_RATIO or after.slow >= SLOW_WINDOWS:
        return Comparison(ratio, z, "degraded"), after
    return Comparison(ratio, z, "slow" if slow else "healthy"), after


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What has to be fine for a sample to be learned from. None: not known, which is not fine."""

    idle: bool | None
    clocks_limited: bool | None  # any reason but idle: heat, power, a brake
    preempted: bool = False  # the events say far longer than the kernel itself
    share_of_rated: float | None = None  # of memory bandwidth, where the device tells its clocks


def clean(around: Surroundings) -> bool:
    """Whether a sample may be learned from."""
    if around.preempted or around.idle is not True or around.clocks_limited is not False:
        return False
    return around.share_of_rated is None or around.share_of_rated >= FLOOR


class Store:
    """Baselines in one JSON file, by key and number. What cannot be read is set aside, not trusted."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, dict[str, Any]] = {}
        try:
            known = json.loads(file.read_text(encoding="utf-8"))
            self._known = {str(k): dict(v) for k, v in known.items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError):
            aside = file.with_suffix(".unreadable")
            try:
                os.replace(file, aside)
            except OSError:
                pass

    def get(self, key: Key, number: str) -> Learned:
        """Empty where nothing is known, or what is known makes no sense."""
        return _learned(self._known.get(key.text(), {}).get(number, {}))

    def put(self, key: Key, number: str, learned: Learned) -> None:
        """In memory until `save`."""
        self._known.setdefault(key.text(), {})[number] = {"samples": list(learned.samples), "slow": learned.slow}

    def save(self) -> None:
        """In one piece or not at all. Raises OSError."""
        beside = self._file.with_suffix(".new")
        beside.write_text(json.dumps(self._known), encoding="utf-8")
        os.replace(beside, self._file)

    def rows(self) -> Iterable[tuple[str, str, Learned]]:
        """(key, number, what is known), for showing."""
        for key, numbers in self._known.items():
            for number in numbers:
                yield key, number, _learned(numbers[number])


def _learned(entry: Any) -> Learned:
    try:
        return Learned(tuple(float(s) for s in entry.get("samples", ())), int(entry.get("slow", 0)))
    except (TypeError, ValueError, AttributeError, OverflowError):
        return Learned()


def number_of(reading: Mapping[str, Any]) -> str:
    """A reading's name with its labels: what a baseline is kept for."""
    labels = ",".join(f"{name}={value}" for name, value in sorted(reading["labels"].items()))
    return f"{reading['metric']}{{{labels}}}"


def higher_is_better(metric: str) -> bool:
    """Times are better when they are short; a conflict's slowdown is a property, not a speed."""
    return not metric.endswith("_seconds")

"""What a vendor's collector says of one GPU, and the samples made of it: names, labels and derived figures."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sidecar.collectors.gpu.catalogue import PREFIX
from sidecar.collectors.gpu.lag import MIN_SAMPLES, lag_seconds
from sidecar.collectors.gpu.waiting import Moment, Waiting
from sidecar.model import Labels, Sample, Status, labels_of

LAG_WINDOW_S, WAIT_WINDOW_S = 60.0, 10.0
LAG_EVERY_S = 5.0
MOMENTS_KEPT = 1200  # a minute at the fastest pace there is
_USED, _FREE, _USED_RATIO = (("memory_used_bytes", ()), ("memory_free_bytes", ()), ("memory_used_ratio", ()))


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU, or one MIG device, now.

    `values`, and in `steady` those that change seldom: name in the catalogue without its prefix, with labels beside gpu
    and index in the pairs → value. What is not known is left out. The same `steady` object again means no change.
    `moments`: the fast samples since the last reading, oldest first.
    """

    gpu: str
    index: str
    values: Mapping[tuple[str, Labels], float]
    steady: Mapping[tuple[str, Labels], float] = field(default_factory=dict)
    moments: Sequence[Moment] = ()
    info: Mapping[str, str] = field(default_factory=dict)  # name, sharing, parent
    capabilities: Mapping[str, Status] = field(default_factory=dict)
    up: bool = True


class Gpu:
    """The fast samples of one GPU over the last minute, and what they come to."""

    def __init__(self) -> None:
        self.moments: deque[Moment] = deque(maxlen=MOMENTS_KEPT)
        self._waiting = Waiting(WAIT_WINDOW_S)
        self._lag: float | None = None
        self._lag_at = -LAG_EVERY_S

    def add(self, moments: Iterable[Moment]) -> None:
        """Takes new moments in, drops those over a minute old."""
        for moment in moments:
            self.moments.append(moment)
            self._waiting.add(moment)
        if self.moments:
            oldest = self.moments[-1].t_s - LAG_WINDOW_S
            while self.moments[0].t_s < oldest:
                self.moments.popleft()

    def derived(self) -> Iterator[tuple[str, float]]:
        """(name, value) of the derived metrics that can be told now."""
        if not self.moments:
            return
        now = self.moments[-1].t_s
        if len(self.moments) >= MIN_SAMPLES and now - self._lag_at >= LAG_EVERY_S:
            self._lag_at = now
            both = [(m.t_s, m.sm, m.dram) for m in self.moments if m.sm is not None and m.dram is not None]
            times, sm, dram = zip(*both, strict=True) if both else ((), (), ())
            self._lag = lag_seconds(times, sm, dram)
        if self._lag is not None:
            yield "sm_dram_lag_seconds", self._lag
        waiting = self._waiting.ratio()
        if waiting is not None:
            yield "busy_not_computing_ratio", waiting


class _Series:
    """Names and labels of one GPU's series: made once for each, not once a second."""

    def __init__(self, gpu: str, index: str) -> None:
        self.index = index
        self._gpu = gpu
        self._made: dict[tuple[str, Labels], tuple[str, Labels]] = {}

    def of(self, key: tuple[str, Labels]) -> tuple[str, Labels]:
        """(metric, labels) of a name without prefix and its own labels."""
        found = self._made.get(key)
        if found is None:
            name, own = key
            found = self._made[key] = (
                PREFIX + name,
                labels_of({"gpu": self._gpu, "index": self.index, **dict(own)}),
            )
        return found


class Gpus:
    """Makes samples of readings. Holds a minute of fast samples for each GPU that is still there."""

    def __init__(self) -> None:
        self._gpus: dict[str, Gpu] = {}
        self._series: dict[str, _Series] = {}

    def quick(self, readings: Sequence[Reading]) -> Iterator[Sample]:
        """What changes all the time; a GPU that is no longer among these is forgotten."""
        present = {r.gpu for r in readings}
        if not present.issuperset(self._series):
            for gpu in self._series.keys() - present:
                del self._series[gpu]
                self._gpus.pop(gpu, None)
        for reading in readings:
            yield from self._quick(reading)

    def steady(self, readings: Sequence[Reading]) -> Iterator[Sample]:
        """What changes seldom."""
        for reading in readings:
            series = self._of(reading)
            yield Sample(*series.of(("up", ())), float(reading.up))
            if reading.info:
                yield Sample(*series.of(("info", labels_of(reading.info))), 1.0)
            for capability, status in reading.capabilities.items():
                what = labels_of({"capability": capability, "state": status.state.value, "reason": status.reason})
                yield Sample(*series.of(("capability", what)), 1.0)
            for key, value in reading.steady.items():
                yield Sample(*series.of(key), value)

    def _quick(self, reading: Reading) -> Iterator[Sample]:
        series = self._of(reading)
        for key, value in reading.values.items():
            yield Sample(*series.of(key), value)
        used, free = reading.values.get(_USED), reading.values.get(_FREE)
        if used is not None and free is not None and used + free > 0:
            yield Sample(*series.of(_USED_RATIO), used / (used + free))
        if not reading.up:
            self._gpus.pop(reading.gpu, None)
            return
        history = self._gpus.get(reading.gpu)
        if history is None:
            history = self._gpus[reading.gpu] = Gpu()
        history.add(reading.moments)
        for name, value in history.derived():
            yield Sample(*series.of((name, ())), value)

    def _of(self, reading: Reading) -> _Series:
        found = self._series.get(reading.gpu)
        if found is None or found.index != reading.index:
            found = self._series[reading.gpu] = _Series(reading.gpu, reading.index)
        return found

"""What a vendor's collector says of one GPU, and the samples made of it: names, labels and derived figures."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sidecar.collectors.gpu.catalogue import PREFIX
from sidecar.collectors.gpu.lag import lag_seconds
from sidecar.collectors.gpu.waiting import Moment, busy_not_computing_ratio
from sidecar.model import Labels, Sample, Status, labels_of

LAG_WINDOW_S, WAIT_WINDOW_S = 60.0, 10.0
LAG_EVERY_S = 5.0
MOMENTS_KEPT = 1200  # a minute at the fastest pace there is


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
        self._lag: float | None = None
        self._lag_at = -LAG_EVERY_S

    def add(self, moments: Iterable[Moment]) -> None:
        """Takes new moments in, drops those over a minute old."""
        self.moments.extend(moments)
        if self.moments:
            oldest = self.moments[-1].t_s - LAG_WINDOW_S
            while self.moments[0].t_s < oldest:
                self.moments.popleft()

    def derived(self) -> Iterator[tuple[str, float]]:
        """(name, value) of the derived metrics that can be told now."""
        if not self.moments:
            return
        now = self.moments[-1].t_s
        if now - self._lag_at >= (LAG_EVERY_S if self._lag is not None else 1.0):
            self._lag_at = now
            both = [(m.t_s, m.sm, m.dram) for m in self.moments if m.sm is not None and m.dram is not None]
            times, sm, dram = zip(*both, strict=True) if both else ((), (), ())
            self._lag = lag_seconds(times, sm, dram)
        if self._lag is not None:
            yield "sm_dram_lag_seconds", self._lag
        waiting = busy_not_computing_ratio(m for m in self.moments if m.t_s > now - WAIT_WINDOW_S)
        if waiting is not None:
            yield "busy_not_computing_ratio", waiting


class Gpus:
    """Makes samples of readings. Holds a minute of fast samples for each GPU that is still there."""

    def __init__(self) -> None:
        self._gpus: dict[str, Gpu] = {}
        self._present: set[str] = set()
        self._labels: dict[tuple[str, str, Labels], Labels] = {}

    def quick(self, readings: Sequence[Reading]) -> Iterator[Sample]:
        """What changes all the time; a GPU that is no longer among these is forgotten."""
        present = {r.gpu for r in readings}
        gone, self._present = self._present - present, present
        for gpu in gone:
            self._gpus.pop(gpu, None)
        if gone:
            self._labels = {key: labels for key, labels in self._labels.items() if key[0] in present}
        for reading in readings:
            yield from self._quick(reading)

    def steady(self, readings: Sequence[Reading]) -> Iterator[Sample]:
        """What changes seldom."""
        for reading in readings:
            gpu, index = reading.gpu, reading.index
            yield Sample(f"{PREFIX}up", self._labelled(gpu, index, ()), float(reading.up))
            if reading.info:
                yield Sample(f"{PREFIX}info", self._labelled(gpu, index, labels_of(reading.info)), 1.0)
            for capability, status in reading.capabilities.items():
                what = labels_of({"capability": capability, "state": status.state.value, "reason": status.reason})
                yield Sample(f"{PREFIX}capability", self._labelled(gpu, index, what), 1.0)
            for (name, own), value in reading.steady.items():
                yield Sample(PREFIX + name, self._labelled(gpu, index, own), value)

    def _quick(self, reading: Reading) -> Iterator[Sample]:
        gpu, index = reading.gpu, reading.index
        labels = self._labelled(gpu, index, ())
        for (name, own), value in reading.values.items():
            yield Sample(PREFIX + name, self._labelled(gpu, index, own) if own else labels, value)
        used, free = (reading.values.get((f"memory_{what}_bytes", ())) for what in ("used", "free"))
        if used is not None and free is not None and used + free > 0:
            yield Sample(f"{PREFIX}memory_used_ratio", labels, used / (used + free))
        if not reading.up:
            self._gpus.pop(gpu, None)
            return
        history = self._gpus.setdefault(gpu, Gpu())
        history.add(reading.moments)
        for name, value in history.derived():
            yield Sample(PREFIX + name, labels, value)

    def _labelled(self, gpu: str, index: str, own: Labels) -> Labels:
        """Labels are made once for each series, not once a second."""
        key = (gpu, index, own)
        found = self._labels.get(key)
        if found is None:
            found = self._labels[key] = labels_of({"gpu": gpu, "index": index, **dict(own)})
        return found

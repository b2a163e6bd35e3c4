"""A sink that remembers everything, for the tests of what writes to one."""

import math
import os
import struct
from pathlib import Path

import pytest

from sidecar.hooks import Handle
from sidecar.model import STALE, labels_of


class MemorySink:
    """One block for each metric and producer; room for `room` series."""

    def __init__(self, room=1000):
        self.room = room
        self.handles = {}
        self.blocks = {}
        self.pushes = []

    def series(self, metric, labels, producer=""):
        key = (metric, producer, labels_of(labels))
        if key not in self.handles:
            if len(self.handles) >= self.room:
                return None
            block = self.blocks.setdefault((metric, producer), len(self.blocks))
            self.handles[key] = Handle(block, len(self.handles))
        return self.handles[key]

    def push(self, block, t_ms, values):
        self.pushes.append((block, t_ms, dict(values)))

    def at(self, t_ms, metric, **labels):
        """What was pushed for a series at a time: a number, "stale", or None for nothing."""
        wanted = {h for (m, _, lab), h in self.handles.items() if m == metric and lab == labels_of(labels)}
        found = [v[h.column] for b, t, v in self.pushes for h in wanted if b == h.block and t == t_ms and h.column in v]
        assert len(found) <= 1, "two values of one series at one time"
        return ("stale" if _is_stale(found[0]) else found[0]) if found else None

    def last(self, metric, **labels):
        """The newest thing pushed for a series."""
        times = sorted({t for _, t, _ in self.pushes}, reverse=True)
        return next((v for t in times if (v := self.at(t, metric, **labels)) is not None), None)

    def now(self, metric):
        """The label sets of a metric whose newest value is no end, with those values."""
        labels = {lab for m, _, lab in self.handles if m == metric}
        return {lab: v for lab in labels if (v := self.last(metric, **dict(lab))) != "stale"}


def _is_stale(value):
    return math.isnan(value) and struct.pack("<d", value) == struct.pack("<d", STALE)


@pytest.fixture(scope="session")
def sink_of():
    """Makes a sink."""
    return MemorySink


@pytest.fixture
def nvml(nvml_library, tmp_path, monkeypatch):
    """Makes a real collector with a real child on the unmodified nvidia-ml-py, over a scenario."""
    from nvmlbench import NvmlBench

    made = []

    def make(gpus=1, *, without=(), **settings):
        file = tmp_path / f"scenario{len(made)}"
        monkeypatch.setenv("FAKE_NVML", str(file))
        made.append(NvmlBench(file, gpus, nvml_library(*without), settings))
        return made[-1]

    yield make
    for bench in made:
        bench.collector.close()


@pytest.fixture
def small_group():
    """A real group with a tenth of a core, version 1 or 2; skips where none can be made."""
    root = Path("/sys/fs/cgroup")
    name = f"spikewatch-test-{os.getpid()}"
    for folder, files in (
        (root / "cpu" / name, {"cpu.cfs_quota_us": "2000", "cpu.cfs_period_us": "20000"}),
        (root / name, {"cpu.max": "2000 20000"}),
    ):
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            for file, content in files.items():
                (folder / file).write_text(content)
        except OSError:
            folder.rmdir()
            continue
        yield folder
        folder.rmdir()
        return
    pytest.skip("no control group can be made here")

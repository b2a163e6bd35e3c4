"""The engine's bench in small: it measures what it says it measures."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench import _engine_ours, engine
from bench._engine_load import BOUNDS, metrics, rules
from bench._remote_write import RemoteWrite


@pytest.fixture(autouse=True)
def no_peers(monkeypatch):
    monkeypatch.delenv("SPIKEWATCH_PEERS", raising=False)


def test_every_rule_is_evaluated_over_its_series_and_never_fires():
    replay = _engine_ours.replay(2, "1m", history_s=70, ticks=10)
    assert set(replay.rules) == set(rules("1m"))
    assert all(len(times) == len(replay.ticks) == 5 for times in replay.rules.values())
    assert replay.ticks.min() > 0


def test_the_load_is_the_same_every_time_and_looks_like_metrics():
    first, second = list(metrics(3, 100)), list(metrics(3, 100))
    assert all((a.values == b.values).all() for a, b in zip(first, second, strict=True))
    gauges, counters, buckets = first
    assert (np.diff(counters.values, axis=0) >= 0).all()
    assert len(buckets.labels) == 3 * len(BOUNDS)
    assert (np.diff(buckets.values[50].reshape(3, len(BOUNDS)), axis=1) >= 0).all()
    assert 40 < gauges.values.mean() < 80


def test_without_peers_there_are_rows_of_ours_alone():
    size = engine.Size({1: ("1m",)}, ticks=8, replays=2, rounds=1, every_s={1: 1})
    rows = engine.measure(1, size)
    assert {name.split(",")[0] for name in rows} == {"N=1 1m ours"}
    assert all(row["value"] > 0 for row in rows.values())


def test_series_are_written_as_the_protocol_wants(monkeypatch):
    sent = []
    monkeypatch.setattr("urllib.request.urlopen", lambda request, timeout: sent.append(request) or _Answer())
    writer = RemoteWrite("http://127.0.0.1:1/api/v1/write", np.array([1_700_000_000_000, 1_700_000_001_000]))
    writer.add({"__name__": "m", "a": "b"}, np.array([1.5, 2.5]))
    writer.flush()
    body = sent[0].data
    assert b"\x0a\x08__name__\x12\x01m" in body
    assert np.array([1.5]).tobytes() in body
    assert body[:1] == bytes([len(body) - 6])  # the frame begins with the length of what it holds
    assert sent[0].get_header("Content-encoding") == "snappy"
    writer.flush()
    assert len(sent) == 1


class _Answer:
    def read(self):
        return b""

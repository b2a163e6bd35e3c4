"""A sidecar as it comes, on this machine, with every shipped rule: where nothing is wrong nothing fires."""

import asyncio
import json

import pytest

from sidecar import promql
from sidecar.app.rulebook import load_rulebook
from sidecar.app.sidecar import Sidecar
from sidecar.clock import FakeClock
from sidecar.plugins import Registry
from sidecar.settings import load

STEP_MS = 15_000


@pytest.fixture
def sidecar(tmp_path):
    (tmp_path / "spikewatch.yaml").write_text(json.dumps({"state_dir": "state", "run_dir": "run"}))
    registry = Registry()
    registry.discover()
    loaded = load(tmp_path / "spikewatch.yaml", {})
    rulebook = load_rulebook(loaded, registry)
    made = Sidecar(None, loaded, rulebook, registry, FakeClock(1_500_000), environ={}, write_line=lambda line: None)
    with asyncio.Runner() as runner:
        runner.run(made.start())
        yield made
        runner.run(made.stop())


def test_without_a_trainer_a_bill_and_a_gateway_no_shipped_alert_fires(sidecar):
    for _ in range(10):
        sidecar.clock.advance(STEP_MS)
        sidecar.tick()
        assert sidecar.collectors.settle(30)
    now_ms = sidecar.clock.now_ms()
    up = {dict(k)["collector"]: v for k, v in promql.evaluate(sidecar.store, "spikewatch_collector_up", now_ms)}
    assert up["process"] == 1  # collectors have run, and one that sees nothing is there to be judged
    assert up["trainer"] == 0
    found = {a.name: dict(a.labels) for a in sidecar.manager.alerts() if dict(a.labels)["severity"] != "info"}
    assert found == {}
    errors = "spikewatch_rule_evaluation_failures_total"
    assert {s.metric: s.value for s in sidecar.samples()}[errors] == 0

"""Memory under churn: ten minutes of GPUs that are divided anew every two seconds and processes that come and go."""

import json
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from bench._live import descendants, sidecar

ROOT = Path(__file__).parents[2]
SECONDS, WARM_UP = 600, 240  # the store keeps a minute here; what else is bounded has found its size by then
MAX_SLOPE = 100.0  # kB a minute: a leak of one label set a series would be ten times that

# Shipped rules look back an hour and series that ended are kept as long; an alert that resolved is kept for 15 minutes.
# What that comes to ten minutes cannot show.
RULES = [
    {"record": "busy:mean", "expr": "avg_over_time(spikewatch_gpu_busy_ratio[30s])"},
    {"record": "memory:most", "expr": "max_over_time(spikewatch_gpu_memory_used_bytes[30s])"},
    {"record": "power:mean", "expr": "rate(spikewatch_gpu_energy_joules_total[30s])"},
    {"record": "cpu", "expr": "sum without (role) (rate(spikewatch_command_cpu_seconds_total[30s]))"},
    {
        "alert": "Hot",
        "expr": "max without (gpu, index) (quantile_over_time(0.9, spikewatch_gpu_sm_active_ratio[30s])) > 0.5",
        "for": "5s",
    },
]


def story(library, scenario, rules, seconds, warm_up):
    """(seconds; kB: resident, private of the tree, PSS of the tree) of a sidecar while everything changes."""
    nvml = {"library_path": str(library), "slow": "1s", "rare": "1s"}
    config = {
        "collectors": {"nvml": nvml, "process": {"interval": "1s"}},
        "store": {"min_keep": "1m"},
        "rules": [str(rules)],
        "responses": [],
        "collector_cpu_budget": None,
    }
    seen, turn, sleepers = [], 0, []
    with sidecar(config) as live:
        began = time.monotonic()
        try:
            while (now := time.monotonic() - began) < seconds:
                turn += 1
                g = 4 + turn % 4  # one of four GPUs after the other
                uuids = {f"gpu{g}.mig{m}.uuid": (turn * 7 + m) % 10_000 for m in range(7)}
                lost = {"gpu0.xid": 13 + turn % 2, "gpu3.fail.any": 15 * (turn % 5 == 0)}
                scenario.set({f"gpu{g}.migs": 1 + turn % 7, **uuids, **lost})
                sleepers.append(subprocess.Popen(["sleep", "30"]))
                if len(sleepers) > 8:
                    gone = sleepers.pop(0)
                    gone.kill()
                    gone.wait(10)
                if turn % 5 == 0 and now > warm_up:
                    shared = live.proportional_bytes() / 1000
                    seen.append((now, live.resident_bytes() / 1000, private(live.pid), shared))
                time.sleep(max(0.0, began + 2 * turn - time.monotonic()))
            page = live.get("/metrics").decode()
        finally:
            for one in sleepers:
                one.kill()
                one.wait(10)
    return seen, page


def private(pid):
    """kB that only the process and its descendants have: what is shared changes with whoever else runs here."""
    found = 0
    for one in descendants(pid):
        for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
            found += int(line.split()[1]) * 1024 / 1000 if line.startswith("Private_Dirty:") else 0
    return found


@pytest.mark.proof
def test_memory_does_not_grow_while_series_come_and_go_for_ten_minutes(tmp_path, record_proof):
    import fakenvml

    if fakenvml.compiler() is None:
        pytest.skip("no C compiler to build the stand-in for libnvidia-ml.so.1 with")
    library = fakenvml.build(tmp_path / "lib")
    scenario = fakenvml.Scenario(tmp_path / "scenario", 8)
    rules = tmp_path / "churn.rules.yaml"
    rules.write_text(json.dumps({"groups": [{"name": "churn", "rules": RULES}]}))
    os.environ.update(scenario.environment)
    try:
        seen, page = story(library, scenario, rules, SECONDS, WARM_UP)
    finally:
        del os.environ["FAKE_NVML"]
    times, resident, own, shared = map(np.array, zip(*seen, strict=True))
    slope, whole = (60 * float(np.polyfit(times, kilobytes, 1)[0]) for kilobytes in (resident, own))
    proof = {
        "seconds": SECONDS,
        "resident_mb": round(float(resident.max()) / 1000, 1),
        "pss_of_the_tree_mb": round(float(shared.max()) / 1000, 1),
        "slope_kb_per_minute": round(slope, 1),
        "slope_of_the_tree_private_kb_per_minute": round(whole, 1),
    }
    record_proof("memory", proof)
    assert "spikewatch_gpu_up" in page
    assert "\ncpu{" in page
    assert 'alertname="Hot"' in page
    assert max(slope, whole) < MAX_SLOPE, proof
    assert resident.max() < 90_000, (
        proof
    )  # with 3 000 ended series beside those that live; bench.collectors has it without
    assert shared.max() < 110_000, proof

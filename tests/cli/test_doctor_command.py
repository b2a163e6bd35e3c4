"""`spikewatch doctor` as it is run."""

import json

import pytest
from click.testing import CliRunner

from sidecar.cli.doctor import doctor
from sidecar.plugins import Registry


@pytest.fixture
def run(tmp_path):
    def run(*args, **collectors):
        registry = Registry()
        registry.discover()
        for name in registry.collectors:
            collectors.setdefault(name, {"enabled": False})
        (tmp_path / "spikewatch.yaml").write_text(
            json.dumps({"state_dir": "state", "run_dir": "run", "collectors": collectors})
        )
        return CliRunner().invoke(doctor, ["--config", str(tmp_path / "spikewatch.yaml"), *args])

    return run


def test_a_pod_without_a_gpu_is_told_what_would_show_it_one(run, tmp_path):
    result = run(nvml={"dev_root": str(tmp_path)})
    assert "collector nvml: unavailable (no_device)" in result.output
    assert "  fix: let the container see the node's GPUs" in result.output
    assert "trainer's socket" in result.output
    assert result.exit_code == 0


def test_strict_makes_anything_unseen_an_error(run, tmp_path):
    assert run("--strict", nvml={"dev_root": str(tmp_path)}).exit_code == 1


def test_json_has_every_metric_with_scope_quality_and_what_it_was_checked_against(run):
    data = json.loads(run("--json", process={}).stdout)
    metrics = {m["name"]: m for m in data["metrics"]}
    threads = metrics["spikewatch_process_threads"]
    assert threads["seen"] is True
    assert threads["scope"] == "process"
    assert threads["verified"]["against"] == "device"
    gpu = metrics["spikewatch_gpu_sm_active_ratio"]
    assert (gpu["seen"], gpu["quality"], gpu["scope"]) == (False, "averaged", "device")
    assert gpu["verified"]["against"] in ("fake", "device")
    assert metrics["spikewatch_ticks_total"]["verified"]["against"] == "own"
    assert {c["what"] for c in data["collectors"]} >= {"process", "nvml"}


def test_the_table_of_metrics_marks_what_is_seen(run):
    lines = run("--metrics", process={}).output.splitlines()
    (threads,) = [line for line in lines if " spikewatch_process_threads " in f" {line} ".replace("  ", " ")]
    assert threads.startswith("seen")
    assert "[process, exact]  device" in threads


def test_a_wrong_configuration_is_refused_with_its_place(run, tmp_path):
    result = run(nvml={"fast": "10ms"})
    assert result.exit_code == 1
    assert "spikewatch.yaml:1:" in result.output

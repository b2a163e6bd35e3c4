"""`make device-check`, with a stand-in where the GPU would be."""

import importlib.util
import json
import subprocess
import sys

import pytest

from sidecar.collectors.nvml import check
from sidecar.collectors.nvml.evidence import EVIDENCE
from sidecar.model import Evidence


@pytest.fixture
def written(nvml_library, tmp_path, monkeypatch):
    """Runs the check over a scenario; gives its exit code, what it prints and what it would note."""
    import fakenvml

    def run(capsys, values=()):
        scenario = fakenvml.Scenario(tmp_path / "scenario", 2)
        scenario.set(dict(values))
        file = tmp_path / "evidence.py"
        arguments = ["--library", str(nvml_library()), "--evidence", str(file), "--repeat", "5", "--watch", "1.2"]
        command = [sys.executable, "-m", "sidecar.collectors.nvml.check", *arguments]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env={**_environ(), **scenario.environment}
        )
        return result.returncode, json.loads(result.stdout), file

    return run


def _environ():
    import os

    return dict(os.environ)


def loaded(file):
    spec = importlib.util.spec_from_file_location("evidence_written", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EVIDENCE


def test_it_prints_what_calls_cost_and_which_are_refused_and_notes_what_was_read(written, capsys):
    code, found, file = written(capsys, {"fail.nvmlDeviceGetEnforcedPowerLimit": 4, "fielderr.82": 3})
    assert code == 0
    assert found["gpus"] == 2
    assert set(found["calls"]["nvmlGpmSampleGet"]) == {"p50_us", "p99_us", "max_us"}
    assert found["calls"]["nvmlDeviceGetEnforcedPowerLimit"]["refused"] == 4
    assert found["calls"]["field 82"]["refused"] == 3
    assert {"memory", "gpm", "power", "clocks"} <= set(found["groups"])
    known = loaded(file)
    assert known["gpm"].against == "fake", "a library that was named is no device"
    assert "driver 999.99" in known["gpm"].detail
    assert known["xid"] == EVIDENCE["xid"], "no event was seen"


def test_a_machine_without_a_gpu_prints_why_and_leaves_the_file_alone(written, capsys):
    code, found, file = written(capsys, {"fail.nvmlInitWithFlags": 9})
    assert code == 1
    assert found["failed"] == 9
    assert not file.exists()


def test_what_was_not_read_stays_as_it_was_known():
    before = {"memory": Evidence("fake", "2026-01-01", "x"), "gpm": Evidence("device", "2026-02-02", "H100")}
    found = {"groups": ["memory"], "name": "NVIDIA H200", "driver": "570.1"}
    after = check.evidence(found, "device", before, "2026-03-03")
    assert after == {
        "memory": Evidence("device", "2026-03-03", "NVIDIA H200, driver 570.1"),
        "gpm": Evidence("device", "2026-02-02", "H100"),
    }


def test_the_file_that_is_there_is_as_the_check_would_write_it():
    assert check.HERE.read_text() == check.source(EVIDENCE)


def test_a_group_with_an_impossible_value_is_not_noted():
    assert check._plausible("gpm", {"spikewatch_gpu_sm_active_ratio": 0.5})
    assert not check._plausible("gpm", {"spikewatch_gpu_sm_active_ratio": 7.5})
    assert not check._plausible("power", {"spikewatch_gpu_power_watts": float("nan")})
    assert not check._plausible("power", {})

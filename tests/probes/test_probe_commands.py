"""`python -m probes`: what people see of it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from probes import budget
from probes.commands import main

ROOT = Path(__file__).parents[2]


def ran(*arguments):
    out = io.StringIO()
    return main(list(arguments), out), out.getvalue()


@pytest.fixture
def fake(fake_gpu, monkeypatch):
    """Makes this process's children use the fake driver."""

    def use(**faults):
        for name, value in fake_gpu(**faults).items():
            monkeypatch.setenv(name, value)

    return use


def test_the_list_tells_of_every_probe_what_it_costs():
    code, text = ran("list")
    assert code == 0
    assert len(text.splitlines()) == 13
    code, text = ran("list", "--json")
    assert {"memory", "tensor", "launch"} <= {json.loads(line)["probe"] for line in text.splitlines()}


def test_numbers_of_a_fake_device_say_that_they_are_no_rates(fake):
    fake()
    code, text = ran("run", "memory")
    assert code == 0
    assert "device: fake" in text
    lines = [line for line in text.splitlines() if line.startswith("spikewatch_gpu_probe_")]
    assert len(lines) == 4
    assert all(line.endswith("(fake device: not a rate)") for line in lines)
    code, text = ran("run", "--json", "launch")
    assert all(json.loads(line)["device"] == "fake" for line in text.splitlines())


def test_a_machine_without_a_gpu_says_so_and_fails(fake):
    fake(devices=0)
    assert ran("run") == (1, "result: no_device  reason: cuInit: CUDA_ERROR_NO_DEVICE (100)\n")


def test_an_unknown_probe_is_refused_with_the_names_there_are(capsys):
    assert ran("run", "memroy") == (2, "")
    assert "there is no probe 'memroy' (light, all, memory," in capsys.readouterr().err


def test_the_budget_is_kept_between_runs(fake, tmp_path):
    fake()
    code, _ = ran("run", "launch", "--state", str(tmp_path))
    assert code == 0
    assert budget.load(tmp_path / "probe_budget.json").tokens_s < 2e-3
    spent = [ran("run", "launch", "--state", str(tmp_path)) for _ in range(6)][-1]
    assert spent[0] == 1
    assert "result: skipped_budget" in spent[1]


def test_a_sweep_that_costs_more_than_the_budget_holds_never_runs(fake, tmp_path):
    fake()
    code, text = ran("run", "all", "all", "--state", str(tmp_path))
    assert code == 1
    assert "skipped_budget" in text


def test_nothing_learned_is_said_and_is_no_error(tmp_path):
    code, text = ran("baseline", "--state", str(tmp_path))
    assert (code, text) == (0, "nothing learned yet: 20 clean samples are needed\n")


def test_importing_the_runner_takes_the_standard_library_and_little_time():
    code = "import sys, time; t = time.perf_counter(); import probes; print(time.perf_counter() - t)"
    code += (
        "; import probes.runner, probes.child; print(any(m.split('.')[0] in ('numpy', 'torch') for m in sys.modules))"
    )
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert said[1] == "False"
    assert float(said[0]) < 0.5, "milliseconds where nothing else runs"


@pytest.mark.parametrize("command", [["run", "memory"], ["turn", "--situation", '{"trainer_started": false}']])
def test_a_state_folder_that_cannot_be_is_told_in_one_line(fake, tmp_path, capsys, command):
    fake()
    taken = tmp_path / "file"
    taken.write_text("")
    code, text = ran(*command, "--state", str(taken))
    assert code == 1
    assert f"--state {taken} cannot be used" in text + capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--ranks", "0"], ["--ranks", "-1"], ["--sizes", "-5"], ["--sizes", "3"]])
def test_a_reduction_over_nobody_or_of_nothing_is_wrong_usage(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        ran("allreduce", *wrong)
    assert ended.value.code == 2
    assert "a whole number from" in capsys.readouterr().err


def test_baselines_that_make_no_sense_are_shown_as_nothing_learned(tmp_path):
    (tmp_path / "probe_baselines.json").write_text('{"gpu": {"read": 3, "copy": {"samples": [1], "slow": 1e999}}}')
    code, text = ran("baseline", "--state", str(tmp_path))
    assert (code, text.count("0 samples")) == (0, 2)

"""Continuous probing, turn by turn: what is allowed, paid for, compared and learned."""

from __future__ import annotations

import json

import pytest

from probes import baseline, budget, commands, gates, watch
from probes.commands import main
from probes.nvml import Look
from probes.runner import Outcome, Sweep

DEVICE = {"uuid": "GPU-1", "driver": 12040, "memory_clock_khz": 3_201_000, "peak_memory_bytes_per_second": 4.9e12}
NOT_BESIDE = gates.Policy()
QUIET = Look(busy=0.0, clocks_limited=0, power_limit_w=700, free_bytes=60 << 30)


def reading(metric, value, **labels):
    return {"metric": f"spikewatch_gpu_probe_{metric}", "value": value, "labels": labels}


class Gpu:
    """Answers sweeps with a copy bandwidth that a test sets."""

    def __init__(self):
        self.copy, self.cost, self.asked, self.refused, self.fake = 4.2e12, 1e-4, [], "", False

    def __call__(self, names):
        self.asked.append(names)
        copied = reading("memory_copy_bytes_per_second", self.copy, statistic="best")
        outcomes = tuple(Outcome(n, "ok", "", (copied,) if n == "memory" else (), self.cost) for n in names)
        return Sweep(DEVICE | {"fake": self.fake}, () if self.refused else outcomes, self.refused)


@pytest.fixture
def gpu():
    return Gpu()


@pytest.fixture
def turn(tmp_path, gpu):
    """Takes a turn; gives its lines."""
    clock = [1_000_000.0]

    def take(look=QUIET, policy=NOT_BESIDE, **changes):
        clock[0] += 60
        asked = watch.Turn(tmp_path, policy, per_minute_s=10e-3, **changes)
        return list(watch.run(asked, "GPU-1", gpu, lambda uuid: look, clock[0]))

    return take


def verdicts(lines):
    return [line["verdict"] for line in lines if "verdict" in line]


def test_an_idle_gpu_is_probed_and_learned_from_until_it_can_be_judged(turn, gpu):
    seen = [verdicts(turn())[0] for _ in range(22)]
    assert seen == ["learning"] * 20 + ["healthy"] * 2
    gpu.copy = 3.0e12
    lines = turn()
    assert verdicts(lines) == ["degraded"]
    (ratio,) = [line["baseline_ratio"] for line in lines if "baseline_ratio" in line]
    assert ratio == pytest.approx(3.0 / 4.2)


def test_a_degraded_gpu_does_not_become_its_own_baseline(turn, gpu):
    for _ in range(20):
        turn()
    gpu.copy = 3.0e12
    assert {verdicts(turn())[0] for _ in range(30)} == {"degraded"}


@pytest.mark.parametrize(
    "look",
    [
        Look(busy=0.0, clocks_limited=4, power_limit_w=700),
        Look(busy=0.0, clocks_limited=None, power_limit_w=700),
    ],
    ids=["clocks held down", "nothing known of clocks"],
)
def test_a_gpu_whose_clocks_are_limited_is_measured_and_not_learned_from(turn, look):
    assert {verdicts(turn(look))[0] for _ in range(25)} == {"learning"}


def test_under_half_of_the_rated_bandwidth_nothing_is_learned(turn, gpu):
    gpu.copy = 2.0e12
    assert {verdicts(turn())[0] for _ in range(25)} == {"learning"}


def test_another_power_limit_is_another_baseline(turn):
    for _ in range(21):
        turn()
    assert verdicts(turn(Look(busy=0.0, clocks_limited=0, power_limit_w=400))) == ["learning"]


def test_a_busy_gpu_is_left_alone_and_the_reason_is_told(turn, gpu):
    (line,) = turn(Look(busy=0.7, free_bytes=60 << 30))
    assert (line["gate"], line["result"]) == ("", "skipped_busy")
    assert gpu.asked == []


def test_beside_a_busy_gpu_only_light_probes_run(turn, gpu):
    turn(Look(busy=0.7), gates.Policy(beside_busy=True), full=True)
    assert gpu.asked == [["memory", "tensor", "launch"]]


def test_in_a_window_all_of_them_run_where_that_is_wanted(turn, gpu):
    turn(Look(busy=0.7), window_open=True, full=True)
    assert {"h2d", "p2p", "allocatable", "stride"} <= set(gpu.asked[0])


def test_what_the_budget_does_not_pay_for_waits(tmp_path, gpu):
    asked = watch.Turn(tmp_path, gates.Policy(), per_minute_s=1e-3, trainer_started=False)
    list(watch.run(asked, "GPU-1", gpu, lambda uuid: QUIET, 1000.0))
    assert gpu.asked == [["memory"]], "0.6 ms of the one that came in"
    gpu.cost = 5e-3
    list(watch.run(asked, "GPU-1", gpu, lambda uuid: QUIET, 1060.0))
    lines = list(watch.run(asked, "GPU-1", gpu, lambda uuid: QUIET, 1120.0))
    assert lines[0]["result"] == "skipped_budget"
    assert len(gpu.asked) == 2


def test_steps_that_got_slower_beside_a_turn_slow_probing_down(turn, gpu, tmp_path):
    turn(step_time_ratio=1.05)
    turn(Look(busy=0.9), step_time_ratio=1.02)
    assert budget.load(tmp_path / "probe_budget.json").slower == 4, "also where the second turn found the GPU busy"
    turn(step_time_ratio=1.0)
    assert budget.load(tmp_path / "probe_budget.json").slower == 2


def test_a_fake_gpu_gives_outcomes_and_no_numbers(turn, gpu, tmp_path):
    gpu.fake = True
    lines = turn()
    assert [line for line in lines if "metric" in line] == []
    assert [line["result"] for line in lines if "probe" in line] == ["ok"] * 3
    assert not (tmp_path / "probe_baselines.json").exists()


def test_a_sweep_that_could_not_run_is_told(turn, gpu):
    gpu.refused = "timeout"
    assert {"result": "timeout", "reason": ""} in turn()


@pytest.mark.parametrize("text", ["[1]", "{", '{"sharing": "both"}', '{"gpu_seconds_per_minute": "x"}', "3"])
def test_a_situation_that_makes_no_sense_is_refused(tmp_path, text, capsys):
    assert main(["turn", "--state", str(tmp_path), "--situation", text]) == 2
    assert "--situation" in capsys.readouterr().err


def test_a_turn_on_the_fake_driver_from_the_command_line(fake_gpu, tmp_path, monkeypatch, capsys):
    for name, value in fake_gpu().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SPIKEWATCH_NVML_LIBRARY", "libnvidia-ml.so.404")
    state = ["--state", str(tmp_path)]
    assert main(["turn", *state]) == 0
    assert json.loads(capsys.readouterr().out)["result"] == "skipped_busy", "without NVML nothing says it is idle"
    assert main(["turn", *state, "--situation", '{"window_open": true}']) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["fake"] is True
    assert [line["probe"] for line in lines[1:]] == ["memory", "tensor", "launch"]


def test_a_baseline_file_shows_what_was_learned(turn, tmp_path, capsys):
    turn()
    assert main(["baseline", "--state", str(tmp_path), "--json"]) == 0
    (line,) = [json.loads(raw) for raw in capsys.readouterr().out.splitlines()]
    assert (line["samples"], line["ready"], line["median"]) == (1, False, 4.2e12)
    assert baseline.ptx_hash(watch.Path(watch.__file__).parent / "ptx") in line["key"]


def test_what_turns_have_learned_is_what_a_run_by_hand_is_explained_with(turn, gpu, tmp_path, monkeypatch, capsys):
    for _ in range(20):
        turn()
    gpu.copy = 3.0e12
    monkeypatch.setattr(commands, "sweep", lambda names, **more: gpu(names))
    monkeypatch.setattr(commands, "look", lambda uuid, library: QUIET)
    assert main(["run", "memory", "--explain", "--state", str(tmp_path)]) == 0
    assert "below its own memory bandwidth (0.71 of its baseline)" in capsys.readouterr().out

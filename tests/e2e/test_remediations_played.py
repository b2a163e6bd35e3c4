"""Each remediation on a real training run: where it helps it is kept, where it does not it is undone, and where nobody
can tell it is undone as well. What the trainer's own log says of its steps is held against what the journal claims.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml
from e2e_world import SLOW, SPEED, WORKERS

from sidecar.cli.demo.traininglog import TrainingLog

pytestmark = [pytest.mark.torch, pytest.mark.timeout(250)]

RULES = """
groups:
- name: e2e
  rules:
  - {alert: Trouble, expr: sum(spikewatch_trainer_steps_total) > 60, for: 400ms}
"""
LOSS = "max(spikewatch_trainer_loss)"
OVERFLOWS = "sum(rate(spikewatch_trainer_gradient_overflows_total[1s])) / sum(rate(spikewatch_trainer_steps_total[1s]))"
GUARD = "increase(spikewatch_trainer_nonfinite_losses_total[1m]) > 0"
SHRINK = {"strategy": "stability", "window_steps": 20, "high_variance": 0.2, "global_batch": "follow"}


@dataclass(frozen=True)
class Play:
    """A remediation with its parameters, the run it is tried on, what should become less, and how it must end."""

    remediation: str
    verdict: str
    run: dict[str, Any]
    params: dict[str, Any] = field(default_factory=dict)
    less: str = LOSS
    guarded: bool = True


TWICE = {"accumulation": 2}  # a step may have any whole number of the loader's own batches, so half of two
PAIRS, PLAIN, FP16 = {"kind": "pairs"}, {"kind": "plain"}, {"kind": "fp16"}
BREAKS = {"breaks_when_changed": True}
BAD = {"bad_every": 32}  # infinite numbers in the data: every other step overflows at whatever scale and precision

PLAYS = {
    "micro_batch_helps": Play("micro_batch_tradeoff", "helped", PAIRS),
    "micro_batch_does_not": Play("micro_batch_tradeoff", "did_not_help", PLAIN),
    "micro_batch_unclear": Play("micro_batch_tradeoff", "inconclusive", PAIRS | BREAKS),
    "batch_size_helps": Play("batch_size", "helped", PAIRS | TWICE, SHRINK),
    "batch_size_does_not": Play("batch_size", "did_not_help", PLAIN | TWICE, SHRINK),
    "batch_size_unclear": Play("batch_size", "inconclusive", PAIRS | TWICE | BREAKS, SHRINK),
    "loss_scale_helps": Play("loss_scale", "helped", FP16, less=OVERFLOWS),
    "loss_scale_does_not": Play("loss_scale", "did_not_help", FP16 | BAD, less=OVERFLOWS, guarded=False),
    "loss_scale_unclear": Play("loss_scale", "inconclusive", FP16 | BREAKS, less=OVERFLOWS),
    "bf16_helps": Play("precision_bf16", "helped", FP16, less=OVERFLOWS),
    "bf16_does_not": Play("precision_bf16", "did_not_help", FP16 | BAD, less=OVERFLOWS, guarded=False),
    "bf16_unclear": Play("precision_bf16", "inconclusive", FP16 | BREAKS, less=OVERFLOWS),
}


def answer(remediation, params, expr, goal="decrease", guarded=True, alert="Trouble", window="4s"):
    return {
        "name": "answer",
        "match": [f'alertname="{alert}"'],
        "remediation": remediation,
        "with": params,
        "mode": "act",
        "verify": {
            "expr": expr, "goal": goal, "by": "20%", "baseline": window, "window": window,
            "abort_if": [GUARD] if guarded else [],
        },
        "limits": {"scope": "job", "cooldown": "0s", "per_hour": 100, "max_ineffective": 100},
    }  # fmt: skip


def steps(world):
    """The trainer's own log."""
    lines = (world.folder / "train0" / "steps.jsonl").read_bytes().rpartition(b"\n")[0].splitlines()
    return [entry for line in lines if (entry := json.loads(line))["event"] == "trained"]


def money(world):
    """(saved, cost) in dollars, as on /metrics."""
    names = ("spikewatch_saved_usd_total", "spikewatch_experiment_cost_usd_total")
    return tuple(world.metric(name, response="answer") for name in names)


def play(world, name):
    """To the end of the one experiment, and a few steps beyond."""
    what = PLAYS[name]
    (world.folder / "a.rules.yaml").write_text(RULES)
    (world.folder / "caps.yaml").write_text(yaml.safe_dump({"caps": {what.remediation: "act"}}))
    world.respond(answer(what.remediation, what.params, what.less, guarded=what.guarded))
    world.configure(caps="caps.yaml", usd_per_gpu_hour=3600.0, gpus=1)  # a dollar a second
    world.sidecar()
    number = len(world.trainers)
    args = {"output": str(world.folder / f"train{number}"), "socket": str(world.socket), "job": "job", **what.run}
    child = world.nursery.start("remedy", args, world.folder / f"train{number}.out")
    world.trainers.append(child)
    world.logs.append(TrainingLog(world.folder / f"train{number}"))
    closed = world.until_entry("experiment", phase="closed", seconds=100)
    there = len(steps(world))
    world.until(lambda: len(steps(world)) > there + 5, "five more steps")
    return {
        "verdict": world.entries("verdict")[0]["data"],
        "result": closed["data"]["result"],
        "applied_at": [e["data"]["step"] for e in world.entries("experiment") if e["data"]["phase"] == "settling"],
        "steps": steps(world),
        "money": money(world),
        "decided_twice": world.decided_twice(),
    }


def stories(*verdicts):
    """Every play that is to end so, as a story."""
    return [
        pytest.param(name, id=name, marks=pytest.mark.story(play=play, args=(name,), long=True, wanted=what.verdict))
        for name, what in PLAYS.items()
        if what.verdict in verdicts
    ]


def settings(step):
    """What a change may have changed of a step. The loss scale is the scaler's own business."""
    return {name: step[name] for name in ("micro", "accumulation", "dtype", "interval")}


def under_change(told):
    """The steps from the one at which the change was applied to the one before it was undone."""
    changed = [s for s in told["steps"] if settings(s) != settings(told["steps"][0])]
    assert changed, "no step was trained with the change"
    for step in told["applied_at"]:  # none where it was broken off before anybody had looked
        assert abs(changed[0]["step"] - step) <= 1
    return changed


def samples_are_right(told, name):
    """None is lost, and a step keeps its samples where the remediation promises that."""
    seen = {(s["micro"], s["accumulation"], s["samples"]) for s in told["steps"]}
    expected = {"micro_batch_tradeoff": {(16, 1, 16), (8, 2, 16)}, "batch_size": {(16, 2, 32), (8, 2, 16)}}
    return seen == expected.get(PLAYS[name].remediation, {(16, 1, 16)})


@pytest.mark.parametrize("name", stories("helped"))
def test_what_helps_is_kept_and_its_worth_is_counted(told, name):
    assert (told["verdict"]["verdict"], told["result"]) == ("helped", "kept"), told["verdict"]
    assert told["verdict"]["gain_percent"] >= 20
    assert settings(told["steps"][-1]) == settings(under_change(told)[0])
    assert told["decided_twice"] == []
    assert samples_are_right(told, name)
    assert told["money"][0] > 0


@pytest.mark.parametrize("name", stories("did_not_help"))
def test_what_does_not_help_is_undone(told, name):
    assert (told["verdict"]["verdict"], told["result"]) == ("did_not_help", "rolled_back"), told["verdict"]
    assert under_change(told)
    assert settings(told["steps"][-1]) == settings(told["steps"][0])
    assert samples_are_right(told, name)
    assert told["decided_twice"] == []


@pytest.mark.parametrize("name", stories("inconclusive"))
def test_what_cannot_be_told_is_undone(told, name):
    assert (told["verdict"]["verdict"], told["result"]) == ("inconclusive", "rolled_back"), told["verdict"]
    assert told["verdict"]["reason"] == "guard_broken"
    assert under_change(told)
    assert settings(told["steps"][-1]) == settings(told["steps"][0])


# --- requests to another system ---------------------------------------------------------------------------------------


class _System(ThreadingHTTPServer):
    """Another system: does what it is asked for, or only says so, or refuses."""

    daemon_threads = True

    def __init__(self, world, does, status):
        super().__init__(("127.0.0.1", 0), _Asked)
        self.world, self.does, self.status, self.asked = world, does, status, []


class _Asked(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body["action"])
        if self.server.does:
            self.server.world.slow(SLOW / 40 if body["action"] == "apply" else SLOW)
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def ask(world, does, status, expr):
    system = _System(world, does, status)
    thread = threading.Thread(target=system.serve_forever, args=(0.05,))
    thread.start()
    try:
        url = f"http://127.0.0.1:{system.server_address[1]}/store/"
        world.respond(answer("webhook", {"url": url + "fast"}, expr, "increase", False, "Starved", window="6s"))
        world.configure(egress={"allow": [url], "timeout": "1m"})
        world.sidecar()
        world.trainer()
        closed = world.until_entry("experiment", phase="closed", seconds=100)
        return {
            "verdict": world.verdicts()[0],
            "numbers": world.entries("verdict")[0]["data"],
            "result": closed["data"]["result"],
            "asked": list(system.asked),
            "request": json.loads(world.entries("decision")[0]["data"]["plan"]["values"]["request"]),
        }
    finally:
        system.shutdown()
        system.server_close()
        thread.join()


def asks(verdict, result, asked, *args):
    return pytest.param(verdict, result, asked, marks=pytest.mark.story(play=ask, args=args, long=True, wanted=verdict))


@pytest.mark.parametrize(
    ("verdict", "result", "asked"),
    [
        asks("helped", "kept", ["apply"], True, 200, SPEED),
        asks("did_not_help", "rolled_back", ["apply", "revert"], False, 200, WORKERS),  # it changes no worker
        asks("inconclusive", "not_applied", ["apply"], False, 503, SPEED),
    ],
)
def test_another_system_that_is_asked_is_judged_by_what_the_trainer_does(told, verdict, result, asked):
    assert told["verdict"][0] == verdict, told
    assert (told["result"], told["asked"]) == (result, asked)
    assert told["request"]["body"]["alert"] == "Starved"

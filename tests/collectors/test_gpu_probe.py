"""The collector `gpu_probe`: a child a period, its numbers exported, its silence explained."""

from __future__ import annotations

import http.server
import json
import sys
import threading
import urllib.parse

import pytest

from sidecar import promql
from sidecar.collectors.gpuprobe import collector as module
from sidecar.collectors.gpuprobe import situation
from sidecar.collectors.gpuprobe.catalogue import METRICS, PREFIX
from sidecar.collectors.gpuprobe.collector import GpuProbeCollector, GpuProbeSettings
from sidecar.errors import CollectError
from sidecar.model import Availability

START = 1_700_000_000_000
UUID = "GPU-0b0e"


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Puts a program in the place of Python that prints what a turn would; gives what it was called with."""

    def say(*lines, code=0, sleep=0):
        text = "\n".join(json.dumps(line) for line in lines)
        (tmp_path / "said").write_text(text + "\n{unfinished")
        program = tmp_path / "python"
        wait = f"exec sleep {sleep}\n" if sleep else ""
        program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{wait}cat {tmp_path}/said\nexit {code}\n')
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        return lambda: (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []

    return say


@pytest.fixture
def collector(tmp_path):
    made = []

    def make(**settings):
        made.append(GpuProbeCollector(GpuProbeSettings(**{"enabled": True, "state": tmp_path, "ask": "", **settings})))
        return made[-1]

    yield make
    for one in made:
        one.close()


def values(samples):
    return {(s.metric.removeprefix(PREFIX), *(f"{k}={v}" for k, v in s.labels)): s.value for s in samples}


READ = {
    "probe": "memory",
    "metric": f"{PREFIX}memory_read_bytes_per_second",
    "value": 3.9e12,
    "labels": {"statistic": "best"},
    "verdict": "degraded",
    "baseline_ratio": 0.8,
}
TURN = ({"gate": "idle", "uuid": UUID, "fake": False}, {"probe": "memory", "result": "ok", "gpu_seconds": 0.001}, READ)


def test_it_is_off_unless_it_is_switched_on():
    assert GpuProbeSettings().enabled is False


def test_a_turn_is_taken_once_a_period_and_its_numbers_stay_in_between(child, collector):
    calls = child(*TURN)
    one = collector()
    assert values(one.sample(START)) == {("gpu_seconds_total",): 0}
    assert calls() == [], "the first turn waits for its second: a restart must not probe at once"
    first = values(one.sample(START + 60_000))
    assert len(calls()) == 1
    assert first["memory_read_bytes_per_second", f"gpu={UUID}", "statistic=best"] == 3.9e12
    of = "of=memory_read_bytes_per_second,statistic=best"
    assert first["baseline_ratio", f"gpu={UUID}", of, "probe=memory"] == 0.8
    assert first["degraded", f"gpu={UUID}", of, "probe=memory"] == 1
    assert values(one.sample(START + 61_000)) == first
    again = values(one.sample(START + 120_000))
    assert len(calls()) == 2
    assert again["runs_total", f"gpu={UUID}", "probe=memory", "result=ok"] == 2
    assert again["gpu_seconds_total", f"gpu={UUID}"] == pytest.approx(0.002)


def test_everything_it_emits_is_in_the_catalogue_with_its_labels(child, collector):
    child(*TURN)
    one = collector()
    one.sample(START)
    known = {info.name: set(info.labels) for info in METRICS}
    for sample in one.sample(START + 60_000):
        assert {name for name, _ in sample.labels} <= known[sample.metric]


def test_numbers_the_catalogue_does_not_know_are_not_exported(child, collector):
    child(TURN[0], READ | {"metric": f"{PREFIX}made_up"})
    one = collector()
    one.sample(START)
    assert [s for s in one.sample(START + 60_000) if "made_up" in s.metric] == []


def test_all_ranks_of_a_job_take_their_turn_in_the_same_second(child, collector):
    calls = child(*TURN)
    ranks = [collector(job="llama") for _ in range(3)]
    seconds = []
    for rank in ranks:
        before = len(calls())
        for second in range(61):
            rank.sample(START + second * 1000)
            if len(calls()) > before:
                seconds.append(second)
                break
    assert len(set(seconds)) == 1
    assert len(seconds) == 3


def test_what_the_operator_allows_reaches_the_child(child, collector, tmp_path):
    calls = child(*TURN)
    window = tmp_path / "window"
    one = collector(beside_busy=True, full=True, window_file=window, gpu_seconds_per_minute=0.01)
    one.sample(START)
    one.sample(START + 60_000)
    window.touch()
    one.sample(START + 120_000)
    closed, opened = ("{" + line.split("{")[1] for line in calls())
    assert '"beside_busy": true' in closed
    assert '"window_open": false' in closed
    assert '"window_open": true' in opened
    assert '"gpu_seconds_per_minute": 0.01' in opened


def test_before_the_trainer_begins_a_preflight_runs_at_once(child, collector, tmp_path):
    calls = child(*TURN)
    collector(preflight_file=tmp_path / "begun").sample(START)
    assert '"trainer_started": false' in calls()[0]


@pytest.mark.parametrize(
    ("result", "state"),
    [
        ("no_driver", Availability.UNAVAILABLE),
        ("skipped_busy", Availability.DEGRADED),
        ("skipped_exclusive", Availability.DEGRADED),
        ("timeout", Availability.DEGRADED),
    ],
)
def test_a_turn_without_numbers_says_why_and_what_would_help(child, collector, result, state):
    child({"gate": "", "result": result, "reason": "because"}, code=1)
    one = collector()
    one.sample(START)
    samples = values(one.sample(START + 60_000))
    status = one.probe()
    assert (status.state, status.reason) == (state, result)
    assert status.fix
    assert samples["runs_total", f"result={result}"] == 1


def test_a_fake_driver_is_no_source(child, collector):
    child({"gate": "window", "uuid": UUID, "fake": True}, {"probe": "memory", "result": "ok"})
    one = collector()
    one.sample(START)
    one.sample(START + 60_000)
    assert one.probe().reason == "fake_device"


def test_old_numbers_stay_when_a_turn_is_skipped(child, collector):
    child(*TURN)
    one = collector()
    one.sample(START)
    one.sample(START + 60_000)
    child({"gate": "", "result": "skipped_busy", "reason": "busy"})
    kept = values(one.sample(START + 120_000))
    assert kept["memory_read_bytes_per_second", f"gpu={UUID}", "statistic=best"] == 3.9e12
    assert one.probe().reason == "skipped_busy"


def test_a_child_that_hangs_is_ended_and_the_collector_goes_on(child, collector):
    child(*TURN, sleep=60)
    one = collector(deadline="1200ms")
    one.sample(START)
    with pytest.raises(CollectError, match="passed its deadline"):
        one.sample(START + 60_000)
    assert values(one.sample(START + 61_000))["runs_total", "result=timeout"] == 1


def test_a_child_that_fails_is_an_error_with_its_words(child, collector):
    child(code=3)
    one = collector()
    one.sample(START)
    with pytest.raises(CollectError, match="exit code 3"):
        one.sample(START + 60_000)


def test_a_python_that_is_not_there_is_an_error(collector, monkeypatch):
    monkeypatch.setattr(module.sys, "executable", "/nowhere/python")
    one = collector()
    one.sample(START)
    with pytest.raises(CollectError, match="does not start"):
        one.sample(START + 60_000)


class Sidecar:
    """A sidecar's query API that knows what it is told."""

    def __init__(self):
        self.knows, self.asked = {}, []
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                (expr,) = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["query"]
                owner.asked.append(expr)
                found = owner.knows.get(expr)
                result = [] if found is None else [{"metric": {}, "value": [0, str(found)]}]
                body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def own_api():
    api = Sidecar()
    yield api
    api.close()


def handed(calls):
    return [json.loads("{" + line.split("{", 1)[1]) for line in calls()]


def test_phases_xids_and_step_time_come_from_the_sidecars_own_api(child, collector, own_api):
    calls = child(*TURN)
    one = collector(ask=own_api.url)
    one.sample(START)
    one.sample(START + 60_000)
    own_api.knows = {situation.WINDOW: 1, situation.XID: 2, situation.ENOUGH: 9, situation.STEP_RATIO: 1.03}
    one.sample(START + 69_000)
    one.sample(START + 70_000)
    one.sample(START + 71_000)
    one.sample(START + 120_000)
    before, after = handed(calls)
    assert (before["window_open"], before["recent_xid"], before["step_time_ratio"]) == (False, False, None)
    assert (after["window_open"], after["recent_xid"], after["step_time_ratio"]) == (True, True, 1.03)
    assert own_api.asked.count(situation.STEP_RATIO) == 1, "once a turn, ten seconds after it"


@pytest.mark.parametrize(
    "known", [{}, {situation.ENOUGH: 9, situation.STEP_RATIO: float("nan")}, {situation.STEP_RATIO: 2}]
)
def test_too_few_steps_or_a_ratio_of_nothing_say_nothing(own_api, known):
    own_api.knows = known
    asker = situation.Asker(own_api.url)
    assert asker.step_time_ratio() is None
    asker.close()


def test_an_api_that_is_not_there_knows_nothing():
    asker = situation.Asker("http://127.0.0.1:9")
    assert asker.known() == situation.Known()
    asker.close()


def test_its_questions_are_promql():
    assert len(promql.compile([situation.WINDOW, situation.XID, situation.STEP_RATIO, situation.ENOUGH]).needs()) >= 3

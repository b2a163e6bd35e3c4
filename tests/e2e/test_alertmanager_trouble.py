"""Alertmanagers that are down, broken or silent: the watch and the experiment go on as if there were none."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from e2e_world import ALL

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]


class FakeAlertmanager(ThreadingHTTPServer):
    """Answers with `status`; with None it never answers."""

    daemon_threads = True

    def __init__(self, status):
        self.status = status
        self.leaving = threading.Event()
        self.taken = []
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def leave(self):
        self.leaving.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.status is None:
            self.server.leaving.wait()
            return
        if self.server.status == 200:
            self.server.taken += body
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


COUNTS = ("sent_total", "errors_total", "dropped_total", "queue_length", "queue_capacity")


def troubled(world):
    servers = {"broken": FakeAlertmanager(500), "silent": FakeAlertmanager(None), "fine": FakeAlertmanager(200)}
    urls = {"down": "http://127.0.0.1:9"} | {name: server.url for name, server in servers.items()}
    try:
        world.configure(alertmanagers=[{"url": url} for url in urls.values()], resend_delay="1s", collectors=ALL)
        return play(world, servers, {name: f"{url}/api/v2/alerts" for name, url in urls.items()})
    finally:
        for server in servers.values():
            server.leave()


def counts(world, url):
    return {name: world.metric(f"spikewatch_notifications_{name}", alertmanager=url) for name in COUNTS}


def play(world, servers, urls):
    world.trainer()
    sidecar = world.sidecar()
    world.until_entry("edge", edge="firing")
    began, ticks = time.monotonic(), world.metric("spikewatch_ticks_total")
    world.until(lambda: world.results(), "the experiment is closed")
    world.until(lambda: all(counts(world, urls[n])["dropped_total"] for n in ("down", "broken", "silent")), "drops")
    pace = (world.metric("spikewatch_ticks_total") - ticks) / (time.monotonic() - began)
    told = {"pace": pace, "end": (world.verdicts(), world.results()), "fine": servers["fine"].taken}
    told["counts"] = {name: counts(world, url) for name, url in urls.items()}
    servers["broken"].status = 200
    world.until(lambda: counts(world, urls["broken"])["sent_total"], "an alert at the one that is well again")
    told["tick_errors"] = world.metric("spikewatch_tick_errors_total")
    told["seconds"] = world.leave(sidecar.pid, sidecar.died.is_set)
    told["code"] = sidecar.code
    return told


@pytest.mark.story(play=troubled)
def test_alertmanagers_in_trouble_hold_up_neither_the_ticks_nor_an_experiment_nor_each_other(told):
    assert told["end"] == ([("helped", "gain_is_real")], ["kept"])
    assert told["pace"] > 2.5, "five ticks a second are due"
    assert told["tick_errors"] is None
    assert {alert["labels"]["alertname"] for alert in told["fine"]} == {"Starved"}
    assert told["counts"]["fine"]["dropped_total"] == 0
    for name in ("down", "broken", "silent"):
        seen = told["counts"][name]
        assert seen["sent_total"] == 0
        assert seen["dropped_total"] > 0
        assert seen["queue_length"] <= 20, "one copy a second, given up at the next try: 15 s after the last at most"
    assert told["counts"]["down"]["errors_total"] > 0
    assert told["counts"]["broken"]["errors_total"] > 0
    assert told["code"] == 0
    assert told["seconds"] < 2


HANGING_RESOLVER = """
import socket, sys, time
real = socket.getaddrinfo
def getaddrinfo(host, *args, **more):
    if host not in ("nowhere.example", b"nowhere.example"):
        return real(host, *args, **more)
    print("resolving", file=sys.stderr, flush=True)
    time.sleep(60)
socket.getaddrinfo = getaddrinfo
from sidecar.cli import main
main(["run", "--config", sys.argv[1]])
"""


def nameless(world):
    (world.folder / "a.rules.yaml").write_text("groups: [{name: g, rules: [{alert: On, expr: vector(1)}]}]")
    world.configure(alertmanagers=[{"url": "http://nowhere.example:9093"}], responses=[])
    command = [sys.executable, "-c", HANGING_RESOLVER, str(world.folder / "spikewatch.yaml")]
    errors = world.folder / "cli.err"
    with errors.open("w") as err, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err) as process:
        try:
            world.until(lambda: "resolving" in errors.read_text(), "the name is asked for")
            ticks = world.metric("spikewatch_ticks_total")
            world.until(lambda: world.metric("spikewatch_ticks_total") > ticks + 5, "ticks go on")
            took = world.leave(process.pid, lambda: process.poll() is not None)
        finally:
            process.kill()
    return process.returncode, took, errors.read_text()


@pytest.mark.story(play=nameless)
def test_a_name_server_that_does_not_answer_holds_up_neither_ticks_nor_the_end(told):
    code, took, errors = told
    assert code == 0
    assert took < 2
    assert "Traceback" not in errors

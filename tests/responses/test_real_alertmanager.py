"""A real Alertmanager tells a real listener of an alert that a central Prometheus evaluates; it is answered once."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import time
from contextlib import asynccontextmanager

import httpx
import pytest

from sidecar.api import routes
from sidecar.api.server import Server
from sidecar.api.services import Services
from sidecar.app.control import Control
from sidecar.outputs.timestamps import rfc3339
from sidecar.responses.killswitch import KillSwitch
from sidecar.responses.response import Mode

pytestmark = [pytest.mark.peers, pytest.mark.timeout(60)]


class Now:
    """The world's time, as a clock."""

    def __init__(self, world):
        self._world = world

    def now_ms(self):
        return self._world.now


@asynccontextmanager
async def alertmanager(command, folder, webhook):
    """A running Alertmanager that repeats itself every second, and a client for it."""
    config = {
        "route": {"receiver": "hook", "group_wait": "0s", "group_interval": "200ms", "repeat_interval": "1s"},
        "receivers": [
            {
                "name": "hook",
                "webhook_configs": [
                    {
                        "url": webhook,
                        "send_resolved": True,
                        "http_config": {"authorization": {"credentials_file": str(folder / "token")}},
                    }
                ],
            }
        ],
    }
    (folder / "am.yml").write_text(json.dumps(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*free.getsockname())
    process = subprocess.Popen(
        command(folder / "am.yml", folder / "data", address), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
            while True:
                try:
                    if (await client.get("/-/ready")).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)
            yield client
    finally:
        process.kill()
        process.wait(10)


def test_an_alert_of_a_central_prometheus_is_answered_once_and_ends_when_it_resolves(
    world, kit, alertmanager_command, tmp_path
):
    (tmp_path / "token").write_text("s3cret")
    world.skew = time.time_ns() // 1_000_000 - world.clock.now_ms()
    world.responses = [kit.response(matchers=kit.matchers('alertname="CostPerSampleUp"'), mode=Mode.SUGGEST)]
    world.start()
    received = []
    control = Control(
        world.responder,
        KillSwitch(tmp_path / "kill-switch"),
        Now(world),
        log=world.journal,
        external=lambda: {"train_job": "llm"},
        firing=list,
    )
    receive = control.receive
    control.receive = lambda body: received.append(receive(body)) or received[-1]

    async def no_reload():
        return ()

    async def until(condition):
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.05)

    async def main():
        services = Services(
            lambda a: (b"", ""), lambda: "", no_reload, lambda: (), responses=control, token_file=tmp_path / "token"
        )
        server = Server(routes.full(services), "127.0.0.1", 0)
        await server.start()
        started = world.now - 5000
        alert = {"labels": {"alertname": "CostPerSampleUp", "train_job": "llm"}, "startsAt": rfc3339(started)}
        other = {"labels": {"alertname": "CostPerSampleUp", "train_job": "another"}, "startsAt": rfc3339(started)}
        async with alertmanager(alertmanager_command, tmp_path, f"{server.url}/api/v1/webhook/alertmanager") as client:
            await client.post("/api/v2/alerts", json=[alert, other])
            await until(lambda: any(r["ignored"].get("repeated") for r in received))
            opened = world.responder.episodes()
            ended = [{**alert, "endsAt": rfc3339(world.now + 1)}]
            await client.post("/api/v2/alerts", json=ended)
            world.clock.advance(60_000)
            await until(lambda: world.responder.episodes() == ())
        await server.stop()
        return opened

    (episode,) = asyncio.run(main())
    assert dict(episode.alert.labels) == {"alertname": "CostPerSampleUp", "train_job": "llm"}
    assert world.decisions() == [("feed", "resolved")]
    edges = world.kinds("edge")
    assert [(e["edge"], e["source"]) for e in edges] == [("firing", "alertmanager"), ("resolved", "alertmanager")]
    assert sum(r["ignored"].get("not_ours", 0) for r in received) >= 1

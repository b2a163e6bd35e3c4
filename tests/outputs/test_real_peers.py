"""The real Alertmanager takes our alerts, the real Prometheus scrapes our page."""

import asyncio
import json
import socket
import subprocess
import time
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from sidecar.api import routes
from sidecar.api.server import Server
from sidecar.api.services import Services
from sidecar.clock import FakeClock
from sidecar.collectors.process import ProcessCollector, ProcessSettings
from sidecar.model import Notification
from sidecar.outputs.alertmanager import Notifier
from sidecar.outputs.endpoint import Endpoint
from sidecar.outputs.exposition import Exposition
from sidecar.settings import Alertmanager

pytestmark = pytest.mark.peers


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@asynccontextmanager
async def listening(app):
    """The address of a server of ours."""
    server = Server(app, "127.0.0.1", 0)
    await server.start()
    try:
        yield "{}:{}".format(*server.address)
    finally:
        await server.stop()


@asynccontextmanager
async def running(address, *command):
    """A peer process, once it is ready, and a client for it."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
            await eventually(lambda: ready(client))
            yield client
    finally:
        process.kill()
        process.wait(10)


async def ready(client):
    try:
        return (await client.get("/-/ready")).status_code == 200
    except httpx.TransportError:
        return False


async def eventually(condition, timeout=20):
    async with asyncio.timeout(timeout):
        while not (result := await condition()):
            await asyncio.sleep(0.02)
        return result


def test_the_real_alertmanager_hears_an_alert_fire_and_resolve(alertmanager_command, tmp_path):
    heard = []

    async def hear(request):
        heard.append(await request.json())
        return PlainTextResponse("")

    async def main():
        async with listening(Starlette(routes=[Route("/", hear, methods=["POST"])])) as hook:
            config = {
                "route": {"receiver": "hook", "group_wait": "0s", "group_interval": "200ms", "group_by": ["alertname"]},
                "receivers": [{"name": "hook", "webhook_configs": [{"url": f"http://{hook}/"}]}],
            }
            (tmp_path / "am.yml").write_text(json.dumps(config))
            address = f"127.0.0.1:{free_port()}"
            command = alertmanager_command(tmp_path / "am.yml", tmp_path / "data", address)
            async with running(address, *command) as client:
                now = time.time_ns() // 1_000_000
                labels = (("alertname", "TrainerStarvedOfData"), ("namespace", "train"), ("severity", "warning"))
                firing = Notification(
                    labels, (("summary", "30 % wait"),), now - 5000, now + 240_000, "http://pod/graph?x=1"
                )
                notifier = Notifier([Endpoint(Alertmanager(url=f"http://{address}"))], FakeClock(1000))
                notifier.start()

                async def active():
                    return (await client.get("/api/v2/alerts")).json()

                notifier.send([firing])
                (seen,) = await eventually(active)
                assert seen["labels"] == dict(labels)
                assert seen["annotations"] == {"summary": "30 % wait"}
                assert seen["generatorURL"] == "http://pod/graph?x=1"
                assert seen["startsAt"].startswith(time.strftime("%Y-%m-%dT", time.gmtime(now / 1000 - 5)))

                notifier.send([Notification(labels, (), now - 5000, now, "")])

                async def told():
                    return [m["status"] for m in heard] if heard and heard[-1]["status"] == "resolved" else None

                assert (await eventually(told))[0] == "firing"
                assert await active() == []
                assert {s.metric: s.value for s in notifier.samples()}["spikewatch_notifications_errors_total"] == 0
                await notifier.close()

    asyncio.run(main())


def test_the_real_prometheus_scrapes_the_page_in_every_format(peer, tmp_path):
    process = ProcessCollector(ProcessSettings())
    exposition = Exposition(lambda: (), ProcessCollector.metrics, {"process": lambda: process.sample(0)})
    protocols = ["PrometheusText0.0.4", "PrometheusText1.0.0", "OpenMetricsText1.0.0"]

    async def no_reload():
        return ()

    async def main():
        services = Services(exposition.page, lambda: "", no_reload, lambda: ())
        async with listening(routes.metrics_only(services)) as ours:
            where = [{"targets": [ours]}]
            jobs = [{"job_name": p, "scrape_protocols": [p], "static_configs": where} for p in protocols]
            config = {"global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"}, "scrape_configs": jobs}
            (tmp_path / "prometheus.yml").write_text(json.dumps(config))
            address = f"127.0.0.1:{free_port()}"
            async with running(
                address,
                peer("prometheus"),
                f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/tsdb",
                "--scrape.discovery-reload-interval=100ms",
                f"--web.listen-address={address}",
            ) as client:

                async def memory():
                    query = {"query": "spikewatch_process_resident_memory_bytes > 1e6 and on (job) up == 1"}
                    found = (await client.get("/api/v1/query", params=query)).json()["data"]["result"]
                    return found if len(found) == len(protocols) else None

                found = [series["metric"] for series in await eventually(memory)]
                assert sorted(labels.pop("job") for labels in found) == sorted(protocols)
                name = "spikewatch_process_resident_memory_bytes"
                assert found == [{"__name__": name, "instance": ours}] * len(protocols)
                known = (await client.get("/api/v1/metadata")).json()["data"]
                assert known[name][0]["type"] == "gauge"
                # OpenMetrics names the family of a counter without its suffix
                for counter in ("spikewatch_process_cpu_seconds_total", "spikewatch_process_cpu_seconds"):
                    assert known[counter][0]["type"] == "counter"

    asyncio.run(main())

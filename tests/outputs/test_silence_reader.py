"""Silences are read from every Alertmanager, and one that does not answer takes nothing away."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import time
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from sidecar.outputs.endpoint import Endpoint
from sidecar.outputs.silences import MOST, SilenceReader, heard
from sidecar.settings import Alertmanager

ONE = {
    "id": "8f5c",
    "status": {"state": "active"},
    "matchers": [
        {"name": "alertname", "value": "Starved", "isRegex": False, "isEqual": True},
        {"name": "rank", "value": "1|2", "isRegex": True, "isEqual": False},
        {"name": "pod", "value": "", "isRegex": False},  # an Alertmanager from before 0.22 knows no isEqual
    ],
    "startsAt": "2025-11-29T21:00:00.123456789Z",
    "endsAt": "2025-11-29T22:00:00+00:00",
    "comment": "",
    "createdBy": "ada",
}


def test_a_silence_is_read_with_its_times_and_conditions():
    (one,) = heard(json.dumps([ONE, {**ONE, "status": {"state": "expired"}}]).encode())
    assert (one.id, one.starts_ms, one.ends_ms) == ("8f5c", 1_764_450_000_123, 1_764_453_600_000)
    assert one.conditions == (
        ("alertname", "Starved", False, True),
        ("rank", "1|2", True, False),
        ("pod", "", False, True),
    )


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[1]", b'[{"id": "x"}]', json.dumps([{**ONE, "startsAt": "x"}]).encode()]
)
def test_what_is_no_list_of_silences_is_an_error(body):
    with pytest.raises(ValueError):  # noqa: PT011  json's own and ours
        heard(body)


class Served:
    """Answers of one Alertmanager, one request after the other; the last one goes on."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []
        self.enough = asyncio.Event()

    def __call__(self, request):
        self.asked.append(request)
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if len(self.answers) == 1:
            self.enough.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


async def read(*answers, **settings):
    """What was learned, and the reader's metrics, once every answer has been given."""
    learned = []
    served = Served(*answers)
    endpoint = Endpoint(Alertmanager(url="http://am/prefix", **settings))
    reader = SilenceReader(
        [endpoint], lambda source, found: learned.append((source, len(found))), 1, transport=httpx.MockTransport(served)
    )
    reader.start()
    async with asyncio.timeout(10):
        await served.enough.wait()
        while len(served.asked) < len(answers) + 2:
            await asyncio.sleep(0)
    await reader.close()
    return learned, {s.metric.removeprefix("spikewatch_silences_"): s.value for s in reader.samples()}, served


def ok(content):
    return httpx.Response(200, json=content)


def test_it_reads_again_and_again_and_tells_the_whole_list_each_time():
    learned, metrics, served = asyncio.run(read(ok([]), ok([ONE]), ok([ONE, ONE])))
    assert learned[:3] == [("http://am/prefix", 0), ("http://am/prefix", 1), ("http://am/prefix", 2)]
    assert metrics == {"known": 2, "errors_total": 0}
    assert str(served.asked[0].url) == "http://am/prefix/api/v2/silences"


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.Response(503, text="later"),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, content=b" " * (MOST + 1)),
    ],
    ids=["away", "error", "something else", "too large"],
)
def test_a_failure_is_counted_said_once_and_takes_nothing_away(failure, caplog):
    learned, metrics, _ = asyncio.run(read(ok([ONE]), failure, failure, ok([ONE])))
    assert {found for _, found in learned} == {1}
    assert (metrics["known"], metrics["errors_total"]) == (1, 2)
    assert len([r for r in caplog.records if "cannot be read" in r.message]) == 1


def test_credentials_go_along():
    _, _, served = asyncio.run(read(ok([]), basic_auth={"username": "u", "password": "p"}))
    assert served.asked[0].headers["authorization"] == "Basic dTpw"


@pytest.mark.peers
def test_the_real_alertmanagers_silence_is_understood(alertmanager_command, tmp_path):
    (tmp_path / "am.yml").write_text(json.dumps({"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*free.getsockname())
    process = subprocess.Popen(
        alertmanager_command(tmp_path / "am.yml", tmp_path / "data", address),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    now = datetime.now(UTC)
    wanted = {
        "matchers": ONE["matchers"][:2],
        "startsAt": now.isoformat(),
        "endsAt": (now + timedelta(hours=1)).isoformat(),
        "createdBy": "ada",
        "comment": "a release",
    }

    async def main():
        learned = asyncio.Queue()
        async with asyncio.timeout(20), httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
            while True:
                try:
                    answer = await client.post("/api/v2/silences", json=wanted)
                    break
                except httpx.TransportError:
                    await asyncio.sleep(0.02)
            assert answer.status_code == 200, answer.text
            reader = SilenceReader(
                [Endpoint(Alertmanager(url=f"http://{address}"))], lambda _, found: learned.put_nowait(found), 50
            )
            reader.start()
            while not (found := await learned.get()):
                pass
            await reader.close()
        return answer.json()["silenceID"], found

    try:
        identifier, (one,) = asyncio.run(main())
    finally:
        process.kill()
        process.wait(10)
    assert one.id == identifier
    assert one.conditions == (("alertname", "Starved", False, True), ("rank", "1|2", True, False))
    assert abs(one.ends_ms - one.starts_ms - 3_600_000) < 10_000
    assert one.starts_ms <= time.time() * 1000 + 1000

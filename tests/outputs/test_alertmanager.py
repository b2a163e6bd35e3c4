"""The Alertmanager client, against servers on loopback."""

import asyncio
import base64
import logging
import shutil
import ssl
import subprocess
from contextlib import asynccontextmanager

import httpx
import pytest

from sidecar.clock import FakeClock
from sidecar.errors import ConfigError
from sidecar.model import Notification
from sidecar.outputs.alertmanager import METRICS, Notifier
from sidecar.outputs.endpoint import Endpoint
from sidecar.outputs.lane import Limits
from sidecar.settings import Alertmanager

FAST = Limits(pause_s=0.01, longest_pause_s=0.02, timeout_s=5)
SOON = 10  # seconds within which something that will happen has happened


def note(name="Starved", ends_at_ms=1_700_000_240_000, **labels):
    pairs = tuple(sorted({"alertname": name, **labels}.items()))
    return Notification(pairs, (("summary", "slow"),), 1_700_000_000_123, ends_at_ms, "http://pod/graph")


def notes(count, start=0):
    return [note(n=str(n)) for n in range(start, start + count)]


def counted(notifier, name):
    (value,) = [s.value for s in notifier.samples() if s.metric == f"spikewatch_notifications_{name}"]
    return value


@asynccontextmanager
async def sending(*urls, limits=FAST, clock=None, drain_s=0.5, **settings):
    endpoints = [Endpoint(Alertmanager(url=url, **settings)) for url in urls]
    notifier = Notifier(endpoints, clock or FakeClock(1000), limits, jitter=lambda: 0.0)
    notifier.start()
    try:
        yield notifier
    finally:
        await notifier.close(drain_s)


async def until(condition):
    """Polls a condition that no server event announces."""
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0.002)


def test_an_alert_arrives_in_the_form_of_the_api(alertmanager):
    async def main():
        async with alertmanager() as fake, sending(fake.url) as notifier:
            notifier.send([note()])
            await fake.until(lambda f: f.alerts)
            return fake.alerts, fake.headers[0]

    alerts, headers = asyncio.run(main())
    assert alerts == [
        {
            "labels": {"alertname": "Starved"},
            "annotations": {"summary": "slow"},
            "startsAt": "2023-11-14T22:13:20.123Z",
            "endsAt": "2023-11-14T22:17:20.000Z",
            "generatorURL": "http://pod/graph",
        }
    ]
    assert headers["content-type"] == "application/json"
    assert "authorization" not in headers


def test_what_is_empty_is_left_out(alertmanager):
    async def main():
        async with alertmanager() as fake, sending(fake.url) as notifier:
            notifier.send([Notification((("alertname", "A"),), (), 0, 0, "")])
            await fake.until(lambda f: f.alerts)
            return fake.alerts

    assert asyncio.run(main()) == [{"labels": {"alertname": "A"}, "startsAt": "1970-01-01T00:00:00.000Z"}]


def test_every_alertmanager_gets_every_alert(alertmanager):
    async def main():
        async with alertmanager() as one, alertmanager() as two, sending(one.url, two.url) as notifier:
            notifier.send(notes(3))
            await one.until(lambda f: len(f.alerts) == 3)
            await two.until(lambda f: len(f.alerts) == 3)

    asyncio.run(main())


def test_one_that_is_down_does_not_keep_alerts_from_the_other(alertmanager):
    async def main():
        async with alertmanager() as gone, alertmanager() as fine, sending(gone.url, fine.url) as notifier:
            await gone.down()
            notifier.send(notes(3))
            await fine.until(lambda f: len(f.alerts) == 3)

    asyncio.run(main())


def test_alerts_go_out_in_order_and_at_most_256_a_request(alertmanager):
    async def main():
        async with alertmanager() as fake, sending(fake.url) as notifier:
            fake.gate.clear()
            notifier.send(notes(1000))
            fake.gate.set()
            await fake.until(lambda f: len(f.alerts) == 1000)
            await until(lambda: counted(notifier, "sent_total") == 1000)
            return fake

    fake = asyncio.run(main())
    assert [int(a["labels"]["n"]) for a in fake.alerts] == list(range(1000))
    assert [len(body) for _, body in fake.requests] == [256, 256, 256, 232]


def test_sending_returns_before_anything_was_sent(alertmanager):
    async def main():
        async with alertmanager() as fake, sending(fake.url) as notifier:
            notifier.send(notes(10))
            assert fake.requests == []
            assert counted(notifier, "queue_length") == 10

    asyncio.run(main())


@pytest.mark.parametrize("status", [500, 503, 429, 401, 302, 404])
def test_a_request_that_failed_is_sent_again(alertmanager, status, caplog):
    async def main():
        async with alertmanager() as fake, sending(fake.url) as notifier:
            fake.status = status
            notifier.send(notes(2))
            await fake.until(lambda f: len(f.requests) >= 3)
            fake.status = 200
            await fake.until(lambda f: f.alerts)
            await until(lambda: counted(notifier, "sent_total") == 2)
            assert counted(notifier, "errors_total") >= 6
            assert counted(notifier, "dropped_total") == 0
            return fake

    caplog.set_level(logging.INFO, "sidecar")
    fake = asyncio.run(main())
    assert [a["labels"]["n"] for a in fake.alerts] == ["0", "1"]
    messages = [r.getMessage() for r in caplog.records if r.name.startswith("sidecar")]
    assert len(messages) == 2, "one line when it begins to fail, one when it is over"
    assert f"HTTP {status}" in messages[0]
    assert "takes alerts again" in messages[1]


def test_an_alertmanager_that_comes_back_gets_what_waited(alertmanager):
    async def main():
        async with alertmanager() as fake, sending(fake.url) as notifier:
            await fake.down()
            notifier.send(notes(300))
            await until(lambda: counted(notifier, "errors_total") > 0)
            await fake.up()
            await fake.until(lambda f: len(f.alerts) == 300)

    asyncio.run(main())


@pytest.mark.parametrize("status", [400, 413])
def test_what_is_refused_for_good_is_dropped_and_not_sent_again(alertmanager, status):
    async def main():
        async with alertmanager() as fake, sending(fake.url) as notifier:
            fake.status = status
            notifier.send(notes(2))
            await fake.until(lambda f: len(f.requests) == 1)
            await until(lambda: counted(notifier, "dropped_total") == 2)
            fake.status = 200
            notifier.send(notes(1, start=7))
            await fake.until(lambda f: f.alerts)
            assert counted(notifier, "errors_total") == 2
            return fake.alerts

    assert [a["labels"]["n"] for a in asyncio.run(main())] == ["7"]


def test_a_failed_alert_is_given_up_when_its_next_resend_is_due(alertmanager):
    clock = FakeClock(1000)

    async def main():
        async with alertmanager() as fake, sending(fake.url, clock=clock) as notifier:
            fake.status = 500
            notifier.send(notes(2))
            await fake.until(lambda f: f.requests)
            clock.advance(30_000)
            notifier.send(notes(1, start=7))
            clock.advance(30_000)
            await until(lambda: counted(notifier, "dropped_total") == 2)
            fake.status = 200
            await fake.until(lambda f: f.alerts)
            return fake.alerts

    assert [a["labels"]["n"] for a in asyncio.run(main())] == ["7"]


def test_a_full_queue_drops_the_oldest_and_counts_them(alertmanager):
    async def main():
        limits = Limits(queue=10, pause_s=0.01, longest_pause_s=0.02)
        async with alertmanager() as fake, sending(fake.url, limits=limits) as notifier:
            notifier.send(notes(25))
            assert counted(notifier, "dropped_total") == 15
            assert counted(notifier, "queue_capacity") == 10
            await fake.until(lambda f: len(f.alerts) == 10)
            return fake.alerts

    assert [int(a["labels"]["n"]) for a in asyncio.run(main())] == list(range(15, 25))


def test_a_slow_alertmanager_is_left_after_the_timeout_and_tried_again(alertmanager):
    async def main():
        limits = Limits(timeout_s=0.05, pause_s=0.01, longest_pause_s=0.02)
        async with alertmanager() as fake, sending(fake.url, limits=limits) as notifier:
            fake.gate.clear()
            notifier.send(notes(1))
            await until(lambda: counted(notifier, "errors_total") >= 2)
            fake.gate.set()
            await until(lambda: counted(notifier, "sent_total") == 1)

    asyncio.run(main())


def test_closing_sends_what_is_queued(alertmanager):
    async def main():
        async with alertmanager() as fake:
            async with sending(fake.url, drain_s=SOON) as notifier:
                notifier.send(notes(600))
            assert len(fake.alerts) == 600
            assert counted(notifier, "sent_total") == 600
            assert counted(notifier, "dropped_total") == 0

    asyncio.run(main())


@pytest.mark.parametrize("trouble", ["down", "failing", "slow"])
def test_closing_ends_in_time_whatever_the_alertmanager_does_and_counts_what_is_lost(alertmanager, trouble):
    async def main():
        async with alertmanager() as fake:
            if trouble == "down":
                await fake.down()
            elif trouble == "failing":
                fake.status = 500
            else:
                fake.gate.clear()
            async with asyncio.timeout(SOON), sending(fake.url, drain_s=0.1) as notifier:
                notifier.send(notes(300))
            assert counted(notifier, "dropped_total") == 300
            assert counted(notifier, "queue_length") == 0

    asyncio.run(main())


def test_its_metrics_are_in_its_catalogue(alertmanager):
    async def main():
        async with sending("http://127.0.0.1:9") as notifier:
            assert [s.metric for s in notifier.samples()] == [info.name for info in METRICS]
            assert {s.labels for s in notifier.samples()} == {
                (("alertmanager", "http://127.0.0.1:9/api/v2/alerts"),),
            }

    asyncio.run(main())


def test_a_user_and_password_are_sent_and_the_password_is_read_anew_each_time(alertmanager, tmp_path):
    secret = tmp_path / "password"
    secret.write_text("first\n")

    async def main():
        async with alertmanager() as fake:
            basic = {"username": "me", "password_file": secret}
            async with sending(fake.url, basic_auth=basic) as notifier:
                notifier.send(notes(1))
                await fake.until(lambda f: len(f.alerts) == 1)
                secret.write_text("second")
                notifier.send(notes(1))
                await fake.until(lambda f: len(f.alerts) == 2)
            return [h["authorization"] for h in fake.headers]

    expected = ["Basic " + base64.b64encode(pair).decode() for pair in (b"me:first", b"me:second")]
    assert asyncio.run(main()) == expected


def test_a_password_may_stand_in_the_configuration_and_is_not_shown(alertmanager):
    endpoint = Endpoint(Alertmanager(url="http://a", basic_auth={"username": "me", "password": "open"}))
    assert endpoint.headers()["Authorization"] == "Basic " + base64.b64encode(b"me:open").decode()
    assert "open" not in repr(endpoint)


def test_a_token_that_cannot_be_read_is_an_error_until_it_can(alertmanager, tmp_path):
    token = tmp_path / "token"

    async def main():
        async with alertmanager() as fake:
            async with sending(fake.url, bearer_token_file=token) as notifier:
                notifier.send(notes(1))
                await until(lambda: counted(notifier, "errors_total") >= 1)
                assert fake.requests == []
                token.write_text("t0ken\n")
                await fake.until(lambda f: f.alerts)
            return fake.headers[0]["authorization"]

    assert asyncio.run(main()) == "Bearer t0ken"


def test_relative_files_start_at_the_folder_of_the_configuration(tmp_path):
    (tmp_path / "token").write_text("t")
    endpoint = Endpoint(Alertmanager(url="http://a", bearer_token_file="token"), tmp_path)
    assert endpoint.headers()["Authorization"] == "Bearer t"


@pytest.mark.parametrize(
    ("settings", "finding"),
    [
        ({"url": "http://me:open@a"}, "credentials belong into basic_auth"),
        ({"url": "http://a", "basic_auth": {"username": "me", "pasword": "x"}}, "pasword"),
        ({"url": "http://a", "basic_auth": {"username": "u", "password": "x", "password_file": "y"}}, "not both"),
        ({"url": "http://a", "basic_auth": {"username": "u"}, "bearer_token_file": "t"}, "not both"),
        ({"url": "https://a", "tls": {"cert_file": "c"}}, "belong together"),
    ],
)
def test_options_that_contradict_each_other_are_refused(settings, finding):
    with pytest.raises(ValueError, match=finding):
        Alertmanager(**settings)


def test_a_tls_file_that_cannot_be_used_is_told_before_anything_is_sent(tmp_path):
    (tmp_path / "ca.pem").write_text("no certificate")
    for name in ("ca.pem", "missing.pem"):
        endpoint = Endpoint(Alertmanager(url="https://a", tls={"ca_file": name}), tmp_path)
        with pytest.raises(ConfigError, match="https://a/api/v2/alerts: error: a tls file cannot be used"):
            Notifier([endpoint], FakeClock())


@pytest.fixture
def certificate(tmp_path):
    """A self-signed certificate of am.example and its key."""
    if not shutil.which("openssl"):
        pytest.skip("the openssl command makes the certificate")
    names = ["-subj", "/CN=am.example", "-addext", "subjectAltName=DNS:am.example"]
    files = ["-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run(["openssl", "req", "-x509", "-nodes", *ec, *names, *files], check=True, capture_output=True)
    return tmp_path / "cert.pem", tmp_path / "key.pem"


@pytest.mark.parametrize(
    ("tls", "sent"),
    [
        ({"ca_file": "cert.pem", "server_name": "am.example"}, 1),
        ({"insecure_skip_verify": True}, 1),
        ({"ca_file": "cert.pem"}, 0),  # the certificate is not one of 127.0.0.1
        ({"server_name": "am.example"}, 0),  # nobody we trust signed it
    ],
)
def test_a_certificate_is_trusted_by_its_authority_and_its_name(certificate, tmp_path, tls, sent):
    async def answer(reader, writer):
        await reader.readuntil(b"}]")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async def main():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        async with server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            notifier = Notifier([Endpoint(Alertmanager(url=url, tls=tls), tmp_path)], FakeClock(1000), FAST)
            notifier.start()
            notifier.send(notes(1))
            await until(lambda: counted(notifier, "sent_total") + counted(notifier, "errors_total") > 0)
            await notifier.close(SOON)
            return counted(notifier, "sent_total")

    assert asyncio.run(main()) == sent


def test_an_answer_without_end_is_cut_off():
    async def endless():
        while True:
            yield b"x" * 65536

    async def main():
        transport = httpx.MockTransport(lambda request: httpx.Response(200, content=endless()))
        notifier = Notifier([Endpoint(Alertmanager(url="http://a"))], FakeClock(1000), FAST, transport=transport)
        notifier.start()
        notifier.send(notes(1))
        await notifier.close(SOON)
        assert counted(notifier, "sent_total") == 1

    asyncio.run(main())


def test_pauses_double_up_to_the_longest_and_are_spread_by_half(monkeypatch):
    pauses = []

    async def main():
        def refuse(request):
            raise httpx.ConnectError("no")

        async def remember(waiting, delay):
            waiting.close()
            pauses.append(delay)
            if len(pauses) == 6:
                notifier._lanes[0].finish()
            raise TimeoutError

        limits = Limits(pause_s=1, longest_pause_s=8)
        endpoint = Endpoint(Alertmanager(url="http://a"))
        notifier = Notifier(
            [endpoint], FakeClock(1000), limits, transport=httpx.MockTransport(refuse), jitter=lambda: 1.0
        )
        monkeypatch.setattr("sidecar.outputs.lane.asyncio.wait_for", remember)
        notifier.send(notes(1))
        notifier.start()
        await notifier._tasks[0]
        monkeypatch.undo()
        await notifier.close()

    asyncio.run(main())
    assert pauses == [1, 2, 4, 8, 8, 8]

"""What the routes answer, over real connections."""

import asyncio
import gzip
import logging
from dataclasses import replace

import httpx
import pytest

from sidecar.api import routes
from sidecar.api.parameters import MAX_BODY
from sidecar.api.replies import number
from sidecar.api.responses import MAX_MESSAGE, WEBHOOK
from sidecar.errors import ConfigError, Problem, RequestError
from sidecar.model import Alert, AlertState
from sidecar.responses.journal import Wanted


def failing(*problems):
    async def reload():
        raise ConfigError(problems)

    return reload


def alert(state=AlertState.FIRING, value=1.0, annotations=()):
    labels = (("alertname", "Starved"), ("severity", "warning"))
    return Alert("Starved", labels, annotations, state, value, 1_700_000_000_500)


def test_metrics_are_what_the_page_says_for_the_accept_header_given(serve):
    client = serve(page=lambda accept: (f"for {accept}".encode(), "text/x-page; version=7"))
    answer = client.get("/metrics", headers={"Accept": "application/openmetrics-text", "Accept-Encoding": "identity"})
    assert (answer.status_code, answer.text) == (200, "for application/openmetrics-text")
    assert answer.headers["content-type"] == "text/x-page; version=7"


def test_metrics_are_compressed_for_who_understands_it(serve):
    client = serve(page=lambda accept: (b"x 1\n" * 1000, "text/plain"))
    with client.stream("GET", "/metrics", headers={"Accept-Encoding": "gzip"}) as answer:
        packed = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip"
    assert len(packed) < 400
    assert gzip.decompress(packed) == b"x 1\n" * 1000


def test_a_running_sidecar_is_healthy_even_while_it_is_not_ready(serve):
    client = serve(not_ready=lambda: "first evaluation is still to come")
    assert client.get("/-/healthy").status_code == 200
    answer = client.get("/-/ready")
    assert (answer.status_code, answer.text) == (
        503,
        "spikewatch is not ready: first evaluation is still to come\n",
    )


def test_a_runbook_is_served_where_the_alert_links_to(serve):
    client = serve(runbook=lambda alert: "# Starved\n" if alert == "Starved" else None)
    answer = client.get("/runbooks/Starved")
    assert (answer.status_code, answer.text) == (200, "# Starved\n")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    missing = client.get("/runbooks/Other")
    assert (missing.status_code, missing.json()["error"]) == (404, "there is no runbook for Other")


def test_a_ready_sidecar_says_so(serve):
    assert serve().get("/-/ready").status_code == 200


def test_alerts_are_listed_as_prometheus_lists_them(serve):
    client = serve(alerts=lambda: [alert(value=0.58, annotations=(("summary", "slow"),))])
    assert client.get("/api/v1/alerts").json() == {
        "status": "success",
        "data": {
            "alerts": [
                {
                    "labels": {"alertname": "Starved", "severity": "warning"},
                    "annotations": {"summary": "slow"},
                    "state": "firing",
                    "activeAt": "2023-11-14T22:13:20.5Z",
                    "value": "5.8e-01",
                }
            ]
        },
    }


def test_an_alert_that_is_kept_firing_says_since_when(serve):
    kept = replace(alert(), keep_firing_since_ms=1_700_000_060_000)
    listed = serve(alerts=lambda: [alert(), kept]).get("/api/v1/alerts").json()["data"]["alerts"]
    assert [one.get("keepFiringSince") for one in listed] == [None, "2023-11-14T22:14:20Z"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1e+00"),
        (0.0, "0e+00"),
        (-1234.5, "-1.2345e+03"),
        (1e100, "1e+100"),
        (0.1 + 0.2, "3.0000000000000004e-01"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (float("nan"), "NaN"),
    ],
)
def test_numbers_are_spelled_as_go_spells_them(value, text):
    assert number(value) == text


def test_build_information_is_given(serve):
    assert serve(build={"version": "1.2"}).get("/api/v1/status/buildinfo").json()["data"] == {"version": "1.2"}


@pytest.mark.parametrize("what", ["experiments", "approvals", "responses"])
def test_experiments_approvals_and_responses_are_given_as_they_are(serve, asked, what):
    client = serve(responses=asked(**{what: [{"name": "c1", "state": "measuring"}]}))
    assert client.get(f"/api/v1/{what}").json()["data"] == {what: [{"name": "c1", "state": "measuring"}]}
    assert serve().get(f"/api/v1/{what}").json()["data"] == {what: []}


def test_the_newest_journal_entries_come_or_those_after_one_and_by_kind_episode_and_response(serve, asked):
    behind = asked()
    client = serve(responses=behind)
    for query in ("", "?limit=3", "?after=7&limit=10000&kind=edge&episode=e1&response=r"):
        assert client.get(f"/api/v1/journal{query}").json()["data"] == {"entries": []}
    assert [call[1] for call in behind.calls] == [
        Wanted(limit=100, newest=True),
        Wanted(limit=3, newest=True),
        Wanted(7, 10_000, "edge", "e1", "r"),
    ]


@pytest.mark.parametrize("limit", ["0", "-1", "x", "10001", "9" * 100, "", "٣"])
def test_a_limit_that_is_none_is_refused(serve, limit):
    answer = serve().get("/api/v1/journal", params={"limit": limit})
    assert answer.status_code == 400
    assert answer.json()["errorType"] == "bad_data"


def test_a_reload_without_problems_succeeds_and_tells_the_warnings(serve):
    async def reload():
        return [Problem("a.yaml", 3, 1, "never fires", "warning")]

    answer = serve(reload=reload).post("/-/reload")
    assert answer.status_code == 200
    assert answer.json()["data"] == {"warnings": ["a.yaml:3:1: warning: never fires"]}


def test_a_reload_with_problems_is_refused_with_every_one_of_them(serve, caplog):
    problems = [Problem("a.yaml", 3, 7, "unknown key 'fro'"), Problem("b.yaml", 0, 0, "cannot be read")]
    with caplog.at_level(logging.WARNING):
        answer = serve(reload=failing(*problems)).post("/-/reload")
    assert answer.status_code == 400
    body = answer.json()
    assert body["status"] == "error"
    assert body["error"] == "a.yaml:3:7: error: unknown key 'fro'\nb.yaml: error: cannot be read"
    assert body["problems"][0] == {
        "file": "a.yaml",
        "line": 3,
        "column": 7,
        "message": "unknown key 'fro'",
        "level": "error",
    }
    assert "unknown key 'fro'" in caplog.text


def test_a_refused_reload_is_plain_text_for_who_asks_for_it(serve):
    client = serve(reload=failing(Problem("a.yaml", 3, 7, "bad")))
    answer = client.post("/-/reload", headers={"Accept": "text/plain"})
    assert (answer.status_code, answer.text) == (400, "a.yaml:3:7: error: bad\n")


def test_two_reloads_at_once_run_one_after_the_other(serve, loop):
    under_way, most = 0, 0

    async def reload():
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.02)
        under_way -= 1
        return ()

    client = serve(reload=reload)

    async def both():
        async with httpx.AsyncClient(base_url=client.base_url, trust_env=False) as c:
            return await asyncio.gather(*(c.post("/-/reload") for _ in range(4)))

    assert [a.status_code for a in asyncio.run(both())] == [200] * 4
    assert most == 1


@pytest.mark.parametrize(
    ("path", "form", "call"),
    [
        ("responses/ep-1/feed%20it/approve", {}, ("approve", "ep-1", "feed it", "api", None)),
        ("responses/e/r/approve", {"by": "ada", "for": "30m"}, ("approve", "e", "r", "ada", 1_800_000)),
        ("responses/e/r/reject", {"by": "ada"}, ("reject", "e", "r", "ada")),
        ("responses/feed/reset", {"by": "ada"}, ("reset", "feed", "ada")),
        ("kill-switch", {"by": "ada", "reason": "a release"}, ("halt", "ada", "a release")),
    ],
)
def test_what_somebody_decides_reaches_the_responses_with_who_said_it(serve, asked, path, form, call):
    behind = asked()
    assert serve(responses=behind).post(f"/api/v1/{path}", data=form).status_code == 200
    assert behind.calls == [call]


def test_the_kill_switch_is_looked_at_turned_on_and_off_at_one_address(serve, asked):
    behind = asked()
    client = serve(responses=behind)
    assert client.get("/api/v1/kill-switch").json()["data"] == {"on": False}
    client.post("/api/v1/kill-switch")
    client.delete("/api/v1/kill-switch", params={"by": "ada"})
    assert behind.calls == [("kill_switch",), ("halt", "api", ""), ("resume", "ada")]


@pytest.mark.parametrize("status", [404, 409, 503])
def test_a_refusal_comes_back_with_its_status_and_reason(serve, asked, status):
    client = serve(responses=asked(refuses=RequestError("too late", status, "conflict")))
    answer = client.post("/api/v1/responses/e/r/approve")
    assert (answer.status_code, answer.json()["error"]) == (status, "too late")


@pytest.mark.parametrize(
    "form", [{"for": "soon"}, {"for": "0s"}, {"by": "x" * 501}, {"by": "a\x07"}], ids=["for", "zero", "long", "bell"]
)
def test_who_and_how_long_are_checked(serve, asked, form):
    behind = asked()
    assert serve(responses=behind).post("/api/v1/responses/e/r/approve", data=form).status_code == 400
    assert behind.calls == []


@pytest.mark.parametrize("path", ["responses/a/b/approve", "responses/a/b/reject", "responses/a/reset", "kill-switch"])
def test_without_responses_there_is_nothing_to_decide(serve, path):
    assert serve().post(f"/api/v1/{path}").status_code == 404


def test_a_webhook_message_may_be_larger_than_a_query_and_has_a_bound_too(serve, asked, tmp_path):
    (tmp_path / "token").write_text("t")
    behind = asked()
    client = serve(responses=behind, token_file=tmp_path / "token")
    headers = {"Authorization": "Bearer t"}
    assert client.post(WEBHOOK, content=b"x" * (MAX_BODY + 1), headers=headers).status_code == 200
    assert client.post(WEBHOOK, content=b"x" * (MAX_MESSAGE + 1), headers=headers).status_code == 413

    def pieces():
        for _ in range(5):
            yield b"x" * (1 << 20)

    assert client.post(WEBHOOK, content=pieces(), headers=headers).status_code == 413
    assert [len(call[1]) for call in behind.calls] == [MAX_BODY + 1]


@pytest.mark.parametrize("path", ["/", "/metrics/", "/api/v1/nothing", "/-/quit", "/api/v1/responses/a/approve"])
def test_an_unknown_address_is_answered_in_json(serve, path):
    answer = serve().get(path)
    assert answer.status_code == 404
    assert answer.json() == {"status": "error", "errorType": "not_found", "error": f"there is no {path}"}


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/metrics", "GET"),
        ("GET", "/-/reload", "POST"),
        ("DELETE", "/api/v1/alerts", "GET"),
        ("GET", "/api/v1/responses/a/b/approve", "POST"),
    ],
)
def test_a_wrong_method_is_answered_with_the_right_one(serve, method, path, allowed):
    answer = serve().request(method, path)
    assert answer.status_code == 405
    assert allowed in answer.headers["allow"]
    assert answer.json()["status"] == "error"


@pytest.mark.parametrize("path", ["/metrics", "/-/healthy", "/-/ready"])
def test_the_open_listener_offers_metrics_and_health(serve, path):
    assert serve(routes.metrics_only).get(path).status_code == 200


@pytest.mark.parametrize("path", ["/api/v1/alerts", "/api/v1/journal", "/api/v1/experiments", "/-/reload"])
def test_the_open_listener_offers_nothing_else(serve, path):
    client = serve(routes.metrics_only)
    assert "the API is on http.listen" in client.get("/api/v1/query").json()["error"]
    assert client.get(path).status_code == 404
    assert client.post(path).status_code == 404


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/alerts", "/api/v1/journal"])
def test_a_service_that_breaks_is_an_error_in_json_without_its_details(serve, asked, path, caplog):
    def broken(*given):
        raise RuntimeError("secret")

    answer = serve(page=broken, alerts=broken, responses=asked(refuses=RuntimeError("secret"))).get(path)
    assert answer.status_code == 500
    assert answer.json()["errorType"] == "internal"
    assert "secret" not in answer.text
    assert "RuntimeError: secret" in caplog.text

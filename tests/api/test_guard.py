"""Who may change something."""

import pytest
from starlette.requests import Request

from sidecar.api.guard import refusal

CHANGES = [
    "/-/reload",
    "/api/v1/responses/e/r/approve",
    "/api/v1/responses/e/r/reject",
    "/api/v1/responses/r/reset",
    "/api/v1/kill-switch",
]
WEBHOOK = "/api/v1/webhook/alertmanager"


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    return path


def request_of(client="127.0.0.1", **headers):
    """A request as the routes see it."""
    raw = [(name.lower().encode(), value.encode()) for name, value in {"Host": "localhost:9478", **headers}.items()]
    return Request(
        {"type": "http", "method": "POST", "headers": raw, "client": None if client is None else (client, 1)}
    )


@pytest.mark.parametrize("path", CHANGES)
def test_without_a_token_a_program_on_this_machine_may_change_things(serve, asked, path):
    assert serve(responses=asked()).post(path).status_code == 200


@pytest.mark.parametrize("path", CHANGES)
def test_the_token_opens(serve, asked, token, path):
    client = serve(responses=asked(), token_file=token)
    assert client.post(path, headers={"Authorization": "Bearer s3cret"}).status_code == 200
    assert client.post(path, headers={"Authorization": "bearer  s3cret"}).status_code == 200


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize(
    "given", ["", "s3cret", "Bearer", "Bearer s3cre", "Bearer s3crets", "Basic s3cret", "Bearer \xff"]
)
def test_anything_but_the_token_does_not(serve, asked, token, path, given):
    behind = asked()
    client = serve(responses=behind, token_file=token)
    answer = client.post(path, headers={"Authorization": given.encode("latin-1")})
    assert behind.calls == []
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "s3cret" not in answer.text


def test_a_new_token_counts_without_a_restart(serve, token):
    client = serve(token_file=token)
    token.write_text("other")
    assert client.post("/-/reload", headers={"Authorization": "Bearer s3cret"}).status_code == 401
    assert client.post("/-/reload", headers={"Authorization": "Bearer other"}).status_code == 200


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_a_token_file_without_a_token_opens_to_nobody(serve, tmp_path, content):
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    answer = serve(token_file=path).post("/-/reload", headers={"Authorization": "Bearer x"})
    assert answer.status_code == 503
    assert "token_file" in answer.json()["error"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9478", "10.0.0.7:9478", "127.0.0.1.evil.example", ""])
def test_a_page_whose_name_was_rebound_to_this_machine_is_refused(serve, host):
    answer = serve().post("/-/reload", headers={"Host": host})
    assert answer.status_code in (400, 403)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost.evil.example", "http://[bad"])
def test_a_page_from_elsewhere_is_refused(serve, origin):
    assert serve().post("/-/reload", headers={"Origin": origin}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:9478", "127.0.0.1:1", "127.8.8.8", "[::1]:9478"])
def test_every_name_of_this_machine_is_accepted(host):
    assert refusal(request_of(Host=host, Origin=f"http://{host}"), None) is None


@pytest.mark.parametrize("client", ["10.0.0.7", "fe80::1", "", None, "::ffff:10.0.0.7"])
def test_without_a_token_another_machine_is_refused_whatever_it_claims(client):
    answer = refusal(request_of(client, **{"X-Forwarded-For": "127.0.0.1"}), None)
    assert answer is not None
    assert answer.status_code == 403


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_this_machine_is_recognised_in_every_family(client):
    assert refusal(request_of(client), None) is None


def test_a_forged_forwarding_header_does_not_reach_the_guard_as_the_client(serve):
    answer = serve().post("/-/reload", headers={"X-Forwarded-For": "10.0.0.7"})
    assert answer.status_code == 200, "the client is who is connected, and that is us"


def test_another_machine_with_the_token_may_come_under_any_name(token):
    request = request_of("10.0.0.7", Host="spikewatch.example", Authorization="Bearer s3cret")
    assert refusal(request, token) is None


def test_the_kill_switch_is_turned_off_by_who_may_turn_it_on_and_seen_by_all(serve, asked, token):
    client = serve(responses=asked(), token_file=token)
    assert client.get("/api/v1/kill-switch").status_code == 200
    assert client.delete("/api/v1/kill-switch").status_code == 401
    assert client.delete("/api/v1/kill-switch", headers={"Authorization": "Bearer s3cret"}).status_code == 200


def test_a_webhook_needs_the_token_being_on_this_machine_is_not_enough(serve, asked, token):
    behind = asked()
    assert serve(responses=behind).post(WEBHOOK, content=b"{}").status_code == 403
    client = serve(responses=behind, token_file=token)
    assert client.post(WEBHOOK, content=b"{}").status_code == 401
    assert behind.calls == []
    assert client.post(WEBHOOK, content=b"{}", headers={"Authorization": "Bearer s3cret"}).status_code == 200
    assert behind.calls == [("receive", b"{}")]

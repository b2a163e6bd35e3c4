"""The API on a Unix socket: for who may open it, and for nobody else."""

from __future__ import annotations

import os
import socket
import stat

import httpx
import pytest

from sidecar.api import routes
from sidecar.api.server import UnixServer


@pytest.fixture
def listen(loop, silent, asked):
    """Starts a listener on a path; gives a client and what stands where the responses are."""
    started, clients = [], []

    def start(path, **given):
        behind = asked()
        server = UnixServer(routes.full(silent(responses=behind, **given), local=True), path)
        loop.run(server.start())
        started.append(server)
        transport = httpx.HTTPTransport(uds=str(path))
        clients.append(httpx.Client(base_url="http://localhost", transport=transport, timeout=10))
        return clients[-1], behind, server

    yield start
    for client in clients:
        client.close()
    for server in started:
        loop.run(server.stop())


def test_it_answers_and_needs_no_token_whatever_is_set_for_the_other_listener(listen, tmp_path):
    (tmp_path / "token").write_text("s3cret")
    client, behind, _ = listen(tmp_path / "run" / "api.sock", token_file=tmp_path / "token")
    assert client.get("/-/healthy").status_code == 200
    assert client.post("/api/v1/kill-switch", data={"by": "ada"}).status_code == 200
    assert client.post("/api/v1/webhook/alertmanager", content=b"{}").status_code == 200
    assert behind.calls == [("halt", "ada", ""), ("receive", b"{}")]


def test_only_its_owner_can_open_it_or_its_folder(listen, tmp_path):
    listen(tmp_path / "run" / "api.sock")
    assert stat.S_IMODE(os.lstat(tmp_path / "run" / "api.sock").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "run").st_mode) == 0o700


def test_a_socket_that_a_killed_sidecar_left_is_replaced(listen, tmp_path):
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "api.sock"))
    left.close()
    client, _, _ = listen(tmp_path / "api.sock")
    assert client.get("/-/healthy").status_code == 200


def test_what_is_no_socket_is_left_alone(listen, tmp_path):
    (tmp_path / "api.sock").write_text("mine")
    with pytest.raises(OSError, match="api.sock: exists and is not a socket: move it away"):
        listen(tmp_path / "api.sock")
    assert (tmp_path / "api.sock").read_text() == "mine"


def test_a_path_that_no_socket_can_have_is_named(listen, tmp_path):
    with pytest.raises(OSError, match=r"cannot listen on .*api.sock"):
        listen(tmp_path / ("x" * 120) / "api.sock")


def test_it_takes_its_path_along_and_not_that_of_its_successor(listen, loop, tmp_path):
    path = tmp_path / "api.sock"
    _, _, first = listen(path)
    client, _, second = listen(path)
    loop.run(first.stop())
    assert client.get("/-/healthy").status_code == 200
    loop.run(second.stop())
    assert not path.exists()


def test_it_says_where_it_listens(listen, tmp_path):
    _, _, server = listen(tmp_path / "api.sock")
    assert server.url == f"unix:{tmp_path / 'api.sock'}"

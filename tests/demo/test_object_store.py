"""The demo's object store over a real loopback connection."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
import zlib

import numpy as np
import pytest

from sidecar.cli.demo.store import SIDES, Behaviour, ImageSet, ObjectStore, serve


@pytest.fixture
def store():
    """A store of 100 images that answers at once, on a free port, in a thread of its own; its `port` is set."""
    store = ObjectStore(images=100, seed=7)
    store.behaviour.latency_ms = 0
    started = threading.Event()
    loop = asyncio.new_event_loop()
    finish: asyncio.Future[None]

    async def main():
        nonlocal finish
        finish = loop.create_future()
        server = await serve(store, "127.0.0.1", 0)
        store_port.append(server.sockets[0].getsockname()[1])
        started.set()
        await finish
        server.close()
        await asyncio.sleep(0)

    store_port: list[int] = []
    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert started.wait(10)
    yield store, store_port[0]
    loop.call_soon_threadsafe(finish.set_result, None)
    thread.join(10)
    loop.close()


def ask(connection, method, path, body=None):
    connection.request(method, path, body=None if body is None else json.dumps(body))
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


@pytest.fixture
def connection(store):
    connection = http.client.HTTPConnection("127.0.0.1", store[1], timeout=10)
    yield connection
    connection.close()
    deadline = time.monotonic() + 10
    while store[0].stats.connections and time.monotonic() < deadline:
        time.sleep(0.005)
    assert store[0].stats.connections == 0


def test_one_connection_serves_many_images_and_every_image_decodes_to_its_side(connection):
    """Keep-alive: the client's socket is the same one for all requests."""
    ask(connection, "GET", "/dataset")
    socket_used = connection.sock
    for index in (0, 1, 99):
        status, headers, body = ask(connection, "GET", f"/images/{index}")
        assert status == 200
        assert headers["X-Side"] == "32"
        assert len(zlib.decompress(body)) == 3 * 32 * 32
        assert 0 <= int(headers["X-Class"]) < 10
    assert connection.sock is socket_used


def test_the_dataset_says_how_many_images_there_are(connection):
    """`/dataset` is what the training script starts from."""
    assert json.loads(ask(connection, "GET", "/dataset")[2]) == {"images": 100, "classes": 10}


def test_latency_set_through_control_applies_to_images_from_then_on_and_to_nothing_else(connection):
    """A raised latency delays images by at least four fifths of it; control stays quick to answer."""
    assert ask(connection, "PUT", "/control", {"latency_ms": 200})[0] == 200
    asked = time.monotonic()
    ask(connection, "GET", "/images/5")
    slow = time.monotonic() - asked
    assert slow >= 0.16
    asked = time.monotonic()
    assert json.loads(ask(connection, "GET", "/stats")[2])["latency_ms"] == 200
    assert time.monotonic() - asked < slow


def test_slow_requests_on_many_connections_are_waited_for_at_the_same_time(store):
    """Ten connections with 300 ms each take far less than 3 s: the store models latency, not bandwidth."""
    store[0].behaviour.latency_ms = 300
    connections = [http.client.HTTPConnection("127.0.0.1", store[1], timeout=10) for _ in range(10)]
    asked = time.monotonic()
    for index, connection in enumerate(connections):
        connection.request("GET", f"/images/{index}")
    assert [connection.getresponse().status for connection in connections] == [200] * 10
    assert time.monotonic() - asked < 2
    for connection in connections:
        connection.close()


def test_large_images_show_the_same_picture_as_the_small_ones(connection):
    """Every pixel of the thumbnail is a square of the original, so a training run learns the same."""
    small = np.frombuffer(zlib.decompress(ask(connection, "GET", "/images/3")[2]), np.uint8).reshape(3, 32, 32)
    assert ask(connection, "PUT", "/control", {"side": SIDES[1]})[0] == 200
    _, headers, body = ask(connection, "GET", "/images/3")
    side = int(headers["X-Side"])
    large = np.frombuffer(zlib.decompress(body), np.uint8).reshape(3, side, side)
    assert side == SIDES[1]
    assert (large[:, :: side // 32, :: side // 32] == small).all()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/images/100", None, 404),
        ("GET", "/images/-1", None, 404),
        ("GET", "/images/one", None, 404),
        ("GET", "/nothing", None, 404),
        ("DELETE", "/images/1", None, 405),
        ("GET", "/control", None, 405),
        ("PUT", "/control", {"latency_ms": -1}, 400),
        ("PUT", "/control", {"latency_ms": True}, 400),
        ("PUT", "/control", {"side": 33}, 400),
        ("PUT", "/control", {"speed": 1}, 400),
        ("PUT", "/control", [1], 400),
    ],
)
def test_a_wrong_request_is_refused_with_a_reason_and_counted_and_the_connection_lives_on(
    store, connection, method, path, body, status
):
    """Nothing changes, and the next request on the connection is answered."""
    before = store[0].behaviour.latency_ms, store[0].behaviour.side
    got, _, answer = ask(connection, method, path, body)
    assert got == status
    assert json.loads(answer)["error"]
    assert (store[0].behaviour.latency_ms, store[0].behaviour.side) == before
    assert store[0].stats.errors == 1
    assert ask(connection, "GET", "/dataset")[0] == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 400),
        (b"PUT /control HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 400),
        (b"PUT /control HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"PUT /control HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000, 431),
    ],
)
def test_bytes_that_are_no_request_are_answered_with_an_error_and_the_connection_is_closed(store, sent, status):
    """The client reads the reason and then the end."""
    with socket.create_connection(("127.0.0.1", store[1]), timeout=10) as peer:
        peer.sendall(sent)
        received = b""
        while chunk := peer.recv(65_536):
            received += chunk
    assert received.startswith(f"HTTP/1.1 {status} ".encode())


def test_requests_sent_ahead_are_answered_in_order(store):
    """Three requests in one packet, the slow one first."""
    store[0].behaviour.latency_ms = 50
    with socket.create_connection(("127.0.0.1", store[1]), timeout=10) as peer:
        last = b"GET /dataset HTTP/1.1\r\nConnection: close\r\n\r\n"
        peer.sendall(b"GET /images/1 HTTP/1.1\r\n\r\nGET /none HTTP/1.1\r\n\r\n" + last)
        received = b""
        while chunk := peer.recv(65_536):
            received += chunk
    places = [received.index(part) for part in (b"X-Class", b"404 Not Found", b'"classes"')]
    assert places == sorted(places)


def test_the_same_seed_makes_the_same_images():
    """Two stores can stand in for each other; another seed gives other pictures."""
    one, other, third = (ImageSet(10, seed) for seed in (1, 1, 2))
    assert one.answer(4, 32) == other.answer(4, 32)
    assert one.answer(4, 32) != third.answer(4, 32)


def test_a_change_that_is_refused_changes_nothing_at_all():
    """A good latency beside a bad side is not taken either."""
    behaviour = Behaviour()
    with pytest.raises(ValueError, match="side is 31, want one of"):
        behaviour.change({"latency_ms": 9, "side": 31})
    assert behaviour == Behaviour()

"""The listener itself: starting, stopping, and those who want to keep it busy."""

import asyncio
import signal
import socket
import threading
import time

import pytest
from starlette.responses import PlainTextResponse

from sidecar.api import server as module
from sidecar.api.routes import MAX_BODY, MAX_TARGET
from sidecar.api.server import MAX_HEAD, Server


async def hello(scope, receive, send):
    await PlainTextResponse("hello")(scope, receive, send)


def talk(address, data, timeout=10):
    """Sends bytes and reads until the other end closes."""
    with socket.create_connection(address, timeout) as s:
        s.sendall(data)
        received = b""
        while chunk := s.recv(65536):
            received += chunk
        return received


@pytest.fixture
def listener(loop):
    return lambda app=hello, **given: loop.start(app, **given)


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def test_it_answers_once_started_and_says_where(listener):
    server = listener()
    assert server.address[1] > 0
    answer = talk(server.address, GET)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"date: " in answer
    assert b"uvicorn" not in answer


def test_an_address_in_use_is_an_error_that_names_it(listener, loop):
    taken = listener().address
    second = Server(hello, *taken)
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{taken[1]}: Address already in use"):
        loop.run(second.start())
    loop.run(second.stop())


def test_a_host_that_is_none_is_an_error_that_names_it(loop):
    with pytest.raises(OSError, match=r"cannot listen on 256\.1\.1\.1:9478"):
        loop.run(Server(hello, "256.1.1.1", 9478).start())


def test_it_leaves_the_signal_handlers_alone():
    async def main():
        before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
        server = Server(hello, "127.0.0.1", 0)
        await server.start()
        during = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
        await server.stop()
        return before == during

    assert threading.current_thread() is threading.main_thread()
    assert asyncio.run(main())


def test_after_a_stop_the_port_is_free_again(loop):
    server = Server(hello, "127.0.0.1", 0)
    loop.run(server.start())
    talk(server.address, GET)
    loop.run(server.stop())
    again = Server(hello, *server.address)
    loop.run(again.start())
    loop.run(again.stop())


def test_a_request_under_way_is_finished_before_the_stop(listener, loop):
    entered, go = threading.Event(), asyncio.Event()

    async def slow(scope, receive, send):
        entered.set()
        await go.wait()
        await hello(scope, receive, send)

    server = listener(slow)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(talk(server.address, GET)))
    asking.start()
    assert entered.wait(10)

    async def stop():
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0)
        go.set()
        await stopping

    loop.run(stop())
    asking.join(10)
    assert answers[0].endswith(b"hello")


def test_a_request_that_never_ends_does_not_hold_up_the_stop(listener, loop):
    entered = threading.Event()

    async def endless(scope, receive, send):
        entered.set()
        await asyncio.Event().wait()

    server = listener(endless)
    with socket.create_connection(server.address, 10) as s:
        s.sendall(GET)
        assert entered.wait(10)
        started = time.monotonic()
        loop.run(server.stop())
        assert time.monotonic() - started < 8, "liveness: one second of grace, generously"


def test_an_idle_connection_does_not_hold_up_the_stop(listener, loop):
    server = listener()
    with socket.create_connection(server.address, 10) as s:
        s.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"hello"):
            answer += s.recv(65536)
        loop.run(server.stop())
        assert s.recv(65536) == b""


def test_a_connection_that_never_asks_is_closed(listener, monkeypatch):
    monkeypatch.setattr(module, "HEAD_S", 0.05)
    server = listener()
    assert talk(server.address, b"GET / HT") == b""


def test_more_connections_than_the_limit_are_told_to_come_later(listener, monkeypatch):
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 3)
    server = listener()
    idle = [socket.create_connection(server.address, 10) for _ in range(3)]
    try:
        assert talk(server.address, GET).startswith(b"HTTP/1.1 503")
    finally:
        for s in idle:
            s.close()


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * MAX_HEAD,
        b"GET /" + b"x" * MAX_HEAD,
        b"\x16\x03\x01 this is TLS\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ],
)
def test_what_is_no_request_is_answered_400(listener, head):
    assert talk(listener().address, head).startswith(b"HTTP/1.1 400")


def test_an_address_that_is_too_long_is_refused(serve):
    assert serve().get("/metrics", params={"x": "y" * MAX_TARGET}).status_code == 414


def test_a_body_that_is_too_large_is_refused_unread(serve):
    answer = serve(reload=lambda: pytest.fail("reached")).post("/-/reload", content=b"x" * (MAX_BODY + 1))
    assert answer.status_code == 413
    assert answer.json()["status"] == "error"


def test_a_body_of_unknown_length_does_no_harm(serve):
    client = serve()
    chunks = (b"x" * 65536 for _ in range(64))
    assert client.post("/-/reload", content=chunks).status_code == 200
    assert client.get("/-/healthy").status_code == 200

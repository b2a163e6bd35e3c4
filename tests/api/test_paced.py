"""Answers for clients that go away, do not read, or are many."""

import asyncio
import json
import logging
import socket

import pytest

from sidecar.api import paced
from sidecar.api.paced import PacedResponse
from sidecar.api.turns import Turns
from sidecar.errors import RequestError


class Client:
    """The other end of an ASGI connection; `reads` is how many pieces it takes before it stops reading for good."""

    def __init__(self, reads=10**9, stays=True):
        self.messages, self._reads = [], reads
        self._gone = asyncio.Event()
        if not stays:
            self._gone.set()

    def leave(self):
        self._gone.set()

    async def receive(self):
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if len(self.messages) >= self._reads:
            await asyncio.Event().wait()
        self.messages.append(message)

    @property
    def body(self):
        return b"".join(m.get("body", b"") for m in self.messages)


class Place:
    def __init__(self):
        self.left = 0

    def __call__(self):
        self.left += 1


def sent(client, pieces):
    """Sends an answer made of the pieces; how often its place was left."""
    place = Place()

    async def main():
        await PacedResponse(iter(pieces), Turns(), place)({"path": "/x"}, client.receive, client.send)

    return asyncio.wait_for(main(), 10), place


def test_the_pieces_arrive_in_order_and_the_place_is_left_once():
    async def main():
        client = Client()
        sending, place = sent(client, [b"a", b"b", b"c"])
        await sending
        assert client.body == b"abc"
        assert [m.get("more_body", False) for m in client.messages[1:]] == [True, True, True, False]
        assert place.left == 1

    asyncio.run(main())


def test_nothing_more_is_made_for_a_client_that_went_away():
    made = []

    async def main():
        client = Client()

        def pieces():
            for n in range(10_000):
                made.append(n)
                if n == 3:
                    client.leave()
                yield b"x"

        sending, place = sent(client, pieces())
        await sending
        assert place.left == 1

    asyncio.run(main())
    assert len(made) < 100


def test_a_client_that_does_not_read_is_given_up(monkeypatch, caplog):
    monkeypatch.setattr(paced, "SEND_S", 0.05)

    async def main():
        sending, place = sent(Client(reads=2), [b"x"] * 100)
        with caplog.at_level(logging.WARNING):
            await sending
        assert place.left == 1

    asyncio.run(main())
    assert "/x: not read within" in caplog.text


def test_an_error_while_an_answer_is_made_leaves_the_place_too():
    async def main():
        def broken():
            yield b"x"
            raise ZeroDivisionError

        sending, place = sent(Client(), broken())
        with pytest.raises(ZeroDivisionError):
            await sending
        assert place.left == 1

    asyncio.run(main())


def test_work_for_a_client_that_goes_away_is_canceled():
    async def main():
        client, ended = Client(), asyncio.Event()

        async def endless():
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        asyncio.get_running_loop().call_later(0.01, client.leave)
        with pytest.raises(RequestError, match="query was canceled") as e:
            await paced.while_connected(client.receive, endless())
        assert ended.is_set()
        return e.value

    error = asyncio.run(main())
    assert (error.status, error.kind) == (499, "canceled")


def test_work_that_is_done_counts_though_the_client_is_leaving():
    async def main():
        async def done():
            return 42

        return await paced.while_connected(Client(stays=False).receive, done())

    assert asyncio.run(main()) == 42


# --- over real connections -------------------------------------------------------------------------------------------


def request(query):
    body = f"query={query}".encode()
    head = "POST /api/v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_clients_that_ask_for_long_work_and_leave_do_not_keep_others_from_their_answer(serve):
    client = serve()
    address = client.base_url.host, client.base_url.port
    slow = request("count_over_time(count_over_time(vector(1)[2h:1s])[2h:1s])")  # cut off after ten seconds, no earlier
    for _ in range(12):  # three times as many as there are places
        with socket.create_connection(address, 10) as s:
            s.sendall(slow)
    assert client.get("/api/v1/query", params={"query": "1", "timeout": "8s"}).status_code == 200


def test_many_queries_at_once_are_all_answered(serve, loop):
    client = serve()

    async def one(n):
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        writer.write(
            request(f"count_over_time(vector(1)[{n + 50}s:1s])").replace(b"1.1\r\n", b"1.1\r\nConnection: close\r\n")
        )
        answer = await reader.read()
        writer.close()
        return json.loads(answer[answer.index(b"{") : answer.rindex(b"}") + 1])["data"]["result"][0]["value"][1]

    async def all_of_them():
        return await asyncio.gather(*(one(n) for n in range(40)))

    assert asyncio.run(all_of_them()) == [str(n + 50) for n in range(40)]

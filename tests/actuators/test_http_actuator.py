"""The http actuator against a real server on loopback: what is asked, taken back, remembered and refused."""

from __future__ import annotations

import asyncio
import json

import pytest

from sidecar.actuators.egress import EgressList
from sidecar.actuators.http import HttpActuator
from sidecar.actuators.notes import Notes
from sidecar.clock import FakeClock
from sidecar.hooks import Actuator
from sidecar.model import ChangeState, Order, TrainerIdentity

DEADLINE = 20.0


class Answering:
    """A server that keeps every body and answers as told: a status, a redirect, or not at all."""

    def __init__(self):
        self.asked, self.paths, self.tokens = [], [], []
        self.answers = []  # (status, location) for the next requests; then 200
        self.silent = False
        self.lets_go = asyncio.Event()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/hooks/"
        return self

    async def __aexit__(self, *_):
        self.lets_go.set()
        self.server.close()
        await self.server.wait_closed()

    async def _serve(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length"))
                self.asked.append(json.loads(await reader.readexactly(length)))
                self.paths.append(lines[0].split()[1])
                self.tokens += [line.split(": ", 1)[1] for line in lines if line.lower().startswith("authorization:")]
                if self.silent:
                    await self.lets_go.wait()
                status, location = self.answers.pop(0) if self.answers else (200, "")
                extra = f"Location: {location}\r\n" if location else ""
                writer.write(f"HTTP/1.1 {status} X\r\n{extra}Content-Length: 0\r\n\r\n".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @property
    def actions(self):
        return [body["action"] for body in self.asked]


def order(url, change="c1", lease_ms=30_000, undo_url=None):
    request = {"url": url, "undo_url": undo_url or url, "body": {"alert": "StoreSlow", "extra": {"tier": "fast"}}}
    return Order(change, {"request": json.dumps(request)}, {"request": ""}, lease_ms)


async def until(actuator, change, *states):
    async with asyncio.timeout(DEADLINE):
        while (outcome := actuator.outcome(change)).state not in states:
            await asyncio.sleep(0.005)
    return outcome


def story(tmp_path, play, **options):
    """Plays with (actuator, server, clock); the actuator allows the server's /hooks/."""

    async def run():
        clock = FakeClock(1_000_000)
        async with Answering() as server:
            allow = options.pop("allow", [server.url])
            actuator = HttpActuator(EgressList(allow), tmp_path / "requests.json", clock, **options)
            try:
                return await play(actuator, server, clock)
            finally:
                await actuator.close()

    return asyncio.run(run())


def test_it_is_an_actuator_with_one_knob_where_egress_is_allowed(tmp_path):
    async def play(actuator, server, clock):
        assert isinstance(actuator, Actuator)
        assert set(actuator.knobs()) == {"request"}
        assert actuator.identity() == actuator.identity()
        actuator.replace_egress(EgressList([]), 1000)
        assert actuator.knobs() == {}

    story(tmp_path, play)


def test_who_is_judged_is_the_trainer_where_there_is_one(tmp_path):
    trainer = [None]

    async def play(actuator, server, clock):
        alone = actuator.identity()
        trainer[0] = TrainerIdentity("job", "1", ("a",), (0,), 1)
        return alone.job, actuator.identity()

    assert story(tmp_path, play, judged=lambda: trainer[0]) == ("http", trainer[0])


def test_an_applied_change_that_is_kept_is_asked_for_once(tmp_path):
    async def play(actuator, server, clock):
        actuator.apply(order(server.url + "store"))
        actuator.apply(order(server.url + "store"))
        assert actuator.outcome("c1").state is ChangeState.PENDING
        await until(actuator, "c1", ChangeState.APPLIED)
        actuator.keep("c1")
        clock.advance(10**9)
        assert actuator.outcome("c1").state is ChangeState.KEPT
        actuator.revert("c1")
        return server.asked

    asked = story(tmp_path, play)
    assert asked == [{"alert": "StoreSlow", "extra": {"tier": "fast"}, "action": "apply", "change_id": "c1"}]


def test_a_reverted_change_is_taken_back_at_its_own_address(tmp_path):
    async def play(actuator, server, clock):
        actuator.apply(order(server.url + "on", undo_url=server.url + "off"))
        await until(actuator, "c1", ChangeState.APPLIED)
        actuator.revert("c1")
        outcome = await until(actuator, "c1", ChangeState.REVERTED)
        return server, outcome

    server, outcome = story(tmp_path, play)
    assert (server.actions, server.paths) == (["apply", "revert"], ["/hooks/on", "/hooks/off"])
    assert outcome.by == "order"


def test_a_change_that_nobody_renews_is_taken_back_when_its_lease_ends(tmp_path):
    async def play(actuator, server, clock):
        actuator.apply(order(server.url, lease_ms=30_000))
        await until(actuator, "c1", ChangeState.APPLIED)
        clock.advance(29_000)
        actuator.renew("c1", 30_000)
        clock.advance(29_999)
        assert actuator.outcome("c1").state is ChangeState.APPLIED
        clock.advance(1)
        actuator.identity()  # a tick looks after leases
        outcome = await until(actuator, "c1", ChangeState.REVERTED)
        return server.actions, outcome.by

    assert story(tmp_path, play) == (["apply", "revert"], "lease")


def test_a_refusal_is_told_and_nothing_is_taken_back(tmp_path):
    async def play(actuator, server, clock):
        server.answers = [(409, "")]
        actuator.apply(order(server.url))
        outcome = await until(actuator, "c1", ChangeState.REFUSED)
        actuator.revert("c1")
        return outcome.reason, actuator.outcome("c1").state, server.actions

    assert story(tmp_path, play) == ("status_409", ChangeState.REFUSED, ["apply"])


def test_a_request_without_an_answer_may_have_arrived_and_is_taken_back(tmp_path):
    async def play(actuator, server, clock):
        server.silent = True
        actuator.apply(order(server.url))
        async with asyncio.timeout(DEADLINE):
            while actuator.outcome("c1").reason != "no_answer_in_time":
                await asyncio.sleep(0.005)
        server.silent = False
        clock.advance(10**6)
        await until(actuator, "c1", ChangeState.REVERTED)
        return server.actions

    actions = story(tmp_path, play, timeout_ms=200)
    assert actions[0] == "apply"
    assert actions[-1] == "revert"


def test_taking_back_is_tried_until_it_is_answered_and_waits_longer_each_time(tmp_path):
    async def play(actuator, server, clock):
        actuator.apply(order(server.url))
        await until(actuator, "c1", ChangeState.APPLIED)
        server.answers = [(500, ""), (503, "")]
        actuator.revert("c1")
        for tries, wait in ((2, 2_000), (3, 4_000)):
            async with asyncio.timeout(DEADLINE):
                while len(server.asked) < tries or actuator._tasks:
                    await asyncio.sleep(0.005)
            clock.advance(wait - 1)
            actuator.outcome("c1")
            assert not actuator._tasks
            clock.advance(1)
            actuator.outcome("c1")
        await until(actuator, "c1", ChangeState.REVERTED)
        return server.actions

    assert story(tmp_path, play) == ["apply", "revert", "revert", "revert"]


def test_a_token_goes_along_and_is_read_at_every_request(tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")

    async def play(actuator, server, clock):
        actuator.apply(order(server.url))
        await until(actuator, "c1", ChangeState.APPLIED)
        token.write_text("second\n")
        actuator.revert("c1")
        await until(actuator, "c1", ChangeState.REVERTED)
        return server.tokens

    assert story(tmp_path, play, token_file=token) == ["Bearer first", "Bearer second"]


def test_without_its_token_nothing_is_asked(tmp_path):
    async def play(actuator, server, clock):
        actuator.apply(order(server.url))
        return (await until(actuator, "c1", ChangeState.REFUSED)).reason, server.asked

    assert story(tmp_path, play, token_file=tmp_path / "none") == ("token_unreadable", [])


def test_an_address_that_is_not_on_the_list_is_never_asked(tmp_path):
    async def play(actuator, server, clock):
        actuator.apply(order(f"http://127.0.0.1:{server.port}/admin"))
        actuator.apply(order(server.url, "c2", undo_url=f"http://127.0.0.1:{server.port}/admin"))
        return [actuator.outcome(c).reason for c in ("c1", "c2")], server.asked

    assert story(tmp_path, play) == (["egress_denied", "egress_denied"], [])


@pytest.mark.parametrize(
    ("answers", "reason", "paths"),
    [
        ([(307, "/hooks/moved")], "", ["/hooks/", "/hooks/moved"]),
        ([(308, "/admin")], "egress_denied", ["/hooks/"]),
        ([(307, "http://192.0.2.1/hooks/")], "egress_denied", ["/hooks/"]),
        ([(302, "/hooks/moved")], "status_302", ["/hooks/"]),  # would turn the POST into a GET
        ([(307, "/hooks/")] * 4, "too_many_redirects", ["/hooks/"] * 4),
    ],
)
def test_redirects_are_followed_on_the_list_only_and_not_for_ever(tmp_path, answers, reason, paths):
    async def play(actuator, server, clock):
        server.answers = list(answers)
        actuator.apply(order(server.url))
        outcome = await until(actuator, "c1", ChangeState.APPLIED, ChangeState.REFUSED)
        return outcome.reason, server.paths

    assert story(tmp_path, play) == (reason, paths)


def test_after_a_restart_what_was_asked_for_can_still_be_taken_back(tmp_path):
    async def play(actuator, server, clock):
        actuator.apply(order(server.url))
        await until(actuator, "c1", ChangeState.APPLIED)
        await actuator.close()
        reborn = HttpActuator(EgressList([server.url]), tmp_path / "requests.json", clock)
        assert reborn.identity() == actuator.identity()
        assert reborn.outcome("c1").state is ChangeState.APPLIED
        reborn.revert("c1")
        await until(reborn, "c1", ChangeState.REVERTED)
        await reborn.close()
        return server.actions

    assert story(tmp_path, play) == ["apply", "revert"]


def test_a_process_that_died_before_the_answer_leaves_it_to_the_next_one(tmp_path):
    async def play(actuator, server, clock):
        server.silent = True
        actuator.apply(order(server.url))
        async with asyncio.timeout(DEADLINE):
            while not server.asked:
                await asyncio.sleep(0.005)
        await actuator.close()
        server.silent = False
        reborn = HttpActuator(EgressList([server.url]), tmp_path / "requests.json", clock)
        assert reborn.outcome("c1").state is ChangeState.PENDING
        clock.advance(30_000)
        await until(reborn, "c1", ChangeState.REVERTED)
        await reborn.close()
        return server.actions

    assert story(tmp_path, play) == ["apply", "revert"]


@pytest.mark.parametrize("content", ["not json", '[{"change_id": 1}]', '{"a": 1}', ""])
def test_a_file_that_makes_no_sense_is_set_aside(tmp_path, content):
    (tmp_path / "requests.json").write_text(content)

    async def play(actuator, server, clock):
        return actuator.outcome("c1").state

    assert story(tmp_path, play) is ChangeState.UNKNOWN
    assert (tmp_path / "requests.corrupt").read_text() == content


@pytest.mark.parametrize("value", ["", "{}", "[]", '{"url": "http://x/"}'])
def test_an_order_that_is_no_request_is_refused(tmp_path, value):
    async def play(actuator, server, clock):
        actuator.apply(Order("c1", {"request": value}, {}, 1000))
        return actuator.outcome("c1")

    outcome = story(tmp_path, play)
    assert (outcome.state, outcome.reason) == (ChangeState.REFUSED, "bad_request")


def test_changes_that_are_over_are_forgotten_and_those_that_are_not_are_kept(tmp_path):
    async def play(actuator, server, clock):
        actuator.apply(order(server.url, "first"))
        await until(actuator, "first", ChangeState.APPLIED)
        for n in range(100):
            actuator.apply(order("http://elsewhere.example/", f"c{n}"))
        return actuator.outcome("first").state, actuator.outcome("c0").state, actuator.outcome("c99").state

    assert story(tmp_path, play) == (ChangeState.APPLIED, ChangeState.UNKNOWN, ChangeState.REFUSED)


def test_notes_take_no_orders():
    notes = Notes()
    assert isinstance(notes, Actuator)
    notes.apply(Order("c1", {"note": "x"}, {"note": ""}, 1000))
    for call in (notes.keep, notes.revert):
        call("c1")
    notes.renew("c1", 1)
    assert notes.outcome("c1").state is ChangeState.REFUSED
    assert notes.outcome("c2").state is ChangeState.UNKNOWN
    assert set(notes.knobs()) == {"note"}
    assert notes.identity() is not None

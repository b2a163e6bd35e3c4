"""The client's thread against a sidecar that behaves, misbehaves, dies and comes back."""

import json
import os
import select
import shutil
import socket
import time
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spikewatch
from spikewatch import agent as agents
from spikewatch import contact, protocol
from spikewatch.changes import Ledger
from spikewatch.knobs import PLANNED, KnobSet
from spikewatch.meter import Meter
from spikewatch.ring import RingWriter

PATIENCE = 15.0  # seconds; only a hang takes that long


class Sidecar:
    """A socket that a test speaks through."""

    def __init__(self, path):
        self.path = str(path)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen(4)
        self.listener.settimeout(PATIENCE)
        self.connection = None

    def accept(self, welcome=True):
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(PATIENCE)
        data, fds, _, _ = socket.recv_fds(self.connection, protocol.MAX_PACKET, 2)
        self.ring_fds = fds
        hello = protocol.decode(data)
        if welcome:
            self.send(type="welcome", protocol=1)
        return hello

    def send(self, **message):
        self.connection.send(json.dumps(message).encode())

    def receive(self, kind=None):
        """The next message (of a kind)."""
        while True:
            message = protocol.decode(self.connection.recv(protocol.MAX_PACKET))
            if kind in (None, message["type"]):
                return message

    def hung_up(self):
        """Waits until the trainer has closed."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                if not self.connection.recv(protocol.MAX_PACKET):
                    return True
            except ConnectionResetError:
                return True
        return False

    def close(self):
        for fd in getattr(self, "ring_fds", ()):
            os.close(fd)
        self.ring_fds = ()
        if self.connection is not None:
            self.connection.close()
        self.listener.close()
        if os.path.lexists(self.path):
            os.unlink(self.path)


@pytest.fixture
def sidecar(tmp_path, monkeypatch):
    monkeypatch.setattr(agents, "FIRST_RETRY", 0.05)
    monkeypatch.setattr(agents, "LAST_RETRY", 0.2)
    monkeypatch.setattr(agents, "PERIOD", 0.02)
    made = []

    def make():
        made.append(Sidecar(tmp_path / "s"))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def attach(tmp_path):
    runs = []

    def make(**more):
        runs.append(spikewatch.attach(socket=str(tmp_path / "s"), **more))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def eventually(check):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if check():
            return True
        time.sleep(0.01)
    return False


def test_the_trainer_says_who_it_is_and_brings_its_ring(sidecar, attach, monkeypatch):
    for name, value in {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "j7"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    server = sidecar()
    run = attach(job="demo")
    hello = server.accept()
    assert (hello["job"], hello["rank"], hello["world"], hello["local_rank"]) == ("demo", 3, 8, 1)
    assert hello["epoch"] == "j7:2"
    assert hello["unavailable"].items() >= PLANNED.items()
    assert hello["unavailable"]["num_workers"] == "no loader was given to attach"
    assert hello["unavailable"]["lr_factor"] == "no optimizer was given to attach"
    assert len(server.ring_fds) == 1
    assert eventually(lambda: run.connected)


def test_a_sidecar_that_comes_later_or_again_is_found_and_told_everything(sidecar, attach, order, loader):
    run = attach(loader=loader)
    for _ in range(3):
        run.step()
    server = sidecar()
    first = server.accept()
    change = order(run, num_workers=1)
    run.step()
    assert server.receive("change")["change"]["state"] == "applied"
    server.close()
    assert eventually(lambda: not run.connected)
    order_while_alone = run._parts.ledger
    order_while_alone.keep(change)
    server = sidecar()
    again = server.accept()
    assert again["run_id"] == first["run_id"]
    assert [(c["id"], c["state"]) for c in again["changes"]] == [(change, "kept")]
    assert {k["name"]: k["value"] for k in again["knobs"]} == {"num_workers": 1, "prefetch_factor": 2}


@pytest.fixture
def loader(indices):
    from torch.utils.data import DataLoader

    return DataLoader(indices(40), batch_size=4, num_workers=2)


def test_an_order_is_answered_at_once_and_again_when_it_is_carried_out(sidecar, attach, loader):
    server = sidecar()
    run = attach(loader=loader)
    server.accept()
    server.send(type="set", change_id="a", values={"num_workers": 1}, expect={"num_workers": 2}, lease_ms=60_000)
    answer = server.receive("change")
    assert (answer["change"]["state"], answer["answer"]) == ("pending", True)
    run.step()
    event = server.receive("change")
    assert (event["change"]["state"], event["change"]["step"], event["answer"]) == ("applied", 1, False)
    assert event["knobs"]["num_workers"] == 1
    server.send(type="keep", change_id="a")
    assert server.receive("change")["change"]["state"] == "kept"
    server.send(type="get")
    assert [c["state"] for c in server.receive("state")["changes"]] == ["kept"]


def test_an_order_the_trainer_cannot_follow_is_refused_with_a_reason(sidecar, attach, loader):
    server = sidecar()
    attach(loader=loader)
    server.accept()
    for values, reason in (({"lr": 0.1}, "unknown_knob"), ({"num_workers": 10_000}, "out_of_bounds")):
        server.send(type="set", change_id=f"x{reason}", values=values, expect={}, lease_ms=1_000)
        assert server.receive("nack")["reason"] == reason
    server.send(type="revert", change_id="never heard of")
    assert server.receive("nack")["reason"] == "unknown_change"
    server.send(type="hello", **{k: v for k, v in hello_like().items() if k != "type"})
    assert server.receive("nack")["reason"] == "bad_message"


def hello_like():
    return {
        "type": "hello",
        "protocol": 1,
        "protocol_min": 1,
        "job": "j",
        "run_id": "r",
        "rank": 0,
        "local_rank": 0,
        "world": 1,
        "epoch": "e",
        "framework": "f",
        "backend": "b",
        "step": 0,
        "knobs": [],
        "unavailable": {},
        "changes": [],
    }


def test_a_lease_nobody_renews_ends_without_any_sidecar(sidecar, attach, loader):
    server = sidecar()
    run = attach(loader=loader)
    server.accept()
    server.send(type="set", change_id="a", values={"num_workers": 1}, expect={}, lease_ms=300)
    server.receive("change")
    run.step()
    server.close()
    assert loader.num_workers == 1

    def reverted():
        run.step()
        return loader.num_workers == 2

    assert eventually(reverted)
    server = sidecar()
    (change,) = server.accept()["changes"]
    assert (change["state"], change["by"]) == ("reverted", "lease")


@pytest.mark.parametrize("damage", ["garbage", "file", "gone", "folder gone"])
def test_the_trainer_goes_on_whatever_becomes_of_the_socket_and_finds_the_next_one(
    damage, sidecar, attach, tmp_path, monkeypatch
):
    monkeypatch.setattr(agents, "HELLO_TIMEOUT", 0.3)
    folder = tmp_path / "run"
    folder.mkdir()
    server = Sidecar(folder / "s")
    run = spikewatch.attach(socket=server.path)
    try:
        server.accept()
        assert eventually(lambda: run.connected)
        server.close()
        if damage == "garbage":
            server = Sidecar(folder / "s")
            server.accept(welcome=False)
            server.connection.send(b"\x00garbage")
            assert server.hung_up()
            server.close()
        elif damage == "file":
            (folder / "s").write_text("no socket")
        elif damage == "folder gone":
            shutil.rmtree(folder)
        run.step()
        assert eventually(lambda: not run.connected)
        folder.mkdir(exist_ok=True)
        (folder / "s").unlink(missing_ok=True)
        server = Sidecar(folder / "s")
        assert server.accept()["step"] == 1
        assert eventually(lambda: run.connected)
    finally:
        run.close()
        server.close()


def test_a_sidecar_that_never_says_welcome_is_left(sidecar, attach, monkeypatch):
    monkeypatch.setattr(agents, "HELLO_TIMEOUT", 0.2)
    server = sidecar()
    run = attach()
    server.accept(welcome=False)
    assert server.hung_up()
    assert run._parts.meter.errors == 0, "a sidecar's trouble is no error of ours"


def test_a_sidecar_that_speaks_another_version_is_left(sidecar, attach):
    server = sidecar()
    run = attach()
    server.accept(welcome=False)
    server.send(type="nack", reason="unsupported_version", detail="", change_id="")
    assert server.hung_up()
    assert not run.connected


def test_a_sidecar_that_does_not_read_costs_the_connection_and_nothing_else(sidecar, attach):
    server = sidecar()
    run = attach()
    server.accept()
    for _ in range(3_000):
        try:
            server.connection.send(b'{"type":"get"}', socket.MSG_DONTWAIT)
        except BlockingIOError:
            time.sleep(0.001)
        except (BrokenPipeError, ConnectionResetError):
            break
        run.step()
    assert eventually(lambda: not run.connected)
    assert run._parts.meter.steps > 0
    assert run._parts.meter.errors == 0


def test_a_descriptor_sent_along_with_an_order_is_not_taken_in(sidecar, attach):
    server = sidecar()
    run = attach()
    server.accept()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        socket.send_fds(server.connection, [b'{"type":"get"}'], [0, 0])
        server.receive("state")
    assert len(os.listdir("/proc/self/fd")) <= before
    assert run.connected


def test_the_ring_goes_only_to_a_socket_of_our_own_user_or_root(tmp_path, monkeypatch):
    server = Sidecar(tmp_path / "s")
    monkeypatch.setattr(contact.os, "getuid", lambda: 4242)
    real = os.stat

    class Foreign:
        st_uid = 999

    monkeypatch.setattr(agents.os, "stat", lambda path, **more: Foreign if path == server.path else real(path, **more))
    agent = Alone(server.path).agent
    agent._connect(time.monotonic())
    assert agent._socket is None
    assert not select.select([server.listener], [], [], 0)[0]  # not even a connection
    server.close()


def test_the_ring_is_not_sent_to_a_listener_of_another_user(tmp_path, monkeypatch):
    """The path may be ours while the process that listens is not."""
    server = Sidecar(tmp_path / "s")
    monkeypatch.setattr(contact, "listener_uid", lambda connection: 999)
    agent = Alone(server.path).agent
    agent._connect(time.monotonic())
    assert agent._socket is None
    connection, _ = server.listener.accept()
    assert connection.recv(100) == b""
    connection.close()
    server.close()


class Alone:
    """An agent without its thread."""

    def __init__(self, path):
        self.meter, self.ring = Meter(), RingWriter()
        knobs = KnobSet()
        self.agent = agents.Agent(path, None, "run", self.meter, self.ring, Ledger(knobs), knobs)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(min_size=1, max_size=300) | st.sampled_from([b'{"type":"get"}', b"[]"]), max_size=8))
def test_whatever_a_sidecar_sends_is_answered_or_ignored_and_never_raises(packets):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    agent = Alone("/nowhere").agent
    agent._socket, agent._welcomed = ours, True
    for packet in packets:
        theirs.send(packet)
    agent._read()
    theirs.setblocking(False)
    answers = []
    while True:
        try:
            data = theirs.recv(protocol.MAX_PACKET)
        except BlockingIOError:
            break
        if not data:
            break
        answers.append(protocol.decode(data)["type"])
    assert len(answers) == len(packets)
    ours.close()
    theirs.close()


def test_live_totals_only_ever_grow(tmp_path):
    alone = Alone(str(tmp_path / "nobody"))
    published = []
    alone.agent._ring = SimpleNamespace(write_live=published.append)
    began = alone.meter.wait_begins()
    for _ in range(5):
        alone.agent._publish()
    alone.meter.wait_from = 0  # the instant between stopping the clock and adding to it
    alone.agent._publish()
    alone.meter.wait_ends(began)
    alone.agent._publish()
    waits = [record[agents._DATA_WAIT] for record in published]
    assert waits == sorted(waits)
    assert waits[4] > 0


def test_the_thread_sleeps_longer_while_steps_leave_records_and_wakes_often_where_something_is_under_way(tmp_path):
    class Knob:
        def values(self):
            return {"lr": 1.0}

        def check(self, values):
            pass

        def change(self, values, after=0):
            pass

        def shared(self, names):
            return False

    alone = Alone(str(tmp_path / "nobody"))
    agent, meter = alone.agent, alone.meter
    agent._ledger = ledger = Ledger(Knob(), counts=meter)
    agent._try_at = float("inf")  # nobody to talk to
    pauses = []
    agent._stop = SimpleNamespace(wait=pauses.append, is_set=lambda: False)

    def pause():
        agent._turn()
        return pauses[-1]

    often, seldom = agents.PERIOD, agents.PERIOD * agents.CALM
    assert pause() == often, "no step yet"
    meter.stepped()
    assert pause() == seldom
    meter.ended -= int(2e9 * often)
    assert pause() == often, "a long step, of which only the thread tells"
    meter.stepped()
    assert pause() == seldom
    ledger.set("a", {"lr": 2.0}, {}, 60_000)
    assert pause() == often, "a change is on its way"
    ledger.at_boundary(meter.steps)
    ledger.news.clear()
    assert pause() == often, "it is not confirmed yet"
    ledger.keep("a")
    assert pause() == often, "there is news"
    ledger.news.clear()
    assert pause() == seldom


def test_a_sleeping_thread_ends_at_once_and_says_what_is_new_before(sidecar, attach, loader, order, monkeypatch):
    server = sidecar()
    run = attach(loader=loader)
    server.accept()
    assert eventually(lambda: run.connected)
    monkeypatch.setattr(agents, "PERIOD", 3600.0)
    change = order(run, num_workers=1)
    agent = run._parts.agent
    time.sleep(0.1)  # five turns of before: it sleeps for an hour now
    run.step()
    assert agent.stop(PATIENCE)
    assert server.receive("change")["change"]["id"] == change
    assert server.hung_up()


def test_whose_sidecar_is_spoken_to_can_be_widened_by_user_id_only():
    mine = {0, os.getuid()}
    assert contact.trusted_uids({}) == mine
    assert contact.trusted_uids({"SPIKEWATCH_TRUSTED_UIDS": "1001, 1002"}) == {*mine, 1001, 1002}
    assert contact.trusted_uids({"SPIKEWATCH_TRUSTED_UIDS": "all,,-5,root"}) == mine

"""`spikewatch journal`, `approvals`, `responses` and `kill-switch`: a real database, a real listener, a real socket."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from click.testing import CliRunner

import sidecar.cli
from sidecar.api import routes
from sidecar.api.server import Server, UnixServer
from sidecar.api.services import Services
from sidecar.app.control import Control
from sidecar.model import AlertEvent, Edge
from sidecar.responses.killswitch import FILE, KillSwitch
from sidecar.responses.response import Approval, Limits, Mode


@pytest.fixture
def spikewatch():
    """Runs the command line."""

    def run(*args, exits=0):
        result = CliRunner().invoke(sidecar.cli._spikewatch, [str(a) for a in args], prog_name="spikewatch")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == exits, result.output
        return result.output

    return run


class Running:
    """A responder with its API, all on the thread of its own loop; `do` runs something there."""

    def __init__(self, kit, path):
        self.kit, self.path = kit, path
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.do(self._begin)
        self.servers = [
            Server(routes.full(self.services), "127.0.0.1", 0),
            UnixServer(routes.full(self.services, local=True), path / "api.sock"),
        ]
        for server in self.servers:
            asyncio.run_coroutine_threadsafe(server.start(), self._loop).result(10)
        self.url = self.servers[0].url

    def _begin(self):
        self.world = self.kit.World(str(self.path / "state.db"))
        self.world.responses = [
            self.kit.response(mode=Mode.SUGGEST, approval=Approval("ml-platform"), limits=Limits("job", 0, 9, 1))
        ]
        switch = KillSwitch(self.path / FILE)
        self.world.start()
        control = Control(
            self.world.responder,
            switch,
            self.world.clock,
            log=self.world.journal,
            external=dict,
            firing=list,
        )

        async def no_reload():
            return ()

        self.services = Services(lambda a: (b"", ""), lambda: "", no_reload, lambda: (), responses=control)

    def do(self, work, *args):
        async def there():
            return work(*args)

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result(30)

    def close(self):
        for server in self.servers:
            asyncio.run_coroutine_threadsafe(server.stop(), self._loop).result(10)
        self.do(lambda: self.world.db.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def running(kit, tmp_path):
    made = Running(kit, tmp_path)
    yield made
    made.close()


def shown(running, spikewatch):
    """An alert fires, its plan is shown; the episode's id."""
    running.do(running.world.fire, running.kit.alert(rank="3"))
    running.do(running.world.run, 2)
    (one,) = [json.loads(line) for line in spikewatch("approvals", "--url", running.url, "--json").splitlines()]
    return one["episode"]


# --- approvals --------------------------------------------------------------------------------------------------------


def test_what_waits_is_shown_and_approved_by_somebody(running, spikewatch):
    assert spikewatch("approvals", "--url", running.url) == "nothing waits for an approval\n"
    episode = shown(running, spikewatch)
    text = spikewatch("approvals", "--url", running.url)
    assert text.splitlines()[:3] == [f"{episode} feed", "  Starved{rank=3}: workers 2 -> 4", "  more workers"]
    assert text.endswith("to be asked: ml-platform\n")
    answer = ("approve", episode, "feed", "--by", "ada", "--for", "5m")
    assert spikewatch("approvals", "--url", running.url, *answer) == f"approved: {episode} feed\n"
    running.do(running.world.run, 60)
    assert running.do(running.world.decisions) == [("feed", "acted")]
    assert running.do(running.world.kinds, "decision")[0]["by"] == "ada"
    late = spikewatch("approvals", *answer, "--url", running.url, exits=1)
    assert late == "spikewatch: feed is decided already: acted\n"


@pytest.mark.parametrize("name", ["", "a/b?c#d", "\udcff", "é"])
def test_a_name_that_cannot_be_is_answered_like_any_other(running, spikewatch, name):
    for command in (("responses", "reset", name), ("approvals", "approve", name, name, "--by", name)):
        assert spikewatch(*command, "--url", running.url, exits=1).startswith("spikewatch: ")


def test_a_no_over_the_unix_socket(running, spikewatch):
    episode = shown(running, spikewatch)
    socket = running.path / "api.sock"
    elsewhere = ("--url", "http://127.0.0.1:1")
    answer = spikewatch("approvals", *elsewhere, "reject", episode, "feed", "--by", "ada", "--socket", socket)
    assert answer.startswith("rejected"), "what stands behind the answer counts"
    assert running.do(running.world.decisions) == [("feed", "rejected")]


def test_what_does_not_wait_is_said(running, spikewatch):
    said = spikewatch("approvals", "--url", running.url, "approve", "e", "feed", exits=1)
    assert said == "spikewatch: feed does not wait for an approval in episode e; nothing does\n"


@pytest.mark.parametrize("command", [("approvals",), ("responses",), ("kill-switch", "status"), ("kill-switch", "on")])
def test_a_sidecar_that_is_not_there_is_said(spikewatch, command, tmp_path):
    said = spikewatch(*command, "--socket", tmp_path / "none.sock", exits=1)
    assert "none.sock cannot be reached" in said
    assert "is the sidecar running?" in said


# --- responses and kill switch ----------------------------------------------------------------------------------------


def test_a_response_that_stopped_is_seen_and_reset(running, spikewatch):
    assert spikewatch("responses", "--url", running.url) == "feed: suggest, set_workers\n"
    assert "no ineffective" in spikewatch("responses", "reset", "feed", "--url", running.url, exits=1)
    episode = shown(running, spikewatch)
    running.world.speed = lambda workers: 100.0
    spikewatch("approvals", "--url", running.url, "approve", episode, "feed")
    running.do(running.world.run, 80)
    assert spikewatch("responses", "--url", running.url) == "feed: suggest, set_workers, stopped for job:job\n"
    spikewatch("responses", "--url", running.url, "reset", "feed", "--by", "ada")
    (one,) = [json.loads(line) for line in spikewatch("responses", "--url", running.url, "--json").splitlines()]
    assert (one["breaker_open"], one["ineffective"]) == ([], {"job:job": 0})


def test_the_kill_switch_goes_on_and_off(running, spikewatch):
    at = ("--url", running.url)
    assert spikewatch("kill-switch", "status", *at) == "the kill switch is off\n"
    said = spikewatch("kill-switch", "on", *at, "--by", "ada", "--reason", "losses look odd")
    assert said.startswith("the kill switch is on since 1970-01-01 00:16:40Z: ")
    assert said.endswith("by ada, losses look odd\n")
    assert (running.path / FILE).exists()
    spikewatch("kill-switch", "status", *at, exits=1)
    assert spikewatch("kill-switch", "off", *at) == "the kill switch is off\n"
    assert not (running.path / FILE).exists()
    assert "not on" in spikewatch("kill-switch", "off", *at, exits=1)


def test_the_kill_switch_goes_on_and_off_without_a_sidecar_that_answers(spikewatch, tmp_path):
    at = ("--state-dir", tmp_path)
    assert spikewatch("kill-switch", "status", *at) == "the kill switch is off\n"
    spikewatch("kill-switch", "on", *at, "--by", "ada")
    assert KillSwitch(tmp_path / FILE).on().by == "ada"
    assert spikewatch("kill-switch", "status", *at, exits=1).endswith("by ada\n")
    assert spikewatch("kill-switch", "off", *at) == "the kill switch is off\n"
    assert KillSwitch(tmp_path / FILE).on() is None
    assert "not on" in spikewatch("kill-switch", "off", *at, exits=1)


def test_no_responses_at_all_are_said(running, spikewatch):
    running.do(running.world.responder.replace, [], None, running.world.now)
    assert spikewatch("responses", "--url", running.url).startswith("this sidecar has no responses")
    assert spikewatch("responses", "--url", running.url, "--json") == ""


@pytest.mark.parametrize("content", [b"", b"\n", b"secret\nsecret2", b"secret\xff", "secrét".encode()])
def test_a_file_without_a_token_is_refused_and_not_shown(running, spikewatch, content):
    (running.path / "token").write_bytes(content)
    for command in (("responses", "--url", running.url), ("query", "1", "--url", running.url)):
        said = spikewatch(*command, "--token-file", running.path / "token", exits=1)
        assert said == f"spikewatch: {running.path}/token holds no token: it must be one line of ASCII text\n"


def test_an_option_before_its_command_is_pointed_behind_it(spikewatch):
    said = spikewatch("--url", "http://127.0.0.1:1", "responses", exits=2)
    assert "--url stands behind the command: spikewatch COMMAND --url …" in said


# --- journal ----------------------------------------------------------------------------------------------------------


def story(running, spikewatch):
    episode = shown(running, spikewatch)
    spikewatch("approvals", "--url", running.url, "approve", episode, "feed", "--by", "ada")
    running.do(running.world.run, 70)
    return episode


def test_the_journal_is_shown_for_people_and_exported_whole_as_json(running, spikewatch):
    story(running, spikewatch)
    at = ("--state-dir", running.path)
    lines = [json.loads(line) for line in spikewatch("journal", *at, "--json").splitlines()]
    told = [json.loads(line) for line in running.world.lines]
    assert lines == told, "as on stdout"
    assert [e["kind"] for e in lines][:3] == ["edge", "experiment", "waiting"]
    people = spikewatch("journal", *at, "--limit", 2).splitlines()
    assert len(people) == 2
    assert "verdict=helped" in spikewatch("journal", *at)
    assert len(spikewatch("journal", *at, "--json", "--limit", 3).splitlines()) == 3
    assert spikewatch("journal", *at, "--limit", 0) == ""


def test_why_tells_what_was_done_and_what_came_of_it(running, spikewatch):
    story(running, spikewatch)
    told = spikewatch("journal", "--state-dir", running.path, "--why", "Starved").splitlines()
    assert told[0] == "Starved{rank=3} fired at 1970-01-01 00:16:40Z: exhausted"
    assert told[1] == "  feed: acted (it was done)"
    assert told[2] == "    waited for: awaiting_approval, thin_baseline"
    assert told[3] == "    plan: workers 2 -> 4"
    assert told[4].startswith("    verdict: helped (gain_is_real, +")
    assert told[4].endswith(" % towards the goal), kept")


def test_why_tells_what_an_alert_still_waits_for(running, spikewatch):
    shown(running, spikewatch)
    told = spikewatch("journal", "--state-dir", running.path, "--why", "Starved").splitlines()
    assert told[0].endswith(": still open")
    assert told[1] == "  feed: waits: awaiting_approval (its plan waits for somebody to say yes)"
    assert "ml-platform" in told[2]
    assert told[3] == "    plan: workers 2 -> 4"


def test_why_tells_of_an_alert_that_nothing_answers_and_of_one_that_is_unknown(running, spikewatch):
    running.do(running.world.fire, running.kit.alert("Other", rank="3"))
    at = ("journal", "--state-dir", running.path, "--why")
    assert spikewatch(*at, "Other") == "Other{rank=3} fired at 1970-01-01 00:16:40Z: no response answers it\n"
    assert "knows nothing of an alert 'Never'" in spikewatch(*at, "Never", exits=1)
    (one,) = [json.loads(line) for line in spikewatch(*at, "Other", "--json").splitlines()]
    assert (one["alert"], one["answers"]) == ("Other", [])


def test_follow_goes_on_with_what_comes(running, spikewatch, monkeypatch):
    shown(running, spikewatch)
    waits = []

    def while_it_waits(seconds):
        waits.append(seconds)
        if len(waits) > 1:
            raise KeyboardInterrupt
        end = AlertEvent(Edge.RESOLVED, running.kit.alert(rank="3"), running.world.now)
        running.do(lambda: running.world.responder.on_events([end], running.world.now))

    monkeypatch.setattr("sidecar.cli.journal.time.sleep", while_it_waits)
    result = CliRunner().invoke(
        sidecar.cli._spikewatch, ["journal", "--state-dir", str(running.path), "--follow", "--json", "--limit", "1"]
    )
    kinds = [json.loads(line)["kind"] for line in result.stdout.splitlines() if line.startswith("{")]
    assert kinds == ["waiting", "edge", "decision"]


def test_a_journal_that_is_not_there_is_said(spikewatch, tmp_path):
    assert "state.db" in spikewatch("journal", "--state-dir", tmp_path, exits=1)
    (tmp_path / "s.yaml").write_text("state_dir: elsewhere\n")
    assert "elsewhere/state.db" in spikewatch("journal", "--config", tmp_path / "s.yaml", exits=1)


def test_why_and_follow_do_not_go_together(spikewatch, tmp_path):
    assert "--follow" in spikewatch("journal", "--state-dir", tmp_path, "--why", "X", "--follow", exits=2)

"""A sidecar that is killed while an alert begins to fire has not lost the alert: its responses are tried afterwards."""

from __future__ import annotations

import asyncio
import os

import pytest

from sidecar.alerting.persistence import SqliteAlertStore
from sidecar.app.rulebook import load_rulebook
from sidecar.app.sidecar import Sidecar
from sidecar.clock import FakeClock
from sidecar.plugins import Registry
from sidecar.responses.journal import Journal

RULES = {"groups": [{"name": "g", "rules": [{"alert": "On", "expr": "vector(1)", "for": "3s"}]}]}
RESPONSE = {
    "name": "feed",
    "match": ["alertname=On"],
    "remediation": "dataloader_prefetch",
    "mode": "suggest",
    "verify": {"expr": "sum(rate(x[10s]))", "goal": "increase"},
}


class Killed(BaseException):
    """SIGKILL, as far as one process can pretend it."""


class Lives:
    """One sidecar after the other over the same folder and clock."""

    def __init__(self, folder):
        self.folder, self.clock, self.loop = folder, FakeClock(1_000_000), asyncio.new_event_loop()
        folder.write("one.rules.yaml", RULES)
        folder.write("responses.yaml", {"responses": [RESPONSE]})
        self.sidecar = None
        self.begin()

    def begin(self):
        registry, loaded = Registry(), self.folder.loaded()
        registry.discover()
        rulebook = load_rulebook(loaded, registry)
        self.sidecar = Sidecar(None, loaded, rulebook, registry, self.clock, environ={}, write_line=lambda line: None)
        self.loop.run_until_complete(self.sidecar.start())

    def tick(self, seconds):
        for _ in range(seconds):
            self.clock.advance(1000)
            self.sidecar.tick()

    def killed(self):
        """Nothing is written any more; what the kernel would close is closed."""
        dead = self.sidecar

        async def closed():
            dead.channel.close()
            await dead.silences.close()
            await dead.notifier.close(drain_s=0)

        self.loop.run_until_complete(closed())
        dead.collectors.close(timeout_s=1)
        dead.db.close()
        os.close(dead._lock)

    def rows(self, sql):
        return [tuple(row) for row in self.sidecar.db.connection.execute(sql)]

    def end(self):
        self.loop.run_until_complete(self.sidecar.stop())
        self.loop.close()


@pytest.fixture
def lives(folder):
    made = Lives(folder)
    yield made
    made.end()


def at_the_edge(monkeypatch, where):
    """Kills the process when the firing edge is about to be written, at the journal or at the alerts' state."""
    commit, save = Journal.commit, SqliteAlertStore.save

    def no_journal(journal):
        if any(e.kind == "edge" and e.data["edge"] == "firing" for e in journal._entries):
            raise Killed
        commit(journal)

    def no_state(store, changes, now_ms):
        changes = list(changes)
        if any(c.instance is not None and c.instance.state.value == "firing" for c in changes):
            raise Killed
        save(store, changes, now_ms)

    if where == "journal":
        monkeypatch.setattr(Journal, "commit", no_journal)
    else:
        monkeypatch.setattr(SqliteAlertStore, "save", no_state)


@pytest.mark.parametrize(("where", "known"), [("journal", 0), ("alerts", 1)])
def test_killed_between_the_two_writes_of_an_edge_it_answers_the_alert_after_its_restart(
    lives, monkeypatch, where, known
):
    with monkeypatch.context() as patched:
        at_the_edge(patched, where)
        with pytest.raises(Killed):
            lives.tick(10)
    assert lives.rows("SELECT count(*) FROM episodes") == [(known,)]
    lives.killed()
    lives.begin()
    lives.tick(10)
    assert [e.alert.name for e in lives.sidecar.responder.episodes()] == ["On"]
    assert lives.rows("SELECT reason FROM decisions") == [("interrupted",)] * known


def test_killed_after_the_edge_it_does_not_answer_old_news(lives):
    lives.tick(10)
    assert len(lives.sidecar.responder.episodes()) == 1
    lives.killed()
    lives.begin()
    lives.tick(10)
    assert lives.sidecar.responder.episodes() == ()
    assert lives.rows("SELECT reason FROM decisions") == [("interrupted",)]


def test_a_disk_that_takes_neither_keeps_both_for_later(lives):
    lives.sidecar.db.connection.execute("PRAGMA query_only=1")
    lives.tick(6)
    lives.sidecar.db.connection.execute("PRAGMA query_only=0")
    lives.tick(2)
    assert lives.rows("SELECT count(*) FROM episodes") == [(1,)]
    assert lives.rows("SELECT state FROM alerts") == [("firing",)]

"""The journal is durable before it is told, bounded, and does not lose a rollback to a full disk."""

from __future__ import annotations

import json
import math
import sqlite3

import pytest

from sidecar.errors import StateError
from sidecar.responses import journal as journal_module
from sidecar.responses.episode import FINAL, PASSING
from sidecar.responses.journal import Entry, Journal, Wanted, read
from sidecar.responses.reasons import EXPLAINED
from sidecar.statedb import StateDB


@pytest.fixture
def db(tmp_path):
    opened = StateDB(tmp_path / "state.db")
    yield opened
    opened.close()


def entry(i=0, kind="decision", **data):
    return Entry(1000 + i, kind, "e1", "feed", "", data)


def test_nothing_is_told_before_it_is_on_disk(db, tmp_path):
    lines, told = [], []
    journal = Journal(db, write_line=lines.append, on_entry=told.append)
    journal.note(entry(reason="observe"))
    journal.publish()
    assert (lines, told) == ([], [])
    journal.commit()
    reader = StateDB(tmp_path / "state.db", read_only=True)
    assert reader.connection.execute("SELECT count(*) FROM journal").fetchone()[0] == 1
    reader.close()
    assert (lines, told) == ([], [])
    journal.publish()
    assert told == [entry(reason="observe")]
    assert json.loads(lines[0]) == {
        "at_ms": 1000,
        "kind": "decision",
        "episode": "e1",
        "response": "feed",
        "data": {"reason": "observe"},
    }


def test_what_goes_in_comes_out_in_order_and_by_episode(db):
    journal = Journal(db)
    for i in range(5):
        journal.note(Entry(i, "edge", f"e{i % 2}", data={"i": i}))
    journal.commit()
    assert [e.data["i"] for _, e in journal.entries()] == [0, 1, 2, 3, 4]
    assert [e.data["i"] for _, e in journal.entries(episode="e1")] == [1, 3]
    newest, _ = list(journal.entries())[2]
    assert [e.data["i"] for _, e in journal.entries(after_id=newest, limit=1)] == [3]


def test_numbers_that_json_cannot_hold_become_null(db):
    journal = Journal(db)
    journal.note(entry(value=math.nan, list=[math.inf, 1.0], deep={"x": -math.inf}))
    journal.commit()
    assert next(journal.entries())[1].data == {"value": None, "list": [None, 1.0], "deep": {"x": None}}


def test_the_table_is_bounded_and_the_oldest_entries_go(db):
    journal = Journal(db, max_rows=100)
    for i in range(500):
        journal.note(entry(i))
        journal.commit()
    kept = [e.at_ms - 1000 for _, e in journal.entries()]
    assert len(kept) <= 110
    assert kept == list(range(500 - len(kept), 500))


def test_a_disk_that_refuses_keeps_the_entries_for_the_next_attempt(db):
    journal = Journal(db)
    journal.note(entry(1))
    db.connection.execute("PRAGMA query_only=1")
    with pytest.raises(StateError, match="cannot be written"):
        journal.commit()
    assert journal.pending
    db.connection.execute("PRAGMA query_only=0")
    journal.note(entry(2))
    journal.commit()
    assert [e.at_ms for _, e in journal.entries()] == [1001, 1002]
    assert not journal.pending


def test_a_disk_that_refuses_for_good_does_not_fill_the_memory(db, monkeypatch):
    monkeypatch.setattr(journal_module, "MAX_WAITING", 10)
    journal = Journal(db)
    for i in range(25):
        journal.note(entry(i))
    assert journal.dropped == 15
    journal.commit()
    assert len(list(journal.entries())) == 10


def test_a_closed_pipe_loses_lines_and_nothing_else(db):
    told = []

    def closed(line):
        raise BrokenPipeError

    journal = Journal(db, write_line=closed, on_entry=told.append)
    journal.note(entry())
    journal.commit()
    journal.publish()
    assert (journal.unwritten_lines, len(told), len(list(journal.entries()))) == (1, 1, 1)


def test_a_statement_that_breaks_a_promise_takes_its_whole_unit_of_work_with_it(db):
    journal = Journal(db)
    insert = "INSERT INTO decisions (episode, response, at_ms, reason, data) VALUES (?,?,?,?,?)"
    journal.put(insert, ("e", "r", 1, "acted", "{}"))
    journal.commit()
    journal.note(entry())
    journal.put(insert, ("e", "r", 2, "observe", "{}"))
    with pytest.raises(StateError, match="UNIQUE"):
        journal.commit()
    assert list(journal.entries()) == []


def test_a_file_that_cannot_be_read_is_said_to_be(db):
    journal = Journal(db)
    db.connection.execute("DROP TABLE breakers")
    with pytest.raises(StateError, match="cannot be read"):
        journal.rows("SELECT * FROM breakers")
    assert isinstance(db.connection, sqlite3.Connection)


def test_statements_that_a_restart_can_do_without_are_bounded_too_and_the_others_are_kept(db, monkeypatch):
    monkeypatch.setattr(journal_module, "MAX_WAITING", 5)
    journal = Journal(db)
    insert = "INSERT INTO decisions (episode, response, at_ms, reason, data) VALUES (?,?,1,'acted','{}')"
    for i in range(8):
        journal.put(insert, (str(i), "needless"), needed=False)
    for i in range(3):
        journal.put(insert, (str(i), "needed"))
    assert journal.dropped == 3
    journal.commit()
    rows = [row["response"] for row in db.connection.execute("SELECT response FROM decisions ORDER BY rowid")]
    assert rows == ["needless"] * 5 + ["needed"] * 3


def test_a_process_that_restarts_often_trims_the_table_all_the_same(db):
    for i in range(40):
        journal = Journal(db, max_rows=10)
        journal.note(entry(i))
        journal.commit()
    assert len(list(Journal(db).entries())) <= 11


def test_the_newest_entries_come_in_order_and_by_kind_and_response(db):
    journal = Journal(db)
    for i in range(10):
        journal.note(Entry(i, "edge" if i % 2 else "decision", response="feed" if i > 4 else ""))
    journal.commit()

    def times(**wanted):
        return [e.at_ms for _, e in read(db, Wanted(**wanted))]

    assert times(limit=3, newest=True) == [7, 8, 9]
    assert times(limit=2, newest=True, kind="edge") == [7, 9]
    assert times(response="feed", kind="decision") == [6, 8]
    assert times(limit=0) == []


def test_a_corrupt_database_is_set_aside_and_a_new_journal_begun(tmp_path):
    path = tmp_path / "state.db"
    path.write_bytes(b"not a database at all, and long enough to be looked at" * 100)
    opened = StateDB(path)
    try:
        assert opened.set_aside == f"{path}.corrupt-0"
        journal = Journal(opened)
        journal.note(entry())
        journal.commit()
        assert len(list(journal.entries())) == 1
        assert (tmp_path / "state.db.corrupt-0").read_bytes().startswith(b"not a database")
    finally:
        opened.close()


def test_every_reason_there_is_has_a_sentence_and_every_sentence_a_reason():
    assert set(EXPLAINED) == PASSING | FINAL
    assert not PASSING & FINAL

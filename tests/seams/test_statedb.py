"""One file of state that survives crashes, bad files and downgrades."""

import sqlite3

import pytest

from sidecar.errors import StateError
from sidecar.statedb import MIGRATIONS, StateDB


def add(db, kind="edge"):
    with db.transaction() as tx:
        tx.execute("INSERT INTO journal (at_ms, kind, data) VALUES (1, ?, '{}')", (kind,))


def count(db):
    return db.connection.execute("SELECT count(*) FROM journal").fetchone()[0]


def test_what_was_committed_is_there_after_reopening(tmp_path):
    db = StateDB(tmp_path / "state.db")
    add(db)
    db.close()
    again = StateDB(tmp_path / "state.db")
    assert count(again) == 1
    assert again.set_aside is None
    again.close()


def test_a_transaction_that_fails_leaves_nothing():
    db = StateDB(":memory:")
    with pytest.raises(ZeroDivisionError), db.transaction() as tx:
        tx.execute("INSERT INTO journal (at_ms, kind, data) VALUES (1, 'edge', '{}')")
        _ = 1 / 0
    assert count(db) == 0
    db.close()


def test_a_nested_transaction_joins_the_outer_one():
    db = StateDB(":memory:")
    with pytest.raises(ZeroDivisionError), db.transaction():
        add(db)
        _ = 1 / 0
    assert count(db) == 0
    db.close()


def test_a_corrupt_file_is_set_aside_and_a_fresh_one_begun(tmp_path):
    path = tmp_path / "state.db"
    path.write_bytes(b"this is no database, " * 500)
    db = StateDB(path)
    assert db.set_aside == f"{path}.corrupt-0"
    assert (tmp_path / "state.db.corrupt-0").read_bytes().startswith(b"this is no database")
    add(db)
    assert count(db) == 1
    db.close()


def test_a_file_torn_in_the_middle_is_set_aside(tmp_path):
    path = tmp_path / "state.db"
    db = StateDB(path)
    for _ in range(500):
        add(db, "x" * 200)
    db.close()
    data = bytearray(path.read_bytes())
    data[8192 : len(data) // 2] = b"\xa5" * (len(data) // 2 - 8192)
    path.write_bytes(data)
    db = StateDB(path)
    assert db.set_aside
    db.close()


def test_a_file_from_a_newer_program_is_refused_untouched(tmp_path):
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as raw:
        raw.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
    raw.close()
    with pytest.raises(StateError, match="upgrade spikewatch"):
        StateDB(path)
    assert not list(tmp_path.glob("*.corrupt*"))


def test_a_reader_sees_what_the_writer_committed_and_cannot_write(tmp_path):
    writer = StateDB(tmp_path / "state.db")
    add(writer)
    reader = StateDB(tmp_path / "state.db", read_only=True)
    assert count(reader) == 1
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        add(reader)
    reader.close()
    writer.close()


def test_a_reader_of_a_file_that_is_not_there_is_told_so_and_makes_none(tmp_path):
    with pytest.raises(StateError, match="no such file: has a sidecar run"):
        StateDB(tmp_path / "state.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%20b"])
def test_a_folder_with_any_name_can_be_read(tmp_path, name):
    (tmp_path / name).mkdir()
    StateDB(tmp_path / name / "state.db").close()
    StateDB(tmp_path / name / "state.db", read_only=True).close()


def test_a_folder_that_does_not_exist_is_an_error_with_the_path(tmp_path):
    with pytest.raises(StateError, match="nowhere"):
        StateDB(tmp_path / "nowhere" / "state.db")

"""Cooldown, rate, breaker and quarantine, and that they survive a restart."""

from __future__ import annotations

import pytest

from sidecar.responses.journal import Journal
from sidecar.responses.limits import HOUR_MS, Ledger, Record, refusal
from sidecar.responses.response import Limits
from sidecar.responses.statistics import Verdict
from sidecar.statedb import StateDB

MINUTE = 60_000
NOW = 1_700_000_000_000
LIMITS = Limits("job", 5 * MINUTE, 4, 3)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (Record(), None),
        (Record((NOW - 1,), NOW - 1), "cooldown"),
        (Record((NOW - 5 * MINUTE,), NOW - 5 * MINUTE + 1), "cooldown"),
        (Record((NOW - 5 * MINUTE,), NOW - 5 * MINUTE), None),
        (Record((), NOW - 6 * MINUTE, 1), None),
        (Record((), NOW - 6 * MINUTE, 2), "cooldown"),  # doubled
        (Record((), NOW - 10 * MINUTE, 2), None),
        (Record((), NOW - 99 * MINUTE, 3), "breaker_open"),
        (Record(tuple(NOW - i * 10 * MINUTE for i in range(1, 5)), NOW - 10 * MINUTE), "per_hour"),
        (Record(tuple(NOW - i * 20 * MINUTE for i in range(1, 5)), NOW - 20 * MINUTE), None),
        (Record((NOW + HOUR_MS,), NOW + HOUR_MS), "cooldown"),  # written before the clock was set back
        (Record(tuple(NOW + i for i in range(4)), 0), "per_hour"),
    ],
)
def test_what_stands_in_the_way(record, expected):
    assert refusal(record, LIMITS, NOW) == expected


def test_no_cooldown_means_none():
    for ended in (NOW, NOW + HOUR_MS):
        assert refusal(Record((NOW,), ended), Limits("job", 0, 4, 3), NOW) is None


@pytest.fixture
def reopen(tmp_path):
    opened = []

    def again():
        db = StateDB(tmp_path / "state.db")
        opened.append(db)
        journal = Journal(db)
        return journal, Ledger(journal)

    yield again
    for db in opened:
        db.close()


def test_limits_survive_a_restart_once_committed(reopen):
    journal, ledger = reopen()
    ledger.applied("feed", "job:a", NOW)
    ledger.ended("feed", "job:a", Verdict.INCONCLUSIVE, NOW + 1000)
    journal.commit()
    _, again = reopen()
    assert again.record("feed", "job:a") == Record((NOW,), NOW + 1000, 1)
    assert again.record("feed", "job:b") == Record()


def test_only_helped_closes_the_row_of_ineffective_experiments(reopen):
    _, ledger = reopen()
    for verdict in (Verdict.DID_NOT_HELP, Verdict.INCONCLUSIVE):
        ledger.ended("feed", "pod", verdict, NOW)
    assert ledger.record("feed", "pod").ineffective == 2
    ledger.ended("feed", "pod", Verdict.HELPED, NOW)
    assert ledger.record("feed", "pod").ineffective == 0


def test_a_person_can_close_the_breaker(reopen):
    _, ledger = reopen()
    for _ in range(3):
        ledger.ended("feed", "pod", Verdict.DID_NOT_HELP, NOW)
    assert ledger.breaker_open("feed", LIMITS)
    assert ledger.reset("feed") == 1
    assert not ledger.breaker_open("feed", LIMITS)
    assert ledger.reset("feed") == 0


def test_applications_older_than_an_hour_are_forgotten(reopen):
    _, ledger = reopen()
    for i in range(100):
        ledger.applied("feed", "pod", NOW + i * 30 * MINUTE)
    assert len(ledger.record("feed", "pod").applied_ms) == 2


def test_quarantined_knobs_survive_and_belong_to_a_job(reopen):
    journal, ledger = reopen()
    ledger.quarantine("a", ["num_workers"])
    ledger.quarantine("a", ["batch_size"])
    journal.commit()
    _, again = reopen()
    assert again.quarantined("a") == {"num_workers", "batch_size"}
    assert again.quarantined("b") == frozenset()

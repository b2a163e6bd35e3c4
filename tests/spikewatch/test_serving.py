"""A declared serving worker: idle time, cold start and memory, whatever threads and forks do."""

import math
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spikewatch
from spikewatch import layout, procinfo, protocol
from spikewatch.serving import Activity


class Time:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def declare():
    made = []

    def make(*args, **more):
        made.append(spikewatch.worker(*args, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_worker_is_idle_since_it_was_declared_or_since_its_last_request_ended():
    time = Time()
    activity = Activity(time)
    time.now += 90
    assert activity.idle_seconds() == 90
    activity.begins()
    time.now += 5
    assert activity.idle_seconds() == 0
    activity.ends()
    assert activity.idle_seconds() == 0
    time.now += 7
    assert activity.idle_seconds() == 7


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 100)), min_size=1, max_size=10))
def test_with_requests_side_by_side_it_is_idle_only_when_none_is_under_way(requests):
    time = Time()
    activity = Activity(time)
    events = sorted([(at, 1) for at, _ in requests] + [(at + length, -1) for at, length in requests])
    busy, last_end = 0, None
    for at, change in events:
        time.now = 1000 + at
        assert activity.idle_seconds() == (0 if busy else pytest.approx(at - (last_end or 0)))
        (activity.begins if change > 0 else activity.ends)()
        busy += change
        last_end = at if change < 0 else last_end
    assert activity.served == len(requests)
    assert activity.first_served_at == pytest.approx(1000 + min(at + length for at, length in requests))


def test_a_request_counts_also_when_serving_it_fails(declare):
    worker = declare()
    with pytest.raises(ZeroDivisionError), worker.request():
        raise ZeroDivisionError
    assert worker._client.activity.served == 1


def test_requests_of_many_threads_are_all_counted(declare):
    worker = declare()

    def serve():
        for _ in range(500):
            with worker.request():
                pass

    threads = [threading.Thread(target=serve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    activity = worker._client.activity
    assert (activity.served, activity._busy) == (4000, 0)


def test_the_cold_start_ends_with_the_first_request_and_memory_is_what_proc_says(declare):
    worker = declare()
    before = worker._client.values()
    assert math.isnan(before["cold_start_seconds"])
    with worker.request():
        pass
    first = worker._client.values()
    with worker.request():
        pass
    assert worker._client.values()["cold_start_seconds"] == first["cold_start_seconds"]
    assert 0 < first["cold_start_seconds"] <= procinfo.since_boot() - procinfo.started_at()
    assert first["resident_bytes"] == pytest.approx(procinfo.resident_bytes(), rel=0.2)
    assert set(first) == set(layout.WORKER_FIELDS)


def test_a_forked_child_is_no_worker_and_leaves_the_parents_ring_alone(declare):
    worker = declare()
    fd = worker._client._ring.fd
    pid = os.fork()
    if pid == 0:
        with worker.request():
            pass
        os._exit(worker.active or os.path.lexists(f"/proc/self/fd/{fd}"))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert worker.active
    assert worker._client.activity.served == 0


def test_the_off_switch_and_an_impossible_socket_leave_a_worker_that_does_nothing(declare, monkeypatch, caplog):
    monkeypatch.setattr("spikewatch.serving.RingWriter", lambda *_: 1 / 0)
    broken = declare()
    assert "spikewatch stays off" in caplog.text
    monkeypatch.setenv("SPIKEWATCH_DISABLE", "1")
    for worker in (broken, declare()):
        with worker.request():
            pass
        assert not worker.active
        assert not worker.connected


def test_closing_ends_the_thread_and_a_closed_worker_still_serves(declare):
    worker = declare()
    thread = worker._client._thread
    worker.close()
    assert not thread.is_alive()
    with worker.request():
        pass
    worker.close()


def test_a_name_that_is_too_long_for_the_wire_is_cut(declare):
    assert declare("x" * 1000)._client._name == "x" * protocol.MAX_TEXT

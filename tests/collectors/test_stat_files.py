"""Stat files kept open, on real processes."""

import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from sidecar.collectors.procfs import StatFiles, read_process

PROC = Path("/proc")


@pytest.fixture
def sleeper():
    made = []

    def start():
        made.append(subprocess.Popen(["sleep", "60"]))
        while (own := read_process(PROC, made[-1].pid)) is None or own.state != "S" or own.command != "sleep":
            time.sleep(0.001)  # until it sleeps nothing about it stays the same
        return made[-1]

    yield start
    for one in made:
        one.kill()
        one.wait(10)


@pytest.fixture
def files(before):
    found = StatFiles(PROC, limit=2)
    yield found
    found.close()


@pytest.fixture
def before():
    """Other collectors of this process may hold files of their own."""
    return open_files()


def open_files():
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum(link.endswith("/stat") for link in links)


def test_a_kept_file_says_what_a_new_one_says(files, sleeper, before):
    pid = sleeper().pid
    for _ in range(3):
        assert files.read([pid]) == [read_process(PROC, pid)]
    assert open_files() - before == 1


def test_a_process_that_ended_is_not_there_and_its_file_is_let_go_of(files, sleeper, before):
    ending, staying = sleeper(), sleeper()
    assert len(files.read([ending.pid, staying.pid])) == 2
    ending.kill()
    ending.wait(10)
    assert [p.pid for p in files.read([ending.pid, staying.pid])] == [staying.pid]
    assert files.read([staying.pid])
    assert open_files() - before == 1


def test_beyond_the_limit_processes_are_read_all_the_same(files, sleeper, before):
    pids = [sleeper().pid for _ in range(4)]
    for _ in range(2):
        assert [p.pid for p in files.read(pids)] == pids
    assert open_files() - before == 2


def test_closing_lets_go_of_everything(files, sleeper, before):
    files.read([sleeper().pid, os.getpid()])
    files.close()
    assert open_files() - before == 0


def test_what_cannot_be_opened_is_left_out(files):
    assert files.read([2**22 + 5]) == []

"""What the demo starts ends with it: stopped, failed, interrupted or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sidecar.cli.demo.processes import ChildError, Processes, marked

# A parent that starts a grandchild in a session of its own, as torchrun does, and writes both pids.
FAMILY = """
import subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
print(grandchild.pid, flush=True)
time.sleep(60)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""
# What the demo does, small: starts a family and waits; argv: the directory of logs, a directory to remove.
DEMO = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests in the background has it ignored
from sidecar.cli.demo.processes import Processes
logs, doomed = map(Path, sys.argv[1:3])
with Processes(logs, [doomed]) as processes:
    child = processes.start("family", [sys.executable, "-S", "-c", sys.argv[3]], {})
    while not child.output.read_text().strip():
        time.sleep(0.01)
    print(child.process.pid, child.output.read_text().strip(), flush=True)
    time.sleep(60)
"""


def python(code):
    return [sys.executable, "-S", "-c", code]


def until(condition, within_s=15.0):
    """Polls; liveness only."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


def alive(pid):
    """Whether it runs: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_grandchild_in_a_session_of_its_own_ends_with_the_rest(tmp_path):
    """Stopping the parent alone would leave it behind."""
    with Processes(tmp_path) as processes:
        child = processes.start("family", python(FAMILY), {})
        until(lambda: child.output.read_text().strip())
        grandchild = int(child.output.read_text())
        assert alive(grandchild)
    assert not alive(child.process.pid)
    assert not alive(grandchild)


def test_a_child_that_ignores_the_polite_signal_is_killed(tmp_path):
    """The demo ends even so."""
    with Processes(tmp_path) as processes:
        child = processes.start("stubborn", python(STUBBORN), {})
        until(lambda: "ready" in child.output.read_text())
        assert processes.stop(child, grace_s=0.1) == -signal.SIGKILL


def test_a_child_that_has_ended_is_reported_with_the_end_of_what_it_wrote(tmp_path):
    """The person at the terminal sees why, not only that."""
    with Processes(tmp_path) as processes:
        child = processes.start("short", python("import sys; print('no such store'); sys.exit(3)"), {})
        child.process.wait(10)
        with pytest.raises(ChildError, match=r"(?s)short ended with 3.*no such store"):
            child.check()
        assert processes.stop(child) == 3


def test_a_child_gets_the_given_environment_and_a_running_one_passes_the_check(tmp_path):
    """On top of the demo's own environment."""
    with Processes(tmp_path) as processes:
        code = "import os, time; print(os.environ['GREETING'], flush=True); time.sleep(60)"
        child = processes.start("env", python(code), {"GREETING": "hello"})
        until(lambda: child.output.read_text() == "hello\n")
        child.check()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_everything_ends_and_the_directory_is_removed_however_the_demo_goes(tmp_path, number):
    """SIGKILL leaves the demo no chance to clean up; its guard does."""
    doomed = tmp_path / "run"
    doomed.mkdir()
    (doomed / "file").touch()
    demo = subprocess.Popen(
        [sys.executable, "-c", DEMO, str(tmp_path), str(doomed), FAMILY],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert demo.stdout is not None
        pids = [int(word) for word in demo.stdout.readline().split()]
        assert len(pids) == 2
        assert all(alive(pid) for pid in pids)
    finally:
        demo.send_signal(number)
        demo.wait(15)
        demo.stdout.close()
    until(lambda: not any(alive(pid) for pid in pids))
    until(lambda: not doomed.exists())


def test_only_processes_with_exactly_this_mark_are_found(tmp_path):
    """From a /proc tree with another demo's process, a half-matching one and one without environment."""
    for pid, environ in {
        "11": b"A=1\0DEMO_OF_SPIKEWATCH=ab\0",
        "12": b"DEMO_OF_SPIKEWATCH=abc\0",
        "13": b"X=DEMO_OF_SPIKEWATCH=ab\0",
        str(os.getpid()): b"DEMO_OF_SPIKEWATCH=ab\0",
    }.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "environ").write_bytes(environ)
    (tmp_path / "14").mkdir()
    (tmp_path / "self").mkdir()
    assert marked("ab", tmp_path) == [11]

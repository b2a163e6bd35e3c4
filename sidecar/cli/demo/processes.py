"""Child processes that all end: politely if they can, by force if not, and also when the demo itself is killed.

Children carry a mark in their environment and hand it down, so that whatever they started is found as well: torchrun
puts its ranks into sessions of their own, and a rank's loader workers outlive it for a while. A guard process holds
the other end of a pipe; when the demo is gone, however it went, the guard ends the marked processes and removes the
directories it was given.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sidecar.errors import SpikewatchError

MARK = "DEMO_OF_SPIKEWATCH"  # not SPIKEWATCH_…: those are settings of the sidecar
GRACE_S = 5.0
TAIL_LINES = 20


class ChildError(SpikewatchError):
    """A child process ended when it should not have, or never got ready."""


@dataclass(frozen=True, slots=True)
class Child:
    """One started process. `output` receives its stdout and stderr."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path

    def check(self) -> None:
        """Raises ChildError with the end of its output when it has ended."""
        code = self.process.poll()
        if code is not None:
            raise ChildError(f"{self.name} ended with {code}; the end of {self.output}:\n{self.tail()}")

    def tail(self) -> str:
        """The last lines it wrote."""
        lines = self.output.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:]) or "  (nothing)"


class Processes:
    """Starts children and ends them and their descendants; a context manager.

    `output` is the directory of their logs; `doomed` directories are removed at the end; `environ` is what every child
    inherits.
    """

    def __init__(self, output: Path, doomed: Sequence[Path] = (), environ: Mapping[str, str] = os.environ) -> None:
        self._output = output
        self._environ = dict(environ)
        self._mark = secrets.token_hex(8)
        self._children: list[Child] = []
        self._guard = subprocess.Popen(
            [sys.executable, "-m", __name__, self._mark, *map(str, doomed)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Starts `command` in a session of its own: a Ctrl-C reaches the demo only, which ends the rest in order."""
        output = self._output / f"{name}.log"
        with output.open("wb") as sink:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**self._environ, **environment, MARK: self._mark},
                start_new_session=True,
            )
        child = Child(name, process, output)
        self._children.append(child)
        return child

    def stop(self, child: Child, grace_s: float = GRACE_S) -> int:
        """SIGTERM, then SIGKILL after `grace_s`; the exit code. A child that has ended is only reaped."""
        if child in self._children:
            self._children.remove(child)
        if child.process.poll() is None:
            child.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(grace_s)
        if child.process.poll() is None:
            child.process.kill()
        return child.process.wait()

    def wait(self, child: Child, grace_s: float = 2 * GRACE_S) -> int:
        """Lets a child that was told to end do so, for at most `grace_s`; then `stop`. The exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(grace_s)
        return self.stop(child)

    def running(self) -> list[int]:
        """The pids of all children and their descendants."""
        return marked(self._mark)

    def close(self) -> None:
        """Ends everything, the youngest first, and then whatever still carries the mark."""
        for child in reversed(self._children[:]):
            self.stop(child)
        sweep(self._mark)
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()


def marked(mark: str, proc: Path = Path("/proc")) -> list[int]:
    """Every process of ours that was started with the mark, this one excepted."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # another user's, or gone since
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def sweep(mark: str, grace_s: float = GRACE_S) -> None:
    """SIGTERM to every marked process, SIGKILL to those that are left after `grace_s`."""
    for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
        deadline = time.monotonic() + patience
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while marked(mark) and time.monotonic() < deadline:
            time.sleep(0.05)


def _guard(mark: str, doomed: Sequence[str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()  # until the demo closes its end or is gone
    sweep(mark)
    for directory in doomed:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _guard(sys.argv[1], sys.argv[2:])

"""The test's end of `e2e_nursery.py`: starts processes, knows when they died and how."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any


class Child:
    """One process. `code` is negative for a signal, None while it lives."""

    def __init__(self, pid: int, output: Path) -> None:
        self.pid, self.output = pid, output
        self.code: int | None = None
        self.died = threading.Event()

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit code. Raises AssertionError when it is still there."""
        assert self.died.wait(seconds), f"process {self.pid} still runs after {seconds} s\n{self.said()}"
        assert self.code is not None
        return self.code

    def said(self) -> str:
        """The end of what it wrote."""
        return self.output.read_text(errors="replace")[-4000:] if self.output.exists() else ""


class Nursery:
    """May be used from several threads."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("e2e_nursery.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._births: SimpleQueue[int | None] = SimpleQueue()
        self._children: dict[int, Child] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="nursery", daemon=True)
        self._reader.start()

    def start(self, role: str, args: Mapping[str, Any], output: Path) -> Child:
        """A trainer or a sidecar."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps({"role": role, "args": args, "output": str(output)}) + "\n")
            self._process.stdin.flush()
            pid = self._births.get(timeout=60)
            assert pid is not None, "the nursery has ended"
            return self._child(pid, output)

    def _child(self, pid: int, output: Path = Path()) -> Child:
        # A death may be told before the birth has been taken in.
        child = self._children.setdefault(pid, Child(pid, output))
        child.output = output if output.name else child.output
        return child

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "born" in told:
                self._children.pop(told["born"], None)  # the number may have been another process's before
                self._child(told["born"])
                self._births.put(told["born"])
            else:
                child = self._child(told["died"])
                child.code = told["code"]
                child.died.set()
        self._births.put(None)

    def close(self) -> None:
        """Kills whoever is left."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._reader.join(30)
        self._process.stdout.close()

"""Runs a sweep in a child process under a watchdog: a GPU that hangs costs a child, never the caller."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEADLINE_S = 30.0
MOST_BYTES = 1 << 30
_LINES = 1 << 20  # bytes of output that are read at most: a child that rambles must not fill the memory


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one probe. `result`: ok, or why there is nothing."""

    probe: str
    result: str
    reason: str = ""
    readings: tuple[Mapping[str, Any], ...] = ()
    gpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Sweep:
    """Everything a child said."""

    device: Mapping[str, Any] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()
    refused: str = ""  # a result word: nothing could be run at all
    reason: str = ""

    @property
    def gpu_seconds(self) -> float:
        """Device time that was taken."""
        return sum(outcome.gpu_seconds for outcome in self.outcomes)

    @property
    def fake(self) -> bool:
        """Whether this comes from the tests' device: it must not be published as a rate."""
        return bool(self.device.get("fake"))


def sweep(
    probes: Sequence[str],
    *,
    index: int = 0,
    deadline_s: float = DEADLINE_S,
    most_bytes: int = MOST_BYTES,
    environ: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> Sweep:
    """Never raises for what the GPU or the driver does; a child past its deadline is killed by its pid."""
    command = [python, "-m", "probes.child", str(index), str(most_bytes), *probes]
    root = str(Path(__file__).parent.parent)
    given = dict(os.environ if environ is None else environ)
    given["PYTHONPATH"] = os.pathsep.join(filter(None, [root, given.get("PYTHONPATH", "")]))
    given.setdefault("CUDA_MODULE_LOADING", "LAZY")
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.DEVNULL, env=given, start_new_session=True
        )
        late = False
        try:
            child.wait(deadline_s)
        except subprocess.TimeoutExpired:
            late = True
            _end(child)
        said.seek(0)
        lines = _lines(said.read(_LINES))
    return _read(
        lines, list(probes), "timeout" if late else "" if child.returncode in (0, 3) else "died", child.returncode
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    """A process in a driver call may not react to SIGTERM, and one in D state not even to SIGKILL: then it is left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        child.send_signal(number)
        try:
            child.wait(2)
            return
        except subprocess.TimeoutExpired:
            continue


def _lines(raw: bytes) -> list[dict[str, Any]]:
    found = []
    for line in raw.decode(errors="replace").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue  # the last line of a child that was killed while it wrote
        if isinstance(value, dict):
            found.append(value)
    return found


def _read(lines: list[dict[str, Any]], asked: list[str], broken: str, code: int | None) -> Sweep:
    device: Mapping[str, Any] = {}
    outcomes: list[Outcome] = []
    for line in lines:
        device = line.get("device", device)
        if "probe" in line:
            outcomes.append(
                Outcome(
                    line["probe"],
                    line["result"],
                    line.get("reason", ""),
                    tuple(line.get("readings", ())),
                    float(line.get("gpu_seconds", 0.0)),
                )
            )
        elif "result" in line:
            return Sweep(device, tuple(outcomes), line["result"], line.get("reason", ""))
    if broken == "timeout":
        reason = "the child passed its deadline and was ended: the GPU or its driver hangs"
        return Sweep(device, tuple(outcomes), "timeout", reason)
    if broken:
        return Sweep(device, tuple(outcomes), "died", f"the child ended with {code}")
    return Sweep(device, tuple(outcomes))

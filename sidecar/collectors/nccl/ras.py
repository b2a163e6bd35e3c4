"""NCCL's RAS service: its report as text or JSON → events, and the client that asks for one.

Asking has crashed jobs, and a report has said OK all through a hang: see docs/nccl.md before turning it on.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sidecar.collectors.nccl.events import Body, Event
from sidecar.errors import SpikewatchError


class RasError(SpikewatchError):
    """The service cannot be reached, is none, or answers too much or too late."""


@dataclass(frozen=True, slots=True)
class RasVersion(Body):
    """Which NCCL answers."""

    kind: ClassVar[str] = "ras_version"
    version: str
    cuda: str


@dataclass(frozen=True, slots=True)
class RasDriver(Body):
    """CUDA versions as numbers, e.g. 12060 for 12.6."""

    kind: ClassVar[str] = "ras_driver"
    runtime: int
    driver: int


@dataclass(frozen=True, slots=True)
class RasJob(Body):
    """The size of the job. What is counted per node or process may be a span (`7-8`), so it stays text."""

    kind: ClassVar[str] = "ras_job"
    nodes: int
    processes_per_node: str
    gpus_per_process: str
    processes: int
    gpus: int


@dataclass(frozen=True, slots=True)
class RasGroup(Body):
    """Communicators of one shape, and the worst of their states."""

    kind: ClassVar[str] = "ras_group"
    group: int
    communicators: int
    nodes: str
    ranks_per_node: str
    ranks_per_communicator: str
    ranks: int
    status: str
    errors: str


@dataclass(frozen=True, slots=True)
class RasProblem(Body):
    """A communicator with something to tell; what it is follows."""

    kind: ClassVar[str] = "ras_problem"
    communicator: str
    hash: str
    problem: str


@dataclass(frozen=True, slots=True)
class RasMismatch(Body):
    """Ranks have launched different numbers of an operation."""

    kind: ClassVar[str] = "ras_mismatch"
    op: str


@dataclass(frozen=True, slots=True)
class RasLaunched(Body):
    """How many ranks have launched up to which operation."""

    kind: ClassVar[str] = "ras_launched"
    ranks: int
    operation: int


@dataclass(frozen=True, slots=True)
class RasRank(Body):
    """A rank that the lines before are about."""

    kind: ClassVar[str] = "ras_rank"
    rank: int
    gpu: str
    pid: int
    node: str


@dataclass(frozen=True, slots=True)
class RasNote(Body):
    """More about a problem, in words."""

    kind: ClassVar[str] = "ras_note"
    message: str


@dataclass(frozen=True, slots=True)
class RasCommunicator(Body):
    """A communicator of a JSON report."""

    kind: ClassVar[str] = "ras_communicator"
    hash: str
    size: int
    ranks: int
    missing_ranks: int


@dataclass(frozen=True, slots=True)
class RasCounts(Body):
    """What one rank of a JSON report has launched, by operation."""

    kind: ClassVar[str] = "ras_counts"
    communicator: str
    rank: int
    host: str
    pid: int
    device: int
    error: int
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class RasMissing(Body):
    """A rank of a JSON report that did not answer."""

    kind: ClassVar[str] = "ras_missing"
    communicator: str
    rank: int
    host: str
    pid: int
    considered_dead: bool


_SPAN = r"(\d{1,9}(?:-\d{1,9})?)"
_VERSION = re.compile(r"NCCL version (\S+) compiled with CUDA (\S+)")
_DRIVER = re.compile(r"CUDA runtime version (\d{1,9}), driver version (\d{1,9})")
_JOB = re.compile(rf"\s*(\d{{1,9}})\s+{_SPAN}\s+{_SPAN}\s+(\d{{1,9}})\s+(\d{{1,9}})\s*$")
_GROUP = re.compile(
    rf"\s*(\d{{1,9}})\s+(\d{{1,9}})\s+{_SPAN}\s+{_SPAN}\s+{_SPAN}\s+(\d{{1,9}})\s+([A-Z][\w,-]*)\s+([A-Z][\w,-]*)\s*$"
)
_PROBLEM = re.compile(r"#(\d+(?:-\d+)?) \(([0-9a-f]+)\) (\w+)")
_MISMATCH = re.compile(r"\s+Communicator ranks have different (\w+) operation counts")
_LAUNCHED = re.compile(r"\s+(\d{1,9}) ranks? ha(?:ve|s) launched up to operation (\d{1,18})")
_RANK = re.compile(r"\s+Rank (\d{1,9}) -- GPU (\S+) managed by process (\d{1,18}) on node (\S+)")


def parse(text: str) -> Iterator[Event]:
    """The events of a report. In JSON, which has no lines of its own, `line` numbers them from 1. Raises nothing."""
    if text.lstrip()[:1] == "{":
        yield from (Event(number, None, body) for number, body in enumerate(_report(text), 1))
        return
    about = False  # whether we are under a communicator's heading
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")[:4096]
        body = _line(line, about)
        about = isinstance(body, RasProblem) or (about and line[:1] in (" ", ""))
        if body is not None:
            yield Event(number, None, body)


def _line(line: str, about: bool) -> Body | None:
    if (m := _VERSION.match(line)) is not None:
        return RasVersion(m[1], m[2])
    if (m := _DRIVER.match(line)) is not None:
        return RasDriver(int(m[1]), int(m[2]))
    if (m := _PROBLEM.match(line)) is not None:
        return RasProblem(m[1], m[2], m[3])
    if (m := _MISMATCH.match(line)) is not None:
        return RasMismatch(m[1])
    if (m := _LAUNCHED.match(line)) is not None:
        return RasLaunched(int(m[1]), int(m[2]))
    if (m := _RANK.match(line)) is not None:
        return RasRank(int(m[1]), m[2], int(m[3]), m[4])
    if (m := _GROUP.match(line)) is not None:
        return RasGroup(int(m[1]), int(m[2]), m[3], m[4], m[5], int(m[6]), m[7], m[8])
    if (m := _JOB.match(line)) is not None:
        return RasJob(int(m[1]), m[2], m[3], int(m[4]), int(m[5]))
    return RasNote(line.strip()) if about and line.strip() and line[:1] == " " else None


def _report(text: str) -> Iterator[Body]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return
    if not isinstance(found, dict) or "nccl_version" not in found:
        return
    yield RasVersion(str(found["nccl_version"]), str(found.get("cuda_runtime_version", "")))
    for communicator in _dicts(found.get("communicators")):
        name = str(communicator.get("hash", ""))
        sizes = (_whole(communicator.get(key)) for key in ("size", "ranks_count", "missing_ranks_count"))
        yield RasCommunicator(name, *sizes)
        for rank in _dicts(communicator.get("ranks")):
            status, counts = rank.get("status"), rank.get("collective_counts")
            yield RasCounts(
                name,
                *_who(rank),
                device=_whole(rank.get("cuda_dev")),
                error=_whole(status.get("async_error")) if isinstance(status, dict) else 0,
                counts={str(op): _whole(n) for op, n in counts.items()} if isinstance(counts, dict) else {},
            )
        for rank in _dicts(communicator.get("missing_ranks")):
            status = rank.get("status")
            dead = isinstance(status, dict) and status.get("considered_dead") is True
            yield RasMissing(name, *_who(rank), considered_dead=dead)


def _who(rank: dict[str, Any]) -> tuple[int, str, int]:
    return _whole(rank.get("rank")), str(rank.get("host", "")), _whole(rank.get("pid"))


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _whole(value: Any) -> int:
    """-1 for what is no number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def query(
    host: str = "localhost",
    port: int = 28028,
    *,
    timeout_s: float = 5.0,
    max_bytes: int = 16 << 20,
    as_json: bool = True,
) -> str:
    """One report, in JSON where the service can (2.28.7 and newer), else as text.

    `timeout_s` bounds each wait, and is what the service waits for its peers. Raises RasError.
    """
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.settimeout(timeout_s + 2)  # the service itself may use all of its time
            with connection.makefile("rb") as answers:
                return _talk(connection, answers, timeout_s, max_bytes, as_json)
    except OSError as e:
        raise RasError(f"{host}:{port}: {e}") from e


def _talk(connection: socket.socket, answers: Any, timeout_s: float, max_bytes: int, as_json: bool) -> str:
    def ask(command: str) -> str:
        connection.sendall(f"{command}\n".encode())
        return str(answers.readline(4096), "utf-8", "replace").strip()

    greeting = ask("CLIENT PROTOCOL 2")
    if not greeting.upper().startswith("SERVER PROTOCOL "):
        raise RasError(f"no RAS service: it greets with {greeting[:80]!r}")
    if (refused := ask(f"TIMEOUT {max(1, round(timeout_s))}")) != "OK":
        raise RasError(f"the RAS service refuses a timeout: {refused[:80]!r}")
    if as_json:
        ask("SET FORMAT json")  # older services answer with an error, and go on with text
    connection.sendall(b"VERBOSE STATUS\n")
    report: bytes = answers.read(max_bytes + 1)
    if len(report) > max_bytes:
        raise RasError(f"the report is larger than {max_bytes} bytes")
    return report.decode("utf-8", "replace")

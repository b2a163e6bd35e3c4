"""One trainer, one sidecar, their files: what a test of faults sets up, looks at and breaks."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import struct
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml
from e2e_nursing import Child, Nursery

from sidecar.cli.demo.traininglog import Accounting, TrainingLog
from sidecar.plugins import COLLECTORS, installed

T = TypeVar("T")

RULES = """
groups:
- name: e2e
  rules:
  - alert: Starved
    expr: |
      rate(spikewatch_trainer_data_wait_seconds_total[1s]) / rate(spikewatch_trainer_step_seconds_total[1s]) > 0.5
        and spikewatch_trainer_steps_total > 3
    for: 400ms
    keep_firing_for: {keep}
    labels: {{severity: warning}}
"""

SLOW = 0.02  # seconds an item takes: a batch of four comes every 80 ms from one worker, every 20 ms from four
POLICY: Mapping[str, Any] = {
    "lease_ms": 60_000,  # longer than any test: what ends with the lease says so and sets its own
    "renew_ms": 200,
    "settle_ms": 400,
    "apply_timeout_ms": 10_000,
    "close_timeout_ms": 10_000,
    "gone_grace_ms": 500,
    "guard_grace_ms": 1_000,
    "min_steps": 5,
    "min_samples": 4,
}
FEED = {"factor": 4, "max_workers": 4, "max_prefetch": 2}  # 1 worker becomes 4
STARVE = {"factor": 0.25}  # 4 workers become 1
NONE = {name: {"enabled": False} for group, name, _ in installed() if group == COLLECTORS}
ALL: Mapping[str, Any] = {}
SPEED = "sum(rate(spikewatch_trainer_samples_total[1s]))"
WORKERS = "max(spikewatch_trainer_dataloader_workers)"
"""Judged by this, the verdict is certain on the busiest machine: the number of workers has no noise."""

DEADLINE = 60.0


def response(params: Mapping[str, Any] = FEED, judged_by: str = WORKERS, **changes: Any) -> dict[str, Any]:
    """One that acts on `Starved`; `judged_by` should increase."""
    return {
        "name": "feed",
        "match": ['alertname="Starved"'],
        "remediation": "dataloader_prefetch",
        "with": dict(params),
        "mode": "act",
        "verify": {
            "expr": judged_by,
            "goal": "increase",
            "by": "20%",
            "baseline": "2s",
            "window": "2s",
            "abort_if": ["increase(spikewatch_trainer_nonfinite_losses_total[1m]) > 0"],
        },
        "limits": {"scope": "job", "cooldown": "0s", "per_hour": 100, "max_ineffective": 100},
        **changes,
    }


def death(kind: str, moment: str = "committed", victim: str = "self", **data: Any) -> dict[str, Any]:
    """See `e2e_sidecar.run`."""
    return {"kind": kind, "data": data, "moment": moment, "victim": victim}


class World:
    """A folder of its own, and whatever was started in it. Not for several threads at once."""

    def __init__(self, nursery: Nursery, **config: Any) -> None:
        """`config` goes into spikewatch.yaml."""
        self.nursery = nursery
        self.folder = Path(tempfile.mkdtemp(prefix="swe2e-", dir="/tmp"))  # short: a socket lies in it
        self.socket = self.folder / "run" / "trainer.sock"
        self.url = f"http://127.0.0.1:{_free_port()}"
        # not from the environment: pytest changes it in another thread
        self.http = httpx.Client(base_url=self.url, timeout=10, trust_env=False)
        self.delay_file = self.folder / "delay"
        self.logs: list[TrainingLog] = []
        self.trainers: list[Child] = []
        self.sidecars: list[Child] = []
        self.slow(SLOW)
        self.rule(keep="1m")  # stays firing through whatever the machine's load does to the data
        self.respond(response())
        self.configure(**config)

    # --- files ------------------------------------------------------------------------------------------------------

    def configure(self, **changes: Any) -> None:
        """Writes spikewatch.yaml. Of the machine nothing is read unless `collectors` is `ALL`: the alert is about the
        trainer, and reading the rest would take more of the processor than all else a sidecar does here.
        """
        config = {
            "state_dir": "state",
            "run_dir": "run",
            "rules": ["*.rules.yaml"],
            "responses": ["responses.yaml"],
            "evaluation_interval": "200ms",
            "http": {"listen": self.url.removeprefix("http://")},
            "metrics": None,
            "collectors": NONE,
            **changes,
        }
        (self.folder / "spikewatch.yaml").write_text(yaml.safe_dump(config))

    def rule(self, *, keep: str) -> None:
        """Writes a.rules.yaml; `keep` is the alert's `keep_firing_for`."""
        (self.folder / "a.rules.yaml").write_text(RULES.format(keep=keep))

    def respond(self, *responses: Mapping[str, Any]) -> None:
        """Writes responses.yaml."""
        (self.folder / "responses.yaml").write_text(yaml.safe_dump({"responses": list(responses)}))

    def slow(self, seconds: float) -> None:
        """From now on an item takes that long."""
        if not self.delay_file.exists():
            self.delay_file.write_bytes(struct.pack("<d", seconds))
        with self.delay_file.open("r+b") as file:
            file.write(struct.pack("<d", seconds))

    # --- processes --------------------------------------------------------------------------------------------------

    def trainer(self, workers: int = 1, job: str = "job", startup: float = 0.0) -> Child:
        """A new one; `death`s of trainers mean the newest."""
        number = len(self.trainers)
        args = {
            "output": str(self.folder / f"train{number}"),
            "socket": str(self.socket),
            "delay_file": str(self.delay_file),
            "job": job,
            "startup": startup,
            "workers": workers,
            "prefetch": 2,
            "batch_size": 4,
            "seed": number,
        }
        child = self.nursery.start("trainer", args, self.folder / f"train{number}.out")
        (self.folder / "victim").write_text(str(child.pid))
        self.trainers.append(child)
        self.logs.append(TrainingLog(self.folder / f"train{number}"))
        return child

    def sidecar(self, deaths: Sequence[Mapping[str, Any]] = (), **policy: Any) -> Child:
        """A new one, with short times; `policy` changes some of them."""
        args = {
            "config": str(self.folder / "spikewatch.yaml"),
            "policy": {**POLICY, **policy},
            "deaths": list(deaths),
            "victim_file": str(self.folder / "victim"),
        }
        child = self.nursery.start("sidecar", args, self.folder / f"sidecar{len(self.sidecars)}.out")
        self.sidecars.append(child)
        return child

    def leave(self, pid: int, died: Callable[[], bool]) -> float:
        """SIGTERM; the seconds it took to die, less those in which the machine had no core free for it."""
        began, waited, first = time.monotonic(), 0.0, _waited_for_a_core(pid)
        os.kill(pid, signal.SIGTERM)
        while not died():
            waited = max(waited, _waited_for_a_core(pid) - first)
            assert time.monotonic() - began < DEADLINE, f"process {pid} does not leave\n{self.report()}"
            time.sleep(0.01)
        return time.monotonic() - began - waited

    def close(self) -> None:
        """Kills what is left and removes the folder."""
        self.http.close()
        for child in (*self.trainers, *self.sidecars):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # loader workers of a killed trainer outlive it for seconds
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- waiting ----------------------------------------------------------------------------------------------------

    def until(self, wanted: Callable[[], T], what: str = "", seconds: float = DEADLINE) -> T:
        """The first true answer. Raises AssertionError with all that is known when none comes."""
        deadline = time.monotonic() + seconds
        while True:
            found = wanted()
            if found:
                return found
            assert time.monotonic() < deadline, f"{what or wanted} did not happen in {seconds} s\n{self.report()}"
            time.sleep(0.05)

    def until_entry(self, kind: str, after: int = 0, seconds: float = DEADLINE, **data: Any) -> dict[str, Any]:
        """The first journal entry of that kind with that data behind entry number `after`."""

        def find() -> dict[str, Any] | None:
            return next((e for e in self.entries(kind, after) if data.items() <= e["data"].items()), None)

        found = self.until(find, f"journal entry {kind} {data}", seconds)
        assert found is not None
        return found

    def until_death(self, child: Child, seconds: float = DEADLINE) -> int:
        """The exit code of a process that ends by itself; negative for a signal."""
        self.until(child.died.is_set, f"the end of process {child.pid}", seconds)
        return child.wait()

    def until_ready(self) -> None:
        """The sidecar answers and has evaluated."""
        self.until(self.ready, "the sidecar is ready")

    def ready(self) -> bool:
        """Whether it answers and has evaluated."""
        try:
            return self.http.get("/-/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def until_trains(self, steps: int = 10, number: int = -1) -> None:
        """The trainer does so many more steps."""
        there = self.steps(number)
        self.until(lambda: self.steps(number) >= there + steps, f"{steps} more steps than {there}")

    def until_knobs(self, workers: int, number: int = -1) -> None:
        """The trainer has that many loader workers, by its own log, in a step that begins from now on."""
        there = self.steps(number)
        self.until(
            lambda: self.steps(number) > there + 1 and self.knobs(number)["num_workers"] == workers,
            f"{workers} workers",
        )

    # --- looking ----------------------------------------------------------------------------------------------------

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Of the state database; nothing where there is none yet."""
        path = self.folder / "state" / "state.db"
        if not path.exists():
            return []
        try:
            with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as connection:
                connection.row_factory = sqlite3.Row
                return [dict(row) for row in connection.execute(sql)]
        except sqlite3.OperationalError as e:
            if "no such table" in str(e):
                return []
            raise

    def entries(self, kind: str = "", after: int = 0) -> list[dict[str, Any]]:
        """Journal entries, `data` decoded, oldest first."""
        where = f"AND kind = '{kind}'" if kind else ""
        rows = self.rows(f"SELECT * FROM journal WHERE id > {after} {where} ORDER BY id")
        return [{**row, "data": json.loads(row["data"])} for row in rows]

    def decisions(self) -> list[str]:
        """The reason of every decision, in order."""
        return [row["reason"] for row in self.rows("SELECT reason FROM decisions ORDER BY rowid")]

    def decided_twice(self) -> list[tuple[str, str]]:
        """Pairs of episode and response with more than one decision in the journal."""
        pairs = [(e["episode"], e["response"]) for e in self.entries("decision")]
        return [pair for pair in pairs if pairs.count(pair) > 1]

    def verdicts(self) -> list[tuple[str, str]]:
        """(verdict, reason) of every experiment that has one, in order."""
        return [(e["data"]["verdict"], e["data"]["reason"]) for e in self.entries("verdict")]

    def results(self) -> list[str]:
        """How the experiments that had begun ended, in order."""
        return [e["data"]["result"] for e in self.entries("experiment") if e["data"].get("result")]

    def open_experiments(self) -> list[dict[str, Any]]:
        """Rows that are not closed."""
        return self.rows("SELECT change_id, phase FROM experiments WHERE phase != 'closed'")

    def _steps(self, number: int) -> list[Any]:
        log = self.logs[number]
        log.poll()
        return log.ranks[0].steps if 0 in log.ranks else []

    def steps(self, number: int = -1) -> int:
        """How many the trainer has done."""
        return len(self._steps(number))

    def knobs(self, number: int = -1) -> Mapping[str, Any]:
        """The loader's settings as the trainer's newest step logged them."""
        with (self.folder / f"train{number % len(self.trainers)}" / "rank0.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().rpartition(b"\n")[0].split(b"\n")
        steps = [line for line in lines if line.startswith(b'{"event": "step"')]
        return json.loads(steps[-1]) if steps else {"num_workers": None}

    def accounting(self, number: int = -1) -> Accounting:
        """Every sample the trainer consumed against the order laid down."""
        self.logs[number].poll()
        return self.logs[number].accounting()

    def metric(self, name: str, **labels: str) -> float | None:
        """A value on /metrics, the sum where several series match; None where none does."""
        values = []
        for line in self.http.get("/metrics").text.splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
                values.append(float(value))
        return sum(values) if values else None

    def report(self) -> str:
        """What somebody wants to read when a test fails."""
        journal = "\n".join(f"{e['at_ms']} {e['kind']} {e['data']}" for e in self.entries())
        said = "\n".join(f"--- {child.output.name} ({child.code})\n{child.said()}" for child in self._all())
        steps = [self.steps(n) for n in range(len(self.trainers))]
        errors = "\n".join(f"--- {path.name}\n{path.read_text()}" for path in self.folder.glob("*.err"))
        return f"steps {steps}\n--- journal\n{journal}\n{said}\n{errors}"

    def _all(self) -> Sequence[Child]:
        return (*self.trainers, *self.sidecars)


def _waited_for_a_core(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


_chance = random.SystemRandom()  # stories run beside other tests, and those may watch the shared generator


def _free_port() -> int:
    """Below those that the kernel gives to clients, or somebody has it while a sidecar is being restarted."""
    while True:
        port = _chance.randrange(15_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port

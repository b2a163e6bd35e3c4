"""What an attached client with all its telemetry costs a training step, and what a sidecar in trouble adds: nothing.

    python -m bench.attach [--json FILE] [--quick]

One process; single steps with and without the client side by side, in a random order. A pair shares the machine's
drift, and thousands of pairs give an interval narrower than what is looked for. What the client's own thread takes
falls on both kinds of step, so its CPU time is measured by itself and added as if all of it came out of the training.
Needs torch (CPU).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import _live, _paired, _rows
from bench._rows import Row, below, row

RATIO_LIMIT = 1.005
ADDED_LIMIT = 20.0  # microseconds
THREAD_NAME = "spikewatch"
CONFIG: dict[str, Any] = {"responses": []}


@dataclass(frozen=True, slots=True)
class Size:
    """How many pairs of steps, for how long at most (a busy machine makes fewer), and how many steps all attached."""

    pairs_1ms: int
    pairs_10ms: int
    pairs_trouble: int
    alone: tuple[int, int]
    longest_s: tuple[float, float, float]
    settle_s: float
    troubles: tuple[str, ...]


TROUBLES = ("well", "killed", "stopped", "restarted over and over", "replaced by garbage", "killed, folder removed")
FULL = Size(
    pairs_1ms=8000,
    pairs_10ms=4500,
    pairs_trouble=2500,
    alone=(12000, 1500),
    longest_s=(40, 150, 12),
    settle_s=0.5,
    troubles=TROUBLES,
)
QUICK = Size(
    pairs_1ms=30,
    pairs_10ms=5,
    pairs_trouble=20,
    alone=(30, 5),
    longest_s=(9, 9, 9),
    settle_s=0.05,
    troubles=("stopped", "replaced by garbage"),
)

Found = list[tuple[tuple[int, int], tuple[int, int]]]


def costs(size: Size, rng: random.Random) -> dict[str, Row]:
    """In steps of about 1 ms and of about 10 ms, beside a sidecar that reads."""
    from bench._attached import Loop  # torch takes two seconds to load

    rows: dict[str, Row] = {}
    with _live.sidecar(CONFIG) as live:
        for step_ms, pairs, longest, alone in zip(
            (1.0, 10.0), (size.pairs_1ms, size.pairs_10ms), size.longest_s, size.alone, strict=False
        ):
            loop = Loop(step_ms)
            with loop.attached(live.socket) as run:
                _wait(lambda run=run: run.connected)
                found, thread = _measured(loop, pairs, longest, rng)
                # A loop as it is: records are due by the clock, so among steps of which every other one is attached
                # they fall on twice as many, and a percentile of those would be of no loop that exists.
                loop.calls.clear()
                for _ in range(alone):
                    loop.step(True)
                errors = run._parts.meter.errors if run._parts is not None else -1
            label = f"steps of {step_ms:g} ms"
            rows[f"pairs, {label}"] = row(len(found), "")
            rows[f"step without, {label}"] = row(statistics.median(b[0] for _, b in found) / 1e6, "ms")
            for q, name in ((0.5, "p50"), (0.99, "p99")):
                rows[f"run.step() {name}, {label}"] = below(_paired.quantile(loop.calls, q) / 1e3, "us", ADDED_LIMIT)
            for clock, name in ((0, ""), (1, " CPU")):
                added = _paired.added_to_steps([(a[clock], b[clock]) for a, b in found], rng)
                rows |= _interval(f"added{name} to a step, mean, {label}", added, ADDED_LIMIT, "us", 1e3)
            rows[f"client's thread, {label}"] = row(thread * 100, "% of a core")
            rows[f"client errors, {label}"] = row(errors, "", "0", errors == 0)
            if step_ms == 10.0:
                rows |= _ratios(found, thread, rng)
    return rows


def _ratios(found: Found, thread: float, rng: random.Random) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for clock, name in ((0, "step time ratio"), (1, "step CPU ratio")):
        ratio = _paired.ratio_of_steps([(a[clock], b[clock]) for a, b in found], rng)
        whole = _paired.Estimate(ratio.value + thread, ratio.low + thread, ratio.high + thread)
        rows |= _interval(f"{name}, client's thread included", whole, RATIO_LIMIT, "x")
    return rows


def _interval(name: str, found: _paired.Estimate, limit: float, unit: str, divisor: float = 1.0) -> dict[str, Row]:
    return {
        name: row(found.value / divisor, unit),
        f"{name}, 95 % from": row(found.low / divisor, unit),
        f"{name}, 95 % to": row(found.high / divisor, unit, f"<= {limit:g} {unit}", found.at_most(limit * divisor)),
    }


def _measured(loop: Any, pairs: int, seconds: float, rng: random.Random) -> tuple[Found, float]:
    """The pairs, and the CPU time of the client's thread per second meanwhile."""
    from bench._attached import thread_cpu_ns

    ids = [t.native_id for t in threading.enumerate() if t.name == THREAD_NAME and t.native_id is not None]
    before, began = sum(map(thread_cpu_ns, ids)), time.perf_counter_ns()
    found = _paired.alternated(pairs, loop.step, rng, seconds)
    return found, (sum(map(thread_cpu_ns, ids)) - before) / (time.perf_counter_ns() - began)


# --- a sidecar in trouble -------------------------------------------------------------------------------------------


def trouble(size: Size, rng: random.Random) -> dict[str, Row]:
    """The same steps while the sidecar is killed, stopped, restarted, replaced by garbage, or its folder removed."""
    from bench._attached import Loop

    rows: dict[str, Row] = {}
    loop = Loop(1.0)
    for name in size.troubles:
        condition = _CONDITIONS[name]
        with tempfile.TemporaryDirectory(prefix="spikewatch-bench-") as folder:
            live = _live.launch(Path(folder), CONFIG)
            try:
                with loop.attached(live.socket) as run:
                    _wait(lambda run=run: run.connected)
                    loop.exceptions = 0
                    with condition(live):
                        time.sleep(size.settle_s)
                        found, _ = _measured(loop, size.pairs_trouble, size.longest_s[2], rng)
                    errors = run._parts.meter.errors if run._parts is not None else -1
            finally:
                live.kill()
        added = _paired.added_to_steps([(a[0], b[0]) for a, b in found], rng)
        rows |= _interval(f"added to a step, sidecar {name}", added, ADDED_LIMIT, "us", 1e3)
        bad = loop.exceptions + errors
        rows[f"exceptions and client errors, sidecar {name}"] = row(bad, "", "0", bad == 0)
    return rows


@contextmanager
def _well(live: _live.Live) -> Iterator[None]:
    yield


@contextmanager
def _killed(live: _live.Live) -> Iterator[None]:
    live.kill()
    yield


@contextmanager
def _stopped(live: _live.Live) -> Iterator[None]:
    os.kill(live.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(live.pid, signal.SIGCONT)


@contextmanager
def _restarted(live: _live.Live) -> Iterator[None]:
    """Killed and started anew, over and over."""
    stop = threading.Event()

    def again() -> None:
        newest = live
        while not stop.is_set():
            newest.kill()
            newest = _live.launch(live.socket.parent.parent, CONFIG)
        newest.kill()

    live.kill()
    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _garbage(live: _live.Live) -> Iterator[None]:
    """Something else listens at the path and answers with noise."""
    live.kill()
    live.socket.unlink(missing_ok=True)
    stop = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(live.socket))
        listener.listen()
        listener.settimeout(0.05)
        thread = threading.Thread(target=_babble, args=(listener, stop))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _babble(listener: socket.socket, stop: threading.Event) -> None:
    noise = [b"\x00\xff" * 400, b"{}", b'{"type":"set"}', b'{"type":"welcome","protocol":1}', b"[" * 5000]
    while not stop.is_set():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection:
            for packet in noise * 20:
                try:
                    connection.send(packet, socket.MSG_NOSIGNAL)
                except OSError:
                    break
                if stop.wait(0.005):
                    return


@contextmanager
def _removed(live: _live.Live) -> Iterator[None]:
    live.kill()
    shutil.rmtree(live.socket.parent)
    yield


_CONDITIONS: dict[str, Callable[[_live.Live], Any]] = dict(
    zip(TROUBLES, (_well, _killed, _stopped, _restarted, _garbage, _removed), strict=True)
)


def _wait(check: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not check():
        if time.monotonic() > until:
            raise TimeoutError("no sidecar answers")
        time.sleep(0.005)


def main() -> int:
    """Returns 0: a target that is missed is in the rows, not in the exit code."""
    asked = _rows.arguments(__doc__ or "")
    size, rng = (QUICK if asked.quick else FULL), random.Random()
    # before numpy and torch are loaded: one thread each, or the blocks fight over two cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = {**costs(size, rng), **trouble(size, rng)}
    _rows.publish(rows, asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes every change into the experiment trackers the trainer uses: W&B, MLflow, TensorBoard.

Trackers talk to disks and servers, so they are told on a thread of their own, one that ends when it has said all.
None is imported: one that the script has not loaded has no curves to explain.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from spikewatch.notes import Note

log = logging.getLogger("spikewatch")

WAITING = 100  # notes not written yet; more are dropped and counted
PREFIX = "spikewatch/"
THREAD_NAME = "spikewatch trackers"

_Write = Callable[[], None]


class Trackers:
    """`tell` on the training thread; it takes what identifies the tracker's run there and waits for nothing."""

    def __init__(self) -> None:
        self._writers: tuple[Any, ...] = ()
        self._waiting: deque[_Write] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.failed = self.dropped = 0

    def add(self, writer: Any) -> None:
        """One more TensorBoard writer."""
        self._writers = (*self._writers, writer)

    def tell(self, note: Note) -> None:
        """Writes `note` wherever there is somebody to write to."""
        writes: list[_Write] = [partial(_tensorboard, writer, note) for writer in self._writers]
        wandb = _active(sys.modules.get("wandb"), "run")
        if wandb is not None:
            writes.append(partial(_wandb, wandb, note))
        mlflow = sys.modules.get("mlflow")
        active = mlflow.active_run() if mlflow is not None and hasattr(mlflow, "active_run") else None
        if mlflow is not None and active is not None:  # known to this thread only
            writes.append(partial(_mlflow, mlflow, active.info.run_id, note))
        if writes:
            self._put(writes)

    def _put(self, writes: list[_Write]) -> None:
        with self._lock:
            room = WAITING - len(self._waiting)
            self.dropped += max(0, len(writes) - room)
            self._waiting.extend(writes[:room])
            if self._thread is None and self._waiting:
                self._thread = threading.Thread(target=self._write, name=THREAD_NAME, daemon=True)
                self._thread.start()

    def _write(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                write = self._waiting.popleft()
            try:
                write()
            except Exception as error:  # noqa: BLE001  a tracker's trouble is not the trainer's
                self.failed += 1
                log.warning("a change could not be written to an experiment tracker: %r", error)

    def finish(self, timeout: float = 2.0) -> None:
        """Waits a moment for what is being written."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)


def _active(module: Any, name: str) -> Any:
    return getattr(module, name, None) if module is not None else None


def _numbers(note: Note) -> dict[str, float]:
    return {PREFIX + name: float(v) for name, v in note.values.items() if isinstance(v, (int, float))}


def _tensorboard(writer: Any, note: Note) -> None:
    for name, value in _numbers(note).items():
        writer.add_scalar(name, value, note.step)
    writer.add_text(PREFIX + "changes", note.text(), note.step)


def _wandb(run: Any, note: Note) -> None:
    # Without commit the values join the row the script logs next: its own step counter does not move.
    run.log({**_numbers(note), PREFIX + "changes": note.text()}, commit=False)


def _mlflow(mlflow: Any, run_id: str, note: Note) -> None:
    client = mlflow.MlflowClient()
    for name, value in _numbers(note).items():
        client.log_metric(run_id, name, value, step=note.step)
    client.set_tag(run_id, f"spikewatch.change.{note.change}", note.text())

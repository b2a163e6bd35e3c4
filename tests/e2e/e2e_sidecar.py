"""A sidecar for these tests: the real one with short times, and with deaths at exact entries of its journal."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def run(*, config: str, policy: Mapping[str, Any], deaths: Sequence[Mapping[str, Any]], victim_file: str) -> None:
    """Serves until SIGTERM. Each of `deaths`, one after the other, kills somebody.

    A death is {kind, data, moment, victim}: at the first journal entry of that kind with that data, `before` it is
    on disk, once it is `committed` and nothing has been sent yet, or once its orders have been `sent`; `victim` is
    `self` or `trainer`, whose process id then stands in `victim_file`.
    """
    from sidecar.app import serve
    from sidecar.responses.journal import Journal
    from sidecar.responses.response import Policy

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in ("apscheduler", "uvicorn", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
    fate = _Fate(deaths, Path(victim_file))
    commit, publish = Journal.commit, Journal.publish

    def deadly_commit(journal: Journal) -> None:
        entries = list(journal._entries)
        fate.look("before", entries)
        commit(journal)
        fate.look("committed", entries)

    def deadly_publish(journal: Journal) -> None:
        fate.look("sent", list(journal._committed))
        publish(journal)

    Journal.commit, Journal.publish = deadly_commit, deadly_publish  # type: ignore[method-assign]
    asyncio.run(serve(Path(config), {}, Policy(**policy)))


class _Fate:
    def __init__(self, deaths: Sequence[Mapping[str, Any]], victim_file: Path) -> None:
        self._deaths, self._victim_file = list(deaths), victim_file

    def look(self, moment: str, entries: Sequence[Any]) -> None:
        for entry in entries:
            if not self._deaths:
                return
            death = self._deaths[0]
            if (
                death["moment"] == moment
                and death["kind"] == entry.kind
                and death["data"].items() <= entry.data.items()
            ):
                self._deaths.pop(0)
                pid = os.getpid() if death["victim"] == "self" else int(self._victim_file.read_text())
                os.kill(pid, signal.SIGKILL)

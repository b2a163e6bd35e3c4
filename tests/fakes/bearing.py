"""A process that bears others on demand: JSON orders on stdin; {"born": pid} and {"died": pid, "code"} on stdout.

With the end of stdin every child is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Callable
from typing import Any


def serve(bear: Callable[[dict[str, Any]], int]) -> None:
    """Until stdin ends. `bear` forks for an order and gives the child's pid."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    alive: set[int] = set()
    rest = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 4096)
        while alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            alive.discard(pid)
            print(json.dumps({"died": pid, "code": os.waitstatus_to_exitcode(status)}), flush=True)  # noqa: T201
        if 0 not in ready:
            continue
        data = os.read(0, 1 << 20)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            pid = bear(json.loads(line))
            alive.add(pid)
            print(json.dumps({"born": pid}), flush=True)  # noqa: T201
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

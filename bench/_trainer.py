"""A trainer without a model, told what to do: `python bench/_trainer.py SOCKET`, one JSON object a line on stdin.

`{"loss": 2, "wait": 0.001, "work": 0.01}`: the loss of every step, how long its batch lets itself be waited for, how
long it works. Each line is answered, after the first whole step with it, by `{"t": seconds since 1970}`.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Iterator

import spikewatch


class Script:
    """What to do now; orders come from stdin and are taken between two steps."""

    def __init__(self) -> None:
        self.now = {"loss": 1.0, "wait": 0.0005, "work": 0.02}
        self._orders: queue.SimpleQueue[dict[str, float] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self._orders.put(json.loads(line))
        self._orders.put(None)

    def batches(self) -> Iterator[bool]:
        """One batch a step, for as long as stdin is open: whether it is the first after an order."""
        while True:
            ordered = not self._orders.empty()
            if ordered:
                order = self._orders.get()
                if order is None:
                    return
                self.now.update(order)
            time.sleep(self.now["wait"])
            yield ordered


def main(socket: str) -> None:
    """Trains until stdin is closed."""
    script = Script()
    run = spikewatch.attach(loader=script.batches(), socket=socket)
    while not run.connected:
        time.sleep(0.01)
    for ordered in run.loader:
        time.sleep(script.now["work"])
        run.step(script.now["loss"], samples=8)
        if ordered:
            print(json.dumps({"t": time.time()}), flush=True)
    run.close()


if __name__ == "__main__":
    main(sys.argv[1])

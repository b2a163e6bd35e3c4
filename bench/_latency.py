"""How long from the step whose number crosses a threshold to the alert that fires, and to the Alertmanager's ears."""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench._live import Live, Trainer, sidecar, trainer

ALERT = "LossHigh"
RULES = {
    "groups": [
        {
            "name": "latency",
            "rules": [
                {"alert": ALERT, "expr": "spikewatch_trainer_loss > 5", "for": "0s", "labels": {"severity": "info"}}
            ],
        }
    ]
}
GIVE_UP_S = 20.0


@dataclass(slots=True)
class Latencies:
    """Seconds, one a trial."""

    firing: list[float] = field(default_factory=list)  # seen firing by who asks the API
    notified: list[float] = field(default_factory=list)  # taken by an Alertmanager


class Ears:
    """Stands in for an Alertmanager: notes when it was first told of a firing alert since `forget`."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._at = 0.0
        ears = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                at = time.time()
                alerts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()
                # one that has ended says so by an end in the past
                if not ears._told.is_set() and any(_ends(a) > at for a in alerts):
                    ears._at = at
                    ears._told.set()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def forget(self) -> None:
        self._told.clear()

    def told_at(self) -> float:
        """Waits for it. Seconds since 1970."""
        if not self._told.wait(GIVE_UP_S):
            raise TimeoutError("the alert was never notified")
        return self._at

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _ends(alert: dict[str, str]) -> float:
    from datetime import datetime

    return datetime.fromisoformat(alert["endsAt"]).timestamp()


def measure(trials: int, rng: random.Random) -> Latencies:
    """Crosses the threshold `trials` times, at random moments between two evaluations (1 s apart)."""
    found, ears = Latencies(), Ears()
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder) / "latency.rules.yaml"
        rules.write_text(json.dumps(RULES), encoding="utf-8")
        config = {"rules": [str(rules)], "responses": [], "alertmanagers": [{"url": ears.url}]}
        try:
            with sidecar(config) as live, trainer(live.socket) as scripted:
                for _ in range(trials):
                    _trial(live, scripted, ears, found, rng)
        finally:
            ears.close()
    return found


def _trial(live: Live, scripted: Trainer, ears: Ears, found: Latencies, rng: random.Random) -> None:
    _until(live, firing=False)
    time.sleep(rng.random())
    ears.forget()
    crossed = scripted.tell(loss=10)
    found.firing.append(_until(live, firing=True) - crossed)
    found.notified.append(ears.told_at() - crossed)
    scripted.tell(loss=1)


def _until(live: Live, *, firing: bool) -> float:
    until = time.monotonic() + GIVE_UP_S
    while time.monotonic() < until:
        alerts = json.loads(live.get("/api/v1/alerts"))["data"]["alerts"]
        if any(a["state"] == "firing" for a in alerts) == firing:
            return time.time()
        time.sleep(0.01)
    raise TimeoutError(f"the alert {'never fired' if firing else 'never ended'}")

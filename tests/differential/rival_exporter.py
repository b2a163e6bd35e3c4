"""What both engines watch: an exporter that gives new values at every scrape and remembers them all."""

from __future__ import annotations

import math
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, math.inf)


class World:
    """Values that wander, jump, reset, vanish and come back; one `step` a scrape."""

    def __init__(self, seed):
        self._rng = random.Random(seed)
        self._load = {rank: 50.0 for rank in range(4)}
        self._requests = {(rank, code): 0.0 for rank in range(3) for code in ("200", "500")}
        self._buckets = dict.fromkeys(BOUNDS, 0)
        self._seconds = 0.0
        self._waves = {name: (0, 0) for name in ("short", "long", "flaky 0", "flaky 1", "rank 3", "slow", "odd")}

    def _wave(self, name, longest):
        """0 or 1, turning over after a random number of steps."""
        value, left = self._waves[name]
        if left == 0:
            value, left = 1 - value, self._rng.randint(1, longest)
        self._waves[name] = value, left - 1
        return value

    def step(self):
        """{(metric, ((label, value), …)): value}"""
        rng, out = self._rng, {}
        for kind, longest in (("short", 8), ("long", 16)):
            out["burst", (("kind", kind),)] = float(self._wave(kind, longest))
        third = self._wave("rank 3", 12)
        for rank in self._load:
            wandered = self._load[rank] + rng.gauss(0, 12)
            # thrown back at the limits, not held there: which of two equal values topk picks is left open
            self._load[rank] = -wandered if wandered < 0 else 200 - wandered if wandered > 100 else wandered
            if rank < 3 or third:
                out["load", (("rank", str(rank)),)] = self._load[rank]
                out["team_info", (("rank", str(rank)), ("team", "ab"[rank % 2]))] = 1.0
        for key in self._requests:
            reset = rng.random() < 0.03
            self._requests[key] = 0.0 if reset else self._requests[key] + rng.randint(0, 20)
            out["requests_total", (("code", key[1]), ("rank", str(key[0])))] = self._requests[key]
        odd = self._wave("odd", 10)
        for rank in range(2):
            extreme = rng.choice([math.nan, math.inf, -math.inf, -7.5])
            out["temperature", (("rank", str(rank)),)] = extreme if odd and rank else rng.uniform(-10, 20)
        for rank in range(2):
            if self._wave(f"flaky {rank}", 6):
                out["flaky", (("rank", str(rank)),)] = rng.uniform(0, 1)
        self._observe(rng, out)
        return out

    def _observe(self, rng, out):
        slow = self._wave("slow", 15)
        for _ in range(rng.randint(0, 9)):
            seconds = rng.expovariate(3 if slow else 15)
            self._seconds += seconds
            for bound in BOUNDS:
                self._buckets[bound] += seconds <= bound
        for bound, count in self._buckets.items():
            out["latency_seconds_bucket", (("le", "+Inf" if math.isinf(bound) else str(bound)),)] = float(count)
        out["latency_seconds_sum", ()] = self._seconds
        out["latency_seconds_count", ()] = float(self._buckets[math.inf])


class Exporter:
    """Serves the world on loopback. `served[n]` is what the n-th scrape got; `serial` says n.

    Until `begin` is set it gives nothing but the number.
    """

    def __init__(self, seed):
        self.served, self.begin = [], threading.Event()
        world, lock, served, begin = World(seed), threading.Lock(), self.served, self.begin

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                with lock:
                    values = world.step() if begin.is_set() else {}
                    values["serial", ()] = float(len(served))
                    served.append(values)
                body = "".join(sorted(_line(key, value) for key, value in values.items())).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _line(key, value):
    metric, labels = key
    inside = ",".join(f'{name}="{text}"' for name, text in labels)
    number = {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN" if math.isnan(value) else repr(value))
    return f"{metric}{{{inside}}} {number}\n"

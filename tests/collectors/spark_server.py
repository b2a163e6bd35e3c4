"""A server on the loopback that answers like Spark's REST API, from what a test puts on it."""

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

GB = 10**9
_KINDS = ("input", "output", "shuffle_read", "shuffle_write", "result")


class Spark:
    """What is served, and what was asked."""

    def __init__(self):
        self.apps = []  # as the API lists them
        self.stages = {}  # place of an application → stages as the API lists them
        self.summaries = {}  # (place, stage, attempt) → task summary
        self.tasks = {}  # (place, stage, attempt) → tasks
        self.requests = []  # (path below /api/v1, parameters)
        self.answers = {}  # path → (status, headers, body) in its stead

    def application(self, key, name, completed=False, attempt=None):
        one = {"startTime": "2026-11-30T00:00:00.000GMT", "endTimeEpoch": 0, "completed": completed}
        self.apps.append({"id": key, "name": name, "attempts": [one | ({"attemptId": attempt} if attempt else {})]})
        place = f"applications/{key}" + (f"/{attempt}" if attempt else "")
        self.stages[place] = []
        return place

    def stage(self, place, number, most=(), median=(), status="COMPLETE", tasks=10, attempt=0, total=(), running=()):
        """`most`, `median`: bytes by kind, of the finished tasks; `running`: bytes by kind of each task under way."""
        most, median, total = dict(most), dict(median), dict(total)
        done = tasks - len(running) if status != "ACTIVE" or most else 0
        names = {"shuffle_read": "shuffleRead", "shuffle_write": "shuffleWrite"}
        self.stages[place].append(
            {
                "status": status,
                "stageId": number,
                "attemptId": attempt,
                "numTasks": tasks,
                "numActiveTasks": len(running),
                "numCompleteTasks": done,
                "numFailedTasks": 0,
                "numKilledTasks": 0,
                **({"completionTime": f"2026-11-30T00:{number:02d}:00.000GMT"} if status != "ACTIVE" else {}),
                **{
                    "resultSize" if kind == "result" else f"{names.get(kind, kind)}Bytes": total.get(kind, 0)
                    for kind in _KINDS
                },
                "name": "count at Main.scala:7",
                "tasks": None,
            }
        )
        pair = {kind: [float(median.get(kind, 0)), float(most.get(kind, 0))] for kind in _KINDS}
        if done:
            self.summaries[place, number, attempt] = {
                "quantiles": [0.5, 1.0],
                "resultSize": pair["result"],
                "inputMetrics": {"bytesRead": pair["input"], "recordsRead": [1.0, 1.0]},
                "outputMetrics": {"bytesWritten": pair["output"], "recordsWritten": [1.0, 1.0]},
                "shuffleReadMetrics": {"readBytes": pair["shuffle_read"]},
                "shuffleWriteMetrics": {"writeBytes": pair["shuffle_write"]},
            }
        self.tasks[place, number, attempt] = [
            {
                "taskId": n,
                "status": "RUNNING",
                "taskMetrics": {
                    "resultSize": one.get("result", 0),
                    "inputMetrics": {"bytesRead": one.get("input", 0)},
                    "outputMetrics": {"bytesWritten": one.get("output", 0)},
                    # part of it came from other machines
                    "shuffleReadMetrics": {
                        "remoteBytesRead": one.get("shuffle_read", 0) // 4,
                        "localBytesRead": one.get("shuffle_read", 0) - one.get("shuffle_read", 0) // 4,
                    },
                    "shuffleWriteMetrics": {"bytesWritten": one.get("shuffle_write", 0)},
                },
            }
            for n, one in enumerate(running)
        ]

    def answer(self, path, asked):
        if path in self.answers:
            return self.answers[path]
        found = self._find(path.split("/"), asked)
        return (404, {}, b"not found") if found is None else (200, {}, json.dumps(found).encode())

    def _find(self, words, asked):
        if words == ["applications"]:
            wanted = asked.get("status", "") == "completed"
            apps = [a for a in self.apps if a["attempts"][0]["completed"] is wanted]
            return apps[: int(asked.get("limit", 10**9))]
        place, _, rest = "/".join(words).partition("/stages")
        if place not in self.stages:
            return None
        if not rest:
            return [s for s in self.stages[place] if asked.get("status", s["status"]).upper() == s["status"]]
        number, attempt, what = rest.strip("/").split("/")
        key = (place, int(number), int(attempt))
        return self.summaries.get(key) if what == "taskSummary" else self.tasks.get(key)


@contextmanager
def serving():
    """(spark, base URL); ends with all its connections."""
    spark, connections = Spark(), []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self):
            super().setup()
            connections.append(self.connection)

        def do_GET(self):
            url = urlsplit(self.path)
            path, asked = url.path.removeprefix("/api/v1/"), {k: v[0] for k, v in parse_qs(url.query).items()}
            spark.requests.append((path, asked))
            status, headers, body = spark.answer(path, asked)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                self.close_connection = True  # it was too much for the client

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # closing waits for them
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield spark, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(10)
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)  # a driver that ends leaves nobody waiting
            except OSError:
                pass
        server.server_close()

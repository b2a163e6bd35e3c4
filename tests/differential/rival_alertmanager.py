"""One Alertmanager for both: it takes everything and remembers who sent what, `theirs` or `ours`."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Alertmanager:
    """`heard[sender]` is a list of alerts as sent, in order of arrival."""

    def __init__(self):
        self.heard = {"theirs": [], "ours": []}
        heard = self.heard

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                _, sender, rest = self.path.split("/", 2)
                assert rest == "api/v2/alerts"
                heard[sender].extend(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

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

    def messages(self, sender):
        """{labels: [what was said of it, in order]}; times are milliseconds, cut off as in samples."""
        out = {}
        for alert in self.heard[sender]:
            out.setdefault(tuple(sorted(alert["labels"].items())), []).append(
                {
                    "startsAt": milliseconds(alert["startsAt"]),
                    "endsAt": milliseconds(alert["endsAt"]),
                    "annotations": alert.get("annotations", {}),
                    "generatorURL": alert.get("generatorURL", ""),
                }
            )
        return out


def milliseconds(text):
    """Of RFC 3339 with up to nanoseconds."""
    whole, _, rest = text.removesuffix("Z").partition(".")
    seconds = datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp()
    return int(seconds) * 1000 + int(rest[:3].ljust(3, "0") or 0)

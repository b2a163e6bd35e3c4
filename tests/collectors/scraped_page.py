"""A server on the loopback whose page a test sets, for the tests of scraping."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Page:
    """What is served, and what was asked."""

    def __init__(self):
        self.body, self.status, self.headers = b"", 200, {"Content-Type": "text/plain; version=0.0.4"}
        self.requests = []  # (path, headers)
        self.hold = None  # an event that an answer waits for
        self.drip = False  # send the body byte by byte until `hold` is set


@contextmanager
def serving(body="", context=None):
    """(page, address), over TLS with a `context`; ends with all its connections."""
    page = Page()
    page.body = body.encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            page.requests.append((self.path, dict(self.headers)))
            if page.drip:
                self.send_response(200)
                self.send_header("Content-Length", "1000000")
                self.end_headers()
                try:
                    while not page.hold.wait(0.02):
                        self.wfile.write(b"#")
                except OSError:
                    pass  # the client has had enough
                self.close_connection = True
                return
            if page.hold is not None:
                page.hold.wait(30)
            self.send_response(page.status)
            for name, value in {**page.headers, "Content-Length": str(len(page.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(page.body)
            except OSError:
                self.close_connection = True

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *args: None  # a client that refuses the certificate hangs up
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield page, f"127.0.0.1:{server.server_address[1]}"
    finally:
        if page.hold is not None:
            page.hold.set()
        server.shutdown()
        thread.join(10)
        server.server_close()

"""An HTTP object store on the loopback interface that holds a generated image data set and can be made slow.

`GET /dataset` describes the set, `GET /images/<i>` is one image: zlib-compressed uint8 pixels [3, side, side], with
`X-Side` and `X-Class`. `PUT /control` with a JSON object sets `latency_ms` (time to first byte, ± 20 %) and `side`
(pixels of the images served from now on). `GET /stats` counts. Nothing is stored on disk.

An own server on asyncio instead of `http.server` or an ASGI server: it must leave the cores to the training run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

SIDES = (32, 1024)  # thumbnails, and originals that cost a core about 15 ms to decode
PICTURES = 64  # distinct pictures; image i shows picture i modulo this
CLASSES = 10
MAX_HEAD = 16_384  # bytes of request line and headers
MAX_BODY = 65_536  # bytes of a control request
JITTER = 0.2


@dataclass(slots=True)
class Behaviour:
    """What can be changed while the store runs."""

    latency_ms: float = 2.0
    side: int = SIDES[0]

    def change(self, wanted: object) -> None:
        """Raises ValueError with what is accepted."""
        if not isinstance(wanted, dict) or not wanted.keys() <= {"latency_ms", "side"}:
            raise ValueError("want a JSON object with latency_ms and/or side")
        latency, side = wanted.get("latency_ms", self.latency_ms), wanted.get("side", self.side)
        if isinstance(latency, bool) or not isinstance(latency, int | float) or not 0 <= latency <= 60_000:
            raise ValueError(f"latency_ms is {latency!r}, want milliseconds from 0 to 60000")
        if side not in SIDES:
            raise ValueError(f"side is {side!r}, want one of {', '.join(map(str, SIDES))}")
        self.latency_ms, self.side = float(latency), int(side)


@dataclass(slots=True)
class Stats:
    """Counts since the start."""

    requests: int = 0
    images: int = 0
    bytes_sent: int = 0
    errors: int = 0
    connections: int = 0  # open now


class ImageSet:
    """`images` objects over a few distinct pictures: coloured gradients with noise, one gradient per class."""

    def __init__(self, images: int, seed: int) -> None:
        self.images = images
        random_ = np.random.default_rng(seed)
        slopes = random_.uniform(-1, 1, (CLASSES, 3, 2))
        y, x = np.mgrid[-1:1:32j, -1:1:32j]
        self.classes = [int(c) for c in random_.integers(0, CLASSES, PICTURES)]
        self._pictures = []
        for c in self.classes:
            plane = slopes[c, :, :1, None] * x + slopes[c, :, 1:, None] * y
            noisy = 128 + 60 * plane + random_.normal(0, 12, plane.shape)
            self._pictures.append(np.clip(noisy, 0, 255).astype(np.uint8))
        self._bodies: dict[tuple[int, int], bytes] = {}

    def answer(self, index: int, side: int) -> bytes:
        """The whole HTTP answer for one image. Raises IndexError outside the set."""
        if not 0 <= index < self.images:
            raise IndexError(index)
        key = (index % PICTURES, side)
        if key not in self._bodies:
            picture, times = self._pictures[key[0]], side // 32
            body = zlib.compress(picture.repeat(times, axis=1).repeat(times, axis=2).tobytes(), 1)
            headers = {"X-Side": str(side), "X-Class": str(self.classes[key[0]])}
            self._bodies[key] = _answer(200, body, "application/octet-stream", headers)
        return self._bodies[key]


_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 431: "Head Too Large"}


def _answer(status: int, body: bytes, kind: str = "application/json", headers: dict[str, str] | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _json(status: int, value: object) -> bytes:
    return _answer(status, json.dumps(value).encode() + b"\n")


class ObjectStore:
    """What the store answers, apart from the wire: `handle` gives the bytes to send and after how many seconds."""

    def __init__(self, images: int, seed: int) -> None:
        self.set = ImageSet(images, seed)
        self.behaviour = Behaviour()
        self.stats = Stats()
        self._random = random.Random(seed)

    def handle(self, method: str, path: str, body: bytes) -> tuple[bytes, float]:
        """One request. Control and description answer at once, whatever the latency."""
        self.stats.requests += 1
        if path.startswith("/images/"):
            return self._image(method, path.removeprefix("/images/"))
        if path == "/dataset" and method == "GET":
            return _json(200, {"images": self.set.images, "classes": CLASSES}), 0
        if path == "/stats" and method == "GET":
            return _json(200, asdict(self.stats) | asdict(self.behaviour)), 0
        if path == "/control" and method == "PUT":
            try:
                self.behaviour.change(json.loads(body))
            except ValueError as e:
                return self.refuse(400, f"control: {e}"), 0
            return _json(200, asdict(self.behaviour)), 0
        if path in ("/dataset", "/stats", "/control"):
            return self.refuse(405, f"{path} does not take {method}"), 0
        return self.refuse(404, f"no {path}; there are /dataset, /images/<i>, /control and /stats"), 0

    def _image(self, method: str, name: str) -> tuple[bytes, float]:
        if method != "GET":
            return self.refuse(405, "images are read-only"), 0
        try:
            answer = self.set.answer(int(name), self.behaviour.side)
        except (ValueError, IndexError):
            return self.refuse(404, f"no image {name[:40]!r}; there are 0 to {self.set.images - 1}"), 0
        self.stats.images += 1
        return answer, self.behaviour.latency_ms / 1000 * self._random.uniform(1 - JITTER, 1 + JITTER)

    def refuse(self, status: int, message: str) -> bytes:
        """A counted error answer."""
        self.stats.errors += 1
        return _json(status, {"error": message})


class Connection(asyncio.Protocol):
    """One kept-alive HTTP/1.1 connection; requests on it are answered one after the other."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._received = b""
        self._busy = False
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._store.stats.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._store.stats.connections -= 1

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._answer_all()
        if len(self._received) > MAX_HEAD + MAX_BODY:
            self._transport.pause_reading()

    def _answer_all(self) -> None:
        while not self._busy and not self._closing and self._answer_one():
            pass
        if not self._closing:
            self._transport.resume_reading()

    def _answer_one(self) -> bool:
        """Whether there was a whole request to answer."""
        head, separator, rest = self._received.partition(b"\r\n\r\n")
        if len(head) > MAX_HEAD:
            return self._give_up(431, f"more than {MAX_HEAD} bytes before the end of the headers")
        if not separator:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        words = first.split(" ")
        length = headers.get("content-length", "0")
        if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
            return self._give_up(400, "not an HTTP/1 request line")
        if "transfer-encoding" in headers or not length.isascii() or not length.isdigit() or int(length) > MAX_BODY:
            return self._give_up(400, f"want a Content-Length of at most {MAX_BODY} bytes")
        if len(rest) < int(length):
            return False
        self._received = rest[int(length) :]
        answer, delay = self._store.handle(words[0], words[1], rest[: int(length)])
        last = words[2] == "HTTP/1.0" or headers.get("connection", "").lower() == "close"
        if delay:
            self._busy = True
            asyncio.get_running_loop().call_later(delay, self._send_late, answer, last)
        else:
            self._send(answer, last)
        return True

    def _send(self, answer: bytes, last: bool) -> None:
        if self._transport.is_closing():
            return
        self._store.stats.bytes_sent += len(answer)
        self._transport.write(answer)
        if last:
            self._closing = True
            self._transport.close()

    def _send_late(self, answer: bytes, last: bool) -> None:
        self._busy = False
        self._send(answer, last)
        self._answer_all()

    def _give_up(self, status: int, message: str) -> bool:
        self._send(self._store.refuse(status, message), last=True)
        return False


async def serve(store: ObjectStore, host: str, port: int) -> asyncio.Server:
    """Listens; the caller closes. Port 0 takes a free one."""
    return await asyncio.get_running_loop().create_server(lambda: Connection(store), host, port)


async def _until_told(store: ObjectStore, host: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    server = await serve(store, host, port)
    bound = server.sockets[0].getsockname()
    sys.stdout.write(json.dumps({"url": f"http://{bound[0]}:{bound[1]}"}) + "\n")
    sys.stdout.flush()
    await told.wait()
    server.close()  # not waited for: kept-alive connections would hold it open


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m sidecar.cli.demo.store`: prints one JSON line with its URL, then serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(
        prog="python -m sidecar.cli.demo.store", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT")
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--latency-ms", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    host, _, port = args.listen.rpartition(":")
    if not host or not port.isdigit():
        parser.error(f"--listen {args.listen}: want HOST:PORT")
    store = ObjectStore(args.images, args.seed)
    store.behaviour.change({"latency_ms": args.latency_ms})
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_until_told(store, host, int(port)))


if __name__ == "__main__":
    main()

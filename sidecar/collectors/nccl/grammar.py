"""A log of NCCL, PyTorch or both → events, line by line and fast: a backlog of a whole run must not take the sidecar.

Prefixes of launchers (mpirun, Ray, torchrun), colours and timestamps may stand before the header; lines of the
program itself give no event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sidecar.collectors.nccl import events, messages, synthetic, watchdog
from sidecar.collectors.nccl.events import Event, Header, Meaning
from sidecar.collectors.nccl.warnings import warn

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_REPEATED = re.compile(r"\s*\[repeated (\d+)x across cluster\].*$")
_HEADER = re.compile(
    r"(?:\[(?P<timestamp>[^\[\]]*\d\d:\d\d[^\[\]]*)\] ?)?"
    r"(?P<host>[^\s:\[\]()]+|<[^>]+>):(?P<pid>\d+):(?P<tid>\d+)"
    r"(?: \[(?P<device>-?\d+)\])?(?P<trace> \d+\.\d+ \S+:\d+)?(?: (?P<where>\S+:\d+)(?: \([^()]*\))?)?$"
)
_LEVELS = ("INFO", "WARN", "CALL", "TRACE", "ABORT", "VERSION")
_NUMBER_LENGTH = 18  # longer digits are no pid
_LINE_LENGTH = 4096  # NCCL cuts its own lines at 1024 bytes; and Python refuses to read a number of 4300 digits
_CACHED = 4096  # entries of each cache: a job prints a few headers and a few hundred different messages


class LogParser:
    """Keeps what repeats: few processes print most lines, and most messages come from every rank in the same words."""

    def __init__(self) -> None:
        self._headers: dict[str, tuple[Header, str] | None] = {}
        self._meanings: dict[str, Meaning] = {}

    def parse(self, text: str, first_line: int = 1) -> Iterator[Event]:
        """The events of whole lines, `first_line` being the number of the first. Raises nothing, whatever the text."""
        if "\x1b" in text:
            text = _ANSI.sub("", text)
        for number, line in enumerate(text.split("\n"), first_line):
            at = line.find(" NCCL ")
            if len(line) > _LINE_LENGTH:
                line = line[:_LINE_LENGTH]
            if 0 < at < _LINE_LENGTH:
                event = self._nccl(line, at, number)
            elif "NCCL" in line:
                event = self._beside(line, number)
            else:
                continue
            if event is not None:
                yield event

    def _nccl(self, line: str, at: int, number: int) -> Event | None:
        prefix = line[:at]
        known = self._headers.get(prefix, _UNSEEN)
        if known is _UNSEEN:
            known = self._header(prefix)
        if known is None:
            return self._beside(line, number)
        header, where = known
        rest = line[at + 6 :]
        repeated = 1
        if rest[-1:] == "\r":
            rest = rest[:-1]
        if "[repeated " in rest and (found := _REPEATED.search(rest)) is not None:
            rest, repeated = rest[: found.start()], int(found[1][:_NUMBER_LENGTH])
        body = self._meanings.get(rest)
        if body is None:
            level, _, message = rest.partition(" ")
            if level not in _LEVELS:
                return None
            body = self._meaning(level, message, where, rest)
        elif where and isinstance(body, events.Warn):
            body = warn(body.message, where)
        return Event(number, header, body, repeated)

    def _meaning(self, level: str, message: str, where: str, rest: str) -> Meaning:
        if level == "INFO":
            if message.find(": opCount ", 0, 64) > 0 and (enqueued := messages.collective(message)) is not None:
                return enqueued  # every one is different: not worth keeping
            body = messages.meaning(message) or events.Other(level, message)
        elif level == "WARN":
            body = warn(message, where)
        elif level == "CALL":
            body = events.Call(message)
        else:
            body = events.Other(level, message)
        if len(self._meanings) >= _CACHED:
            self._meanings.clear()
        self._meanings[rest] = body
        return body

    def _header(self, prefix: str) -> tuple[Header, str] | None:
        found = _HEADER.search(prefix)
        known = None
        if found is not None and max(len(found["pid"]), len(found["tid"])) <= _NUMBER_LENGTH:
            device = found["device"]
            header = Header(
                found["host"],
                int(found["pid"]),
                int(found["tid"]),
                -1 if device is None or len(device) > _NUMBER_LENGTH else int(device),
                found["timestamp"] or "",
            )
            known = (header, found["where"] or "")
        if len(self._headers) >= _CACHED:
            self._headers.clear()
        self._headers[prefix] = known
        return known

    def _beside(self, line: str, number: int) -> Event | None:
        """Lines without NCCL's header: its version, PyTorch's watchdog, and the demonstrations'."""
        body: Meaning | None = watchdog.meaning(line)
        if body is None and (at := line.find("NCCL version ")) >= 0 and not line[:at].strip(" \t\r").rpartition(" ")[2]:
            body = messages.version(line[at:])
        if body is None and ("time=" in line or "Timed out waiting for GPU" in line):
            body = synthetic.meaning(line)
        return None if body is None else Event(number, None, body)


_UNSEEN: tuple[Header, str] = (Header("", -1, -1, -1), "")  # what no log can hold: a pid below zero

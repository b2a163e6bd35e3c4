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
# NCCL cuts its own lines at 1024 bytes, PyTorch's are no longer, and what a launcher puts before and behind them is
# short. So no more is looked at: on a line made to do harm an expression takes the square of its length.
_LINE_LENGTH = 2048
_PREFIX_LENGTH = 256
_LONG = 110  # characters; most longer messages are collectives, which are looked at before the cache
_LAUNCHER_ENDS = ":)]>|"  # the last character of what launchers put before a line
_CACHED = 4096  # entries of each cache: a job prints a few headers and a few hundred different messages


class LogParser:
    """Keeps what repeats: few processes print most lines, and most messages come from every rank in the same words."""

    def __init__(self) -> None:
        self._headers: dict[str, tuple[Header, str] | None] = {}
        self._meanings: dict[str, Meaning] = {}

    def parse(self, text: str, first_line: int = 1) -> Iterator[Event]:
        """The events of whole lines, `first_line` being the number of the first. Raises nothing, whatever the text."""
        text = _plain(text)
        repeats = "[repeated " in text
        headers, meanings = self._headers, self._meanings
        make = tuple.__new__  # of a named tuple, without the function that its class puts around it
        for number, line in enumerate(text.split("\n"), first_line):
            at = line.find(" NCCL ")
            if len(line) > _LINE_LENGTH:
                line = line[:_LINE_LENGTH]
            known = headers.get(line[:at], _UNSEEN) if 0 < at < _LINE_LENGTH else None
            if known is _UNSEEN:
                known = self._header(line[:at])
            if known is None:
                if "NCCL" in line and (beside := self._beside(line, number)) is not None:
                    yield beside
                continue
            rest = line[at + 6 :]
            times = 1
            if repeats and (found := _REPEATED.search(rest)) is not None:
                rest, times = rest[: found.start()], int(found[1][:_NUMBER_LENGTH])
            header, where = known
            body = None if len(rest) > _LONG else meanings.get(rest)
            if body is None or (where and type(body) is events.Warn):
                body = self._body(rest, where)
            if body is not None:
                yield make(Event, (number, header, body, times))

    def _body(self, rest: str, where: str) -> Meaning | None:
        """What follows `NCCL`: the level, then the message. None for a level there is not."""
        if (
            rest.find(": opCount ", 5, 64) > 0
            and rest.startswith("INFO ")
            and (enqueued := messages.collective(rest[5:])) is not None
        ):
            return enqueued  # every one is different: not worth keeping
        body = self._meanings.get(rest)
        if body is None:
            level, _, message = rest.partition(" ")
            return self._meaning(level, message, where, rest) if level in _LEVELS else None
        return warn(body.message, where) if where and isinstance(body, events.Warn) else body

    def _meaning(self, level: str, message: str, where: str, rest: str) -> Meaning:
        if level == "INFO":
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
        found = _HEADER.search(prefix[-_PREFIX_LENGTH:])
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
        if body is None and (at := line.find("NCCL version ")) >= 0:
            before = line[:at].rstrip()
            if not before or before[-1] in _LAUNCHER_ENDS:  # and not in the middle of a sentence
                body = messages.version(line[at:])
        if body is None and ("time=" in line or "Timed out waiting for GPU" in line):
            body = synthetic.meaning(line)
        return None if body is None else Event(number, None, body)


def _plain(text: str) -> str:
    """Without colours, and with one kind of line end."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text.replace("\r\n", "\n") if "\r\n" in text else text


_UNSEEN: tuple[Header, str] = (Header("", -1, -1, -1), "")  # what no log can hold: a pid below zero

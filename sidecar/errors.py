"""Every exception the sidecar raises on purpose, as one tree.

SpikewatchError
├── ConfigError        a file the user wrote is wrong; carries every problem found, not only the first
├── QueryError         an expression cannot be parsed or evaluated
├── TemplateError      an annotation or label template cannot be parsed or expanded
├── PluginError        a plugin is missing, a duplicate, or breaks its contract
├── CollectError       a collector could not take its sample
├── StateError         the state database cannot be used
├── RemoteError        a server that was asked for data cannot be reached or answers something else
├── ResponseError      an approval or another word about a response cannot be taken
├── RequestError       an HTTP request asks for what cannot be given
└── ChannelError       the trainer's end of the channel misbehaved
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal


def shown_url(url: str) -> str:
    """What may be shown of an address, also of one that makes no sense: without a user and password in it."""
    return re.sub(r"^([a-zA-Z][a-zA-Z0-9+.-]*://)?.*@", r"\1***@", url, flags=re.DOTALL)


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding about a file: where it is and what to do about it. Lines and columns count from 1; 0 is unknown."""

    file: str
    line: int
    column: int
    message: str
    level: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{where}: {self.level}: {self.message}"


class SpikewatchError(Exception):
    """The root: catching it catches everything we raise on purpose and nothing else."""


class ConfigError(SpikewatchError):
    """A user's file was refused. `problems` lists everything that is wrong with it."""

    def __init__(self, problems: list[Problem] | tuple[Problem, ...]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


class QueryError(SpikewatchError):
    """An expression was refused. `offset` counts characters from 0 where known, else -1."""

    def __init__(self, message: str, expr: str = "", offset: int = -1) -> None:
        self.expr, self.offset = expr, offset
        super().__init__(message)


class TemplateError(SpikewatchError):
    """A template was refused or could not be expanded. `offset` counts characters from 0 where known, else -1."""

    def __init__(self, message: str, offset: int = -1) -> None:
        self.offset = offset
        super().__init__(message)


class PluginError(SpikewatchError):
    """A plugin could not be registered or used; `plugin` is its name."""

    def __init__(self, plugin: str, message: str) -> None:
        self.plugin = plugin
        super().__init__(f"{plugin}: {message}")


class CollectError(SpikewatchError):
    """A sample could not be taken. `reason` is machine-readable and becomes a label value."""

    def __init__(self, collector: str, reason: str, message: str = "") -> None:
        self.collector, self.reason = collector, reason
        super().__init__(f"{collector}: {message or reason}")


class StateError(SpikewatchError):
    """The state database cannot be opened, read or written."""


class RemoteError(SpikewatchError):
    """A server that was asked for data gave none: the message names it and says what to try."""


class ResponseError(SpikewatchError):
    """An approval, rejection or reset names nothing that could take it; the message says what there is."""


class RequestError(SpikewatchError):
    """An HTTP request is refused. `status` is its HTTP status, `kind` what Prometheus's API calls such an error."""

    def __init__(self, message: str, status: int = 400, kind: str = "bad_data") -> None:
        self.status, self.kind = status, kind
        super().__init__(message)


class ChannelError(SpikewatchError):
    """A peer on the trainer channel sent something we refuse."""

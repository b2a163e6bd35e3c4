"""YAML that remembers where everything stood, so that every complaint can say file:line:column."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from sidecar.errors import ConfigError, Problem
from sidecar.wording import plain

Path_ = tuple[str | int, ...]
_M = TypeVar("_M", bound=BaseModel)

MAX_BYTES = 4 << 20  # a rule file of 4 MiB is a mistake
MAX_NODES = 1_000_000  # aliases multiply: without a bound, a few lines can describe billions of values


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """Only used for resolving and constructing scalars."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A position, counted from 1."""

    line: int
    column: int


class Document:
    """The first YAML document of a file: plain values and, for each path, where its key and value stood."""

    def __init__(self, file: str, text: str) -> None:
        """Raises ConfigError for bad YAML, duplicate keys, aliases, or anything that is no mapping/sequence/scalar."""
        self.file, self.text = file, text
        self._values: dict[Path_, Mark] = {}
        self._keys: dict[Path_, Mark] = {}
        self._problems: list[Problem] = []
        self._nodes = 0
        self._at = Mark(1, 1)
        self._open: set[int] = set()
        if len(text) > MAX_BYTES:
            raise ConfigError([Problem(file, 0, 0, f"larger than {MAX_BYTES >> 20} MiB")])
        loader = _Loader(text)
        try:
            if loader.check_node():
                self.node = loader.get_node()
            else:
                self.node = None
            self.value: Any = None if self.node is None else self._build(loader, self.node, ())
            self._more = self.node is not None and _goes_on(loader)
        except yaml.MarkedYAMLError as e:
            mark = e.problem_mark or e.context_mark
            line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
            raise ConfigError([Problem(file, line, column, f"not valid YAML: {e.problem}")]) from None
        except yaml.reader.ReaderError as e:
            line, column = _place(text[: e.position])
            what = f"character U+{ord(text[e.position]):04X} is not allowed" if e.position < len(text) else e.reason
            raise ConfigError([Problem(file, line, column, f"not valid YAML: {what}")]) from None
        except yaml.YAMLError as e:
            raise ConfigError([Problem(file, 1, 1, f"not valid YAML: {e}")]) from None
        except RecursionError:
            raise ConfigError([Problem(file, self._at.line, self._at.column, "nested too deeply")]) from None
        finally:
            loader.dispose()
        if self._problems:
            raise ConfigError(self._problems)

    @classmethod
    def read(cls, path: Path) -> Document:
        """Raises ConfigError when the file cannot be read."""
        try:
            kind = os.stat(path).st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind) or str(path) == "/dev/stdin"):
                # Reading a pipe that nobody writes to would wait for ever.
                raise ConfigError([Problem(str(path), 0, 0, "cannot be read: not a regular file")])
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)  # never all of a file that is there by mistake: memory is shared
            if len(content) > MAX_BYTES:
                raise ConfigError([Problem(str(path), 0, 0, f"larger than {MAX_BYTES >> 20} MiB")])
        except ValueError as e:  # a NUL in the name
            raise ConfigError([Problem(str(path), 0, 0, f"cannot be read: {e}")]) from None
        except OSError as e:
            raise ConfigError([Problem(str(path), 0, 0, f"cannot be read: {e.strerror}")]) from None
        try:
            # Line ends as Python's text files have them: one character each.
            return cls(str(path), content.decode("utf-8").replace("\r\n", "\n"))
        except UnicodeDecodeError as e:
            line, column = _place(content[: e.start].decode("utf-8", "replace"))
            raise ConfigError([Problem(str(path), line, column, f"not UTF-8 at byte {e.start}")]) from None

    def _build(self, loader: Any, node: yaml.Node, path: Path_) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise yaml.MarkedYAMLError(problem="more values than make sense", problem_mark=node.start_mark)
        if id(node) in self._open:
            raise yaml.MarkedYAMLError(problem="an alias that contains itself", problem_mark=node.start_mark)
        self._open.add(id(node))
        self._at = Mark(node.start_mark.line + 1, node.start_mark.column + 1)
        try:
            return self._construct(loader, node, path)
        finally:
            self._open.discard(id(node))

    def _construct(self, loader: Any, node: yaml.Node, path: Path_) -> Any:
        self._values.setdefault(path, Mark(node.start_mark.line + 1, node.start_mark.column + 1))
        if isinstance(node, yaml.SequenceNode):
            return [self._build(loader, child, (*path, i)) for i, child in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            out: dict[str, Any] = {}
            for key_node, value_node in node.value:
                mark = Mark(key_node.start_mark.line + 1, key_node.start_mark.column + 1)
                if not isinstance(key_node, yaml.ScalarNode):
                    self._problems.append(self._problem(mark, "a key must be plain text"))
                    continue
                key = key_node.value
                if key in out:
                    self._problems.append(self._problem(mark, f"key {key!r} is given twice"))
                self._keys[(*path, key)] = mark
                # Go's reader does not look at what is under a null key.
                unseen = key_node.tag == "tag:yaml.org,2002:null"
                out[key] = None if unseen else self._build(loader, value_node, (*path, key))
            return out
        try:
            value = loader.construct_object(node)
            return value if value is None or isinstance(value, str | int | float | date) else node.value
        # A tag that the text does not fit, like `!!bool maybe`, trips PyYAML in many ways; then it is plain text.
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError, yaml.YAMLError):
            return node.value

    def _problem(self, mark: Mark, message: str) -> Problem:
        return Problem(self.file, mark.line, mark.column, message)

    def at(self, path: Iterable[str | int]) -> Mark:
        """Where the value at `path` starts; the nearest enclosing one where `path` itself does not exist."""
        p = tuple(path)
        while p and p not in self._values:
            p = p[:-1]
        return self._values.get(p, Mark(1, 1))

    def key_at(self, path: Iterable[str | int]) -> Mark:
        """Where the key of `path` starts; falls back to `at`."""
        p = tuple(path)
        return self._keys.get(p) or self.at(p)

    def problem(self, path: Iterable[str | int], message: str, *, key: bool = False, level: str = "error") -> Problem:
        """A Problem at the value (or, with `key`, at the key) of `path`."""
        mark = self.key_at(path) if key else self.at(path)
        return Problem(self.file, mark.line, mark.column, message, "warning" if level == "warning" else "error")

    def raw(self, path: Iterable[str | int]) -> str | None:
        """The scalar at `path` exactly as written, before YAML types apply; None if it is no scalar."""
        node: Any = self.node
        for step in path:
            if isinstance(node, yaml.MappingNode):
                node = next((v for k, v in node.value if k.value == step), None)
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
            else:
                return None
        return node.value if isinstance(node, yaml.ScalarNode) else None

    def validate(self, model: type[_M], path: Path_ = ()) -> _M:
        """The value at `path` as a pydantic model. Raises ConfigError with every finding, located."""
        value: Any = self.value
        for step in path:
            value = value[step]
        if surplus := self.surplus():
            raise ConfigError(surplus)
        try:
            return model.model_validate({} if value is None else value)
        except ValidationError as e:
            raise ConfigError(self.located(e, path, _keys_of(model))) from None

    def surplus(self) -> list[Problem]:
        """A complaint about a second document, which nobody would read. Prometheus ignores it in rule files."""
        if not self._more:
            return []
        line = next((n for n, text in enumerate(self.text.splitlines(), 1) if n > 1 and text.startswith("---")), 1)
        return [Problem(self.file, line, 1, "a second document is not read: put it into a file of its own")]

    def located(self, error: ValidationError, path: Path_ = (), keys: Iterable[str] = ()) -> list[Problem]:
        """pydantic's findings as Problems of this file. An unknown key that is nearly one of `keys` gets a hint."""
        found = []
        for item in error.errors(include_url=False):
            loc = (*path, *item["loc"])
            unknown = item["type"] == "extra_forbidden"
            name = ".".join(str(p) for p in loc) or "document"
            message = f"{name}: {plain(item, self.raw(loc))}"
            if unknown:
                message = f"unknown key {loc[-1]!r}{_hint(loc[-1], keys)}"
            found.append(self.problem(loc, message, key=unknown or item["type"] == "missing"))
        return found


def _keys_of(model: type[BaseModel]) -> frozenset[str]:
    """Every key that may stand in a file of this shape, at whatever depth."""
    found: set[str] = set()
    waiting, seen = [model], {model}
    while waiting:
        for name, field in waiting.pop().model_fields.items():
            found.add(field.alias or name)
            for kind in (field.annotation, *get_args(field.annotation)):
                if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
                    seen.add(kind)
                    waiting.append(kind)
    return frozenset(found)


def _hint(key: object, keys: Iterable[str]) -> str:
    near = get_close_matches(str(key), sorted(keys), 1)
    return f" (did you mean {near[0]}?)" if near else ""


def _goes_on(loader: Any) -> bool:
    try:
        return bool(loader.check_node())
    except yaml.YAMLError:
        return True  # something is there, if no YAML


def _place(before: str) -> tuple[int, int]:
    """Line and column that follow a text."""
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1

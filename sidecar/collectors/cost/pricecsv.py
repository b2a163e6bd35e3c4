"""Prices from a CSV file of anybody's: columns by name, every mistake with its line and column."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pydantic import ValidationError

from sidecar.collectors.cost.pricebook import Price
from sidecar.errors import ConfigError, Problem
from sidecar.wording import plain

NEEDED = ("instance_type", "usd_per_hour")
KNOWN = tuple(Price.model_fields)
_MAX_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class _Field:
    text: str
    column: int  # of the line, from 1


def read(path: Path, today: date) -> list[Price]:
    """Prices of a CSV file; without a column `as_of` they are of `today`, without `source` from this file.

    Raises ConfigError with every mistake.
    """
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait for its writer
            raise ConfigError([Problem(str(path), 0, 0, "cannot be read: not a regular file")])
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError([Problem(str(path), 0, 0, f"larger than {_MAX_BYTES >> 20} MiB")])
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as e:
        raise ConfigError([Problem(str(path), 0, 0, f"not UTF-8 at byte {e.start}")]) from None
    except OSError as e:
        raise ConfigError([Problem(str(path), 0, 0, f"cannot be read: {e.strerror}")]) from None
    return _File(str(path), today).read(text.splitlines())


class _File:
    def __init__(self, name: str, today: date) -> None:
        self._name, self._today = name, today
        self._problems: list[Problem] = []

    def read(self, lines: Sequence[str]) -> list[Price]:
        header = self._header(lines)
        found: dict[tuple[str, str, str], Price] = {}
        for number, line in enumerate(lines[1:], start=2):
            if line.strip() and (price := self._price(header, number, line)) is not None:
                if price.key in found:
                    self._complain(number, 1, f"{' '.join(filter(None, price.key))} is there twice")
                found[price.key] = price
        if self._problems:
            raise ConfigError(self._problems)
        return list(found.values())

    def _header(self, lines: Sequence[str]) -> list[str]:
        fields = self._fields(1, lines[0]) if lines else None
        names = [field.text.strip() for field in fields or ()]
        for field, name in zip(fields or (), names, strict=True):
            if name not in KNOWN:
                self._complain(1, field.column, f"no such column: {name!r} (there are {', '.join(KNOWN)})")
            elif names.count(name) > 1:
                self._complain(1, field.column, f"column {name!r} is there twice")
        if missing := [name for name in NEEDED if name not in names]:
            self._complain(1, 1, f"column {' and '.join(missing)} missing: this is no list of prices")
        if self._problems:
            raise ConfigError(self._problems)
        return names

    def _price(self, header: Sequence[str], number: int, line: str) -> Price | None:
        fields = self._fields(number, line)
        if fields is None:
            return None
        if len(fields) != len(header):
            self._complain(number, 1, f"{len(fields)} fields where the header has {len(header)}")
            return None
        given = {name: field.text.strip() for name, field in zip(header, fields, strict=True) if field.text.strip()}
        given.setdefault("as_of", self._today.isoformat())
        given.setdefault("source", Path(self._name).name)
        try:
            return Price.model_validate(given)
        except ValidationError as e:
            columns = {name: field.column for name, field in zip(header, fields, strict=True)}
            for item in e.errors(include_url=False):
                name = str(item["loc"][0]) if item["loc"] else ""
                self._complain(number, columns.get(name, 1), f"{name}: {plain(item)}")
            return None

    def _fields(self, number: int, line: str) -> list[_Field] | None:
        """A line's fields; None, and a complaint, where quotes do not close: no price stands on two lines."""
        try:
            (values,) = csv.reader([line], strict=True)
        except (csv.Error, ValueError) as e:
            self._complain(number, 1, f"no CSV: {e}")
            return None
        found, at = [], 0
        for value in values:
            found.append(_Field(value, at + 1))
            at += _width(line[at:]) + 1
        return found

    def _complain(self, line: int, column: int, message: str) -> None:
        self._problems.append(Problem(self._name, line, column, message))


def _width(rest: str) -> int:
    """How many characters of a line its first field takes, quotes included."""
    quoted = False
    for place, character in enumerate(rest):
        if character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            return place
    return len(rest)

"""FOCUS 1.0 to 1.2 exports, CSV (also gzipped) and Parquet, local or wherever fsspec reaches. Strict: no guessing.

Nulls may be empty or the word NULL; times may lack a zone (then they are UTC, as the specification says); tags may be
missing. A value that cannot be read makes its row a problem with row and column.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

from sidecar.collectors.cost.meters import category
from sidecar.collectors.cost.rows import CostRow, RowProblem
from sidecar.errors import CollectError

NEEDED = ("BilledCost", "EffectiveCost", "BillingCurrency", "ChargePeriodStart", "ChargePeriodEnd", "ChargeCategory")
WANTED = (
    *NEEDED, "ChargeClass", "ChargeDescription", "ConsumedQuantity", "ConsumedUnit", "RegionId", "ResourceId",
    "ServiceCategory", "SkuId", "SkuMeter", "SkuPriceDetails", "SubAccountId", "PricingUnit", "PricingQuantity",
)  # fmt: skip
_NULL = frozenset({"", "NULL", "null"})
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_CORES = re.compile(r'"(?:CoreCount|vcpu|vCPU)"\s*:\s*"?(\d+(?:\.\d+)?)')
_BATCH = 20_000


class _Bad(Exception):
    def __init__(self, column: str, problem: str) -> None:
        super().__init__(problem)
        self.column = column


@dataclass(frozen=True, slots=True)
class FocusFile:
    """One export. `opener` opens a path for reading bytes; the default knows local files."""

    path: str
    opener: Callable[[str], IO[bytes]] | None = None

    def rows(self) -> Iterator[CostRow | RowProblem]:
        """Raises CollectError where there is no such file, or it is no FOCUS export."""
        yield from (self._parquet() if self.path.endswith(".parquet") else self._csv())

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        try:
            file = self.opener(self.path) if self.opener is not None else _open_anywhere(self.path)
        except OSError as e:
            raise CollectError("cost", "no_file", f"{self.path}: {e.strerror or e}") from e
        with file:
            yield file

    def _csv(self) -> Iterator[CostRow | RowProblem]:
        with self._open() as raw:
            plain: Any = gzip.GzipFile(fileobj=raw) if self.path.endswith(".gz") else raw
            lines = csv.reader(io.TextIOWrapper(plain, encoding="utf-8-sig", newline=""))
            try:
                header = next(lines, None)
                columns = self._columns(header or [])
                reader = _Reader(self.path, [name for name in WANTED if name in columns])
                places = [columns[name] for name in reader.names]
                width = len(header or [])
                for number, line in enumerate(lines, start=1):
                    if len(line) != width:
                        if line:
                            yield RowProblem(self.path, number, "", f"{len(line)} fields where the header has {width}")
                        continue
                    yield reader.row(number, [line[place] for place in places])
            except (UnicodeDecodeError, csv.Error, OSError, EOFError, zlib.error) as e:
                raise CollectError("cost", "unreadable", f"{self.path}: {e}") from e

    def _parquet(self) -> Iterator[CostRow | RowProblem]:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise CollectError("cost", "no_pyarrow", f"{self.path}: install spikewatch[cluster] for Parquet") from None
        with self._open() as raw:
            try:
                file = pq.ParquetFile(raw)
                columns = self._columns(file.schema_arrow.names)
                reader = _Reader(self.path, [name for name in WANTED if name in columns])
                number = 0
                for batch in file.iter_batches(batch_size=_BATCH, columns=reader.names):
                    for values in zip(*(_plain(column, pa) for column in batch.columns), strict=True):
                        number += 1
                        yield reader.row(number, values)
            except (
                pa.ArrowException,
                OSError,
                ValueError,
                OverflowError,
            ) as e:  # pyarrow raises these, too, for damaged files
                raise CollectError("cost", "unreadable", f"{self.path}: {e}") from e

    def _columns(self, header: Sequence[str]) -> dict[str, int]:
        found = {name.strip(): place for place, name in enumerate(header)}
        missing = [name for name in NEEDED if name not in found]
        if missing:
            raise CollectError("cost", "not_focus", f"{self.path}: no FOCUS export: it lacks {', '.join(missing)}")
        return found


class _Reader:
    """Turns the wanted values of a row into a charge."""

    def __init__(self, path: str, names: list[str]) -> None:
        self._path, self.names = path, names
        self._place = {name: place for place, name in enumerate(names)}
        self._times: dict[str, datetime] = {}  # an export has few different times and meters, and many rows
        self._categories: dict[tuple[str, str, str, str], Any] = {}

    def row(self, number: int, values: Sequence[Any]) -> CostRow | RowProblem:
        try:
            return self._row(values)
        except _Bad as e:
            return RowProblem(self._path, number, e.column, str(e))

    def _row(self, values: Sequence[Any]) -> CostRow:
        text = self._text
        start, end = self._time(values, "ChargePeriodStart"), self._time(values, "ChargePeriodEnd")
        if end < start:
            raise _Bad("ChargePeriodEnd", "the period ends before it begins")
        unit = text(values, "ConsumedUnit") or text(values, "PricingUnit")
        meter = text(values, "SkuMeter") or text(values, "SkuId")
        key = (meter, unit, text(values, "ChargeDescription"), text(values, "ServiceCategory"))
        kind = self._categories.get(key)
        if kind is None:
            if len(self._categories) > 50_000:
                self._categories.clear()
            kind = self._categories[key] = category(*key)
        quantity = self._number(values, "ConsumedQuantity", self._number(values, "PricingQuantity", 0.0))
        return CostRow(
            source="focus",
            resource=text(values, "ResourceId"),
            category=kind,
            meter=meter,
            start=start,
            end=end,
            effective=self._number(values, "EffectiveCost"),
            billed=self._number(values, "BilledCost"),
            currency=self._currency(values),
            quantity=quantity,
            unit=unit,
            usage=text(values, "ChargeCategory") == "Usage",
            correction=text(values, "ChargeClass") == "Correction",
            vcpu_hours=_vcpu_hours(text(values, "SkuPriceDetails"), unit, quantity),
            account=text(values, "SubAccountId"),
            region=text(values, "RegionId"),
        )

    def _text(self, values: Sequence[Any], name: str) -> str:
        place = self._place.get(name)
        value = None if place is None else values[place]
        if value is None:
            return ""
        if not isinstance(value, str):
            return json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)
        return "" if value in _NULL else value

    def _currency(self, values: Sequence[Any]) -> str:
        found = self._text(values, "BillingCurrency")
        if not found:
            raise _Bad("BillingCurrency", "empty, where a currency has to be")
        return found

    def _number(self, values: Sequence[Any], name: str, otherwise: float | None = None) -> float:
        place = self._place.get(name)
        value = None if place is None else values[place]
        if value is None or (isinstance(value, str) and value in _NULL):
            if otherwise is None:
                raise _Bad(name, "empty, where a number has to be")
            return otherwise
        plain = _NUMBER.fullmatch(value) if isinstance(value, str) else isinstance(value, int | float | Decimal)
        if not plain or isinstance(value, bool) or not math.isfinite(number := float(value)):
            raise _Bad(name, f"{str(value)[:40]!r} is no plain number")
        return number

    def _time(self, values: Sequence[Any], name: str) -> datetime:
        value = values[self._place[name]]
        if isinstance(value, datetime):
            return value if value.tzinfo else value.replace(tzinfo=UTC)
        if value is None or (isinstance(value, str) and value in _NULL):
            raise _Bad(name, "empty, where a time has to be")
        if not isinstance(value, str):
            raise _Bad(name, f"a {type(value).__name__}, where a time has to be")
        found = self._times.get(value)
        if found is None:
            try:
                found = datetime.fromisoformat(value)
                found = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
            except (ValueError, OverflowError):  # the latter in another zone than UTC in the years 1 and 9999
                raise _Bad(name, f"{value[:40]!r} is no ISO 8601 time") from None
            if len(self._times) < 100_000:
                self._times[value] = found
        return found


def _vcpu_hours(details: str, unit: str, quantity: float) -> float:
    """From the number of cores in SkuPriceDetails and the hours, or from a unit that counts vCPU hours itself."""
    if "vcpu" in unit.lower() or "core" in unit.lower():
        return quantity
    cores = _CORES.search(details) if details else None
    return float(cores[1]) * quantity if cores and "hour" in unit.lower() else 0.0


def _plain(column: Any, pa: Any) -> list[Any]:
    """A column's values; of times to the nanosecond, which Python has none of, the microseconds."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
    values: list[Any] = column.to_pylist()
    return values


def _open_anywhere(path: str) -> IO[bytes]:
    if "://" not in path:
        if Path(path).exists() and not Path(path).is_file():  # opening a pipe would wait for its writer
            raise CollectError("cost", "no_file", f"{path}: not a regular file")
        return Path(path).open("rb")
    try:
        import fsspec
    except ImportError:
        raise CollectError("cost", "no_fsspec", f"{path}: install spikewatch[cluster] for files elsewhere") from None
    try:
        opened: IO[bytes] = fsspec.open(path, "rb").open()
    except (ValueError, ImportError) as e:  # a protocol that nobody knows, or whose package is not installed
        raise CollectError("cost", "no_protocol", f"{path}: {e}") from None
    return opened

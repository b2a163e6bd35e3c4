"""FOCUS 1.0 to 1.2 exports, CSV (also gzipped) and Parquet, local or wherever fsspec reaches. Strict: no guessing.

Nulls may be empty or the word NULL; times may lack a zone (then they are UTC, as the specification says); tags may be
missing. A value that cannot be read makes its row a problem with row and column.
"""

from __future__ import annotations

import calendar
import csv
import glob
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, TypeVar

from sidecar.collectors.cost.meters import category
from sidecar.collectors.cost.rows import Category, CostRow, RowProblem
from sidecar.collectors.cost.values import BadValue, Values
from sidecar.errors import CollectError

NEEDED = ("BilledCost", "EffectiveCost", "BillingCurrency", "ChargePeriodStart", "ChargePeriodEnd", "ChargeCategory")
WANTED = (
    *NEEDED, "ChargeClass", "ChargeDescription", "ConsumedQuantity", "ConsumedUnit", "RegionId", "ResourceId",
    "ServiceCategory", "SkuId", "SkuMeter", "SkuPriceDetails", "SubAccountId", "PricingUnit", "PricingQuantity",
)  # fmt: skip
_CORES = re.compile(r'"(?:CoreCount|vcpu|vCPU)"\s*:\s*"?(\d+(?:\.\d+)?)')
_MOST_IOPS = re.compile(r'"DiskMaxIops"\s*:\s*"?(\d+(?:\.\d+)?)')
_IOPS_MONTHS = re.compile(r"iops[-/ ]?mo", re.IGNORECASE)
_IOPS_HOURS = re.compile(r"iops[-/ ]?(?:hours?|hrs?)", re.IGNORECASE)
_BATCH = 20_000

_T = TypeVar("_T")
RowMaker = Callable[[int, Sequence[Any]], _T]
"""Makes something of a row: its number, 1 for the first row of data, and the values of the wanted columns."""


@dataclass(frozen=True, slots=True)
class FocusFile:
    """One export. `opener` opens a path for reading bytes; the default knows local files."""

    path: str
    opener: Callable[[str], IO[bytes]] | None = None

    def rows(self) -> Iterator[CostRow | RowProblem]:
        """Raises CollectError where there is no such file, or it is no FOCUS export."""
        yield from self.read(NEEDED, WANTED, lambda names: _Charges(self.path, names).row)

    def read(
        self, needed: Sequence[str], wanted: Sequence[str], maker: Callable[[Sequence[str]], RowMaker[_T]]
    ) -> Iterator[_T | RowProblem]:
        """Of every row what `maker(columns there are of the wanted)` makes of it. Raises CollectError."""
        yield from (self._parquet if self.path.endswith(".parquet") else self._csv)(needed, wanted, maker)

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        try:
            file = self.opener(self.path) if self.opener is not None else _open_anywhere(self.path)
        except OSError as e:
            raise CollectError("cost", "no_file", f"{self.path}: {e.strerror or e}") from e
        with file:
            yield file

    def _csv(
        self, needed: Sequence[str], wanted: Sequence[str], maker: Callable[[Sequence[str]], RowMaker[_T]]
    ) -> Iterator[_T | RowProblem]:
        with self._open() as raw:
            plain: Any = gzip.GzipFile(fileobj=raw) if self.path.endswith(".gz") else raw
            # Strict: a quote that does not close would swallow the rows after it, and half of a bill is none.
            lines = csv.reader(io.TextIOWrapper(plain, encoding="utf-8-sig", newline=""), strict=True)
            try:
                header = next(lines, None)
                columns = self._columns(header or [], needed, wanted)
                names = [name for name in wanted if name in columns]
                make = maker(names)
                places = [columns[name] for name in names]
                width = len(header or [])
                for number, line in enumerate(lines, start=1):
                    if len(line) != width:
                        if line:
                            yield RowProblem(self.path, number, "", f"{len(line)} fields where the header has {width}")
                        continue
                    yield make(number, [line[place] for place in places])
            except csv.Error as e:
                raise CollectError("cost", "unreadable", f"{self.path}: line {lines.line_num}: no CSV: {e}") from e
            except (UnicodeDecodeError, OSError, EOFError, zlib.error) as e:
                raise CollectError("cost", "unreadable", f"{self.path}: {e}") from e

    def _parquet(
        self, needed: Sequence[str], wanted: Sequence[str], maker: Callable[[Sequence[str]], RowMaker[_T]]
    ) -> Iterator[_T | RowProblem]:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise CollectError("cost", "no_pyarrow", f"{self.path}: install spikewatch[cluster] for Parquet") from None
        with self._open() as raw:
            try:
                file = pq.ParquetFile(raw)
                columns = self._columns(file.schema_arrow.names, needed, wanted)
                names = [name for name in wanted if name in columns]
                make = maker(names)
                number = 0
                given = [file.schema_arrow.names[columns[name]] for name in names]  # as written, spaces and all
                for batch in file.iter_batches(batch_size=_BATCH, columns=given):
                    for values in zip(*(_plain(batch.column(name), pa) for name in given), strict=True):
                        number += 1
                        yield make(number, values)
            except (
                pa.ArrowException,
                OSError,
                ValueError,
                OverflowError,
            ) as e:  # pyarrow raises these, too, for damaged files
                raise CollectError("cost", "unreadable", f"{self.path}: {e}") from e

    def _columns(self, header: Sequence[str], needed: Sequence[str], wanted: Sequence[str]) -> dict[str, int]:
        found = {name.strip(): place for place, name in enumerate(header)}
        counted = Counter(name.strip() for name in header)
        if twice := [name for name in wanted if counted[name] > 1]:
            raise CollectError("cost", "not_focus", f"{self.path}: column {', '.join(twice)} is there twice")
        missing = [name for name in needed if name not in found]
        if missing:
            raise CollectError("cost", "not_focus", f"{self.path}: no FOCUS export: it lacks {', '.join(missing)}")
        return found


class _Charges(Values):
    """Turns the wanted values of a row into a charge."""

    def __init__(self, path: str, names: Sequence[str]) -> None:
        super().__init__(names)
        self._path = path
        self._categories: dict[tuple[str, str, str, str], Category] = {}  # an export has few different meters

    def row(self, number: int, values: Sequence[Any]) -> CostRow | RowProblem:
        try:
            return self._row(values)
        except BadValue as e:
            return RowProblem(self._path, number, e.column, str(e))

    def _row(self, values: Sequence[Any]) -> CostRow:
        text = self.text
        start, end = self.time(values, "ChargePeriodStart"), self.time(values, "ChargePeriodEnd")
        if end < start:
            raise BadValue("ChargePeriodEnd", "the period ends before it begins")
        unit = text(values, "ConsumedUnit") or text(values, "PricingUnit")
        meter = text(values, "SkuMeter") or text(values, "SkuId")
        key = (meter, unit, text(values, "ChargeDescription"), text(values, "ServiceCategory"))
        kind = self._categories.get(key)
        if kind is None:
            if len(self._categories) > 50_000:
                self._categories.clear()
            kind = self._categories[key] = category(*key)
        quantity = self.number(values, "ConsumedQuantity", self.number(values, "PricingQuantity", 0.0))
        details = text(values, "SkuPriceDetails")
        return CostRow(
            source="focus",
            resource=text(values, "ResourceId"),
            category=kind,
            meter=meter,
            start=start,
            end=end,
            effective=self.number(values, "EffectiveCost"),
            billed=self.number(values, "BilledCost"),
            currency=self.currency(values),
            quantity=quantity,
            unit=unit,
            usage=text(values, "ChargeCategory") == "Usage",
            correction=text(values, "ChargeClass") == "Correction",
            vcpu_hours=_vcpu_hours(details, unit, quantity),
            iops_hours=_iops_hours(details, unit, quantity, start) if kind is Category.PROVISIONED_IOPS else 0.0,
            account=text(values, "SubAccountId"),
            region=text(values, "RegionId"),
        )


def _vcpu_hours(details: str, unit: str, quantity: float) -> float:
    """From the number of cores in SkuPriceDetails and the hours, or from a unit that counts vCPU hours itself."""
    if "vcpu" in unit.lower() or "core" in unit.lower():
        return quantity
    cores = _CORES.search(details) if details else None
    return float(cores[1]) * quantity if cores and "hour" in unit.lower() else 0.0


def _iops_hours(details: str, unit: str, quantity: float, start: datetime) -> float:
    """From a unit that counts them (months are the calendar's), or from what SkuPriceDetails says of the disk."""
    if _IOPS_MONTHS.search(unit):
        return quantity * 24 * calendar.monthrange(start.year, start.month)[1]
    if _IOPS_HOURS.search(unit):
        return quantity
    most = _MOST_IOPS.search(details) if details else None
    return float(most[1]) * quantity if most and "hour" in unit.lower() else 0.0


def _plain(column: Any, pa: Any) -> list[Any]:
    """A column's values; of times to the nanosecond, which Python has none of, the microseconds."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
    values: list[Any] = column.to_pylist()
    return values


def matching(pattern: str) -> list[str]:
    """The files a pattern stands for; elsewhere by `*` alone, for addresses may hold a `?`. Raises CollectError."""
    if "://" not in pattern:
        return sorted(glob.glob(pattern))
    if "*" not in pattern:
        return [pattern]
    fsspec = _fsspec(pattern)
    try:
        system, path = fsspec.core.url_to_fs(pattern)
        system.invalidate_cache()  # of listings: a file that came since the last reading is one, too
        return sorted(system.unstrip_protocol(found) for found in system.glob(path))
    except (ValueError, ImportError) as e:  # a protocol that nobody knows, or whose package is not installed
        raise CollectError("cost", "no_protocol", f"{pattern}: {e}") from None
    except OSError as e:
        raise CollectError("cost", "no_file", f"{pattern}: {e}") from None


def _fsspec(path: str) -> Any:
    try:
        import fsspec
    except ImportError:
        raise CollectError("cost", "no_fsspec", f"{path}: install spikewatch[cluster] for files elsewhere") from None
    return fsspec


def _open_anywhere(path: str) -> IO[bytes]:
    if "://" not in path:
        if Path(path).exists() and not Path(path).is_file():  # opening a pipe would wait for its writer
            raise CollectError("cost", "no_file", f"{path}: not a regular file")
        return Path(path).open("rb")
    fsspec = _fsspec(path)
    try:
        opened: IO[bytes] = fsspec.open(path, "rb").open()
    except (ValueError, ImportError) as e:  # a protocol that nobody knows, or whose package is not installed
        raise CollectError("cost", "no_protocol", f"{path}: {e}") from None
    return opened

"""One charge, whatever provider or format it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import Protocol


class Category(Enum):
    """What a charge is for, by its meter: service categories file transfer under Compute."""

    VCPU = "vcpu"
    GPU = "gpu"
    EGRESS = "egress"
    PROVISIONED_IOPS = "provisioned_iops"
    STORAGE = "storage"
    REQUESTS = "requests"  # reads of an object store
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class CostRow:
    """A charge over [start, end). Money in `currency`; `quantity` in `unit`."""

    source: str
    resource: str
    category: Category
    meter: str
    start: datetime
    end: datetime
    effective: float  # amortised: for trends
    billed: float  # on the invoice: for budgets
    currency: str
    quantity: float
    unit: str
    usage: bool = True  # a charge for use, not a credit, tax or purchase
    correction: bool = False  # of an earlier period: left out of trends
    estimated: bool = False  # not final yet
    vcpu_hours: float = 0.0
    iops_hours: float = 0.0  # of provisioned IOPS
    account: str = ""
    region: str = ""

    @property
    def day(self) -> date:
        """On which it began."""
        return self.start.date()


@dataclass(frozen=True, slots=True)
class RowProblem:
    """A row that could not be read: skipped and counted, never guessed."""

    file: str
    row: int  # 1 is the first row of data
    column: str
    problem: str

    def __str__(self) -> str:
        where = f"row {self.row}, column {self.column}" if self.column else f"row {self.row}"
        return f"{self.file}: {where}: {self.problem}"


class RowSource(Protocol):
    """Gives rows one at a time; a month of them need not fit into memory."""

    def rows(self) -> Iterator[CostRow | RowProblem]:
        """Raises CollectError when nothing can be read at all."""
        ...

"""Who may spend more than the budget, how much and until when: a small YAML file that finance owns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from sidecar.errors import ConfigError
from sidecar.model import Sample, labels_of
from sidecar.yamlfile import Document

APPROVED = "spikewatch_budget_approved"


class _Approval(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    budget: str
    owner: str = Field(min_length=1)
    amount: float = Field(gt=0, allow_inf_nan=False)
    until: date
    reason: str = ""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    approvals: tuple[_Approval, ...] = ()


@dataclass(frozen=True, slots=True)
class Approvals:
    """Every approval of the file."""

    entries: tuple[_Approval, ...] = ()

    def amount(self, budget: str, day: date) -> float | None:
        """The highest amount that may be spent up to a day; None where nothing is approved."""
        found = [entry.amount for entry in self.entries if entry.budget == budget and entry.until >= day]
        return max(found, default=None)


@dataclass(frozen=True, slots=True)
class Bill:
    """What approvals are held against: what is billed in the month up to its newest final day."""

    budgets: tuple[str, ...]
    last: date
    billed: float


class Approved:
    """Which budgets may be overspent. The file is looked at again and again: an approval counts once it is there."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: tuple[int, ...] = ()
        self._approvals = Approvals()
        self.bill: Bill | None = None
        self.problem = ""  # with the file as it is now; then nothing counts as approved

    def changed(self) -> bool:
        """Takes in a file that is not the one it was. Whether it has, and there is a bill to hold it against."""
        if self._path is None:
            return False
        try:
            status = os.stat(self._path)
            stamp: tuple[int, ...] = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            stamp = (-1,)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self._approvals, self.problem = load_approvals(self._path), ""
        except (ConfigError, OSError) as e:
            self._approvals, self.problem = Approvals(), str(e)
        return self.bill is not None

    def budgets(self) -> set[str]:
        """Names of the budgets that the file speaks of."""
        return {entry.budget for entry in self._approvals.entries}

    def samples(self) -> Iterator[Sample]:
        """1 for each budget whose overspending is approved, else 0."""
        if self.bill is None:
            return
        for budget in self.bill.budgets:
            amount = self._approvals.amount(budget, self.bill.last)
            yes = amount is not None and self.bill.billed <= amount
            yield Sample(APPROVED, labels_of({"budget": budget}), float(yes))


def load_approvals(path: Path) -> Approvals:
    """Raises ConfigError with every problem and its place."""
    return Approvals(Document.read(path).validate(_File).approvals)

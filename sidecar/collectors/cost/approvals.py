"""Who may spend more than the budget, how much and until when: a small YAML file that finance owns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sidecar.errors import ConfigError, Problem
from sidecar.yamlfile import Document


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


def load_approvals(path: Path) -> Approvals:
    """Raises ConfigError with every problem and its place."""
    document = Document.read(path)
    try:
        return Approvals(_File.model_validate({} if document.value is None else document.value).approvals)
    except ValidationError as e:
        problems: list[Problem] = [document.problem(error["loc"], error["msg"]) for error in e.errors()]
        raise ConfigError(problems) from None

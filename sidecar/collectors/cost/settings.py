"""What the cost collector can be told."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sidecar.hooks import CollectorSettings
from sidecar.settings import Duration

PAID_REFRESH_MS = 21_600_000
"""Six hours: no more often than this is anything asked that costs money."""


class Budget(BaseModel):
    """A monthly amount, or the name of an AWS budget that has one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    amount: float | None = Field(None, gt=0, allow_inf_nan=False)
    aws_account: str = ""

    @model_validator(mode="after")
    def _amounts(self) -> Budget:
        if (self.amount is None) == (not self.aws_account):
            raise ValueError("give either `amount`, or `aws_account` where AWS Budgets holds it")
        return self


class CostSettings(CollectorSettings):
    """`collectors: {cost: …}`. Off unless switched on: one process of a cluster reads the bill, not every pod."""

    globs: ClassVar[tuple[str, ...]] = ("focus",)

    enabled: bool = False
    interval: Duration = Field(5_000, ge=1_000)  # only looks whether it is time; slowed 32 times it is still found
    worth: int = Field(30, ge=0, le=100)
    deadline: Duration = Field(600_000, ge=50)
    refresh: Duration = Field(PAID_REFRESH_MS, ge=60_000)  # exports come daily
    focus: tuple[str, ...] = ()  # paths, globs or URLs of FOCUS exports
    aws: bool = False
    cloudwatch: tuple[str, ...] = ()  # regions whose volumes and instances are looked at
    opencost: str = ""  # base URL
    currency: str = "USD"  # of OpenCost, which does not say
    budgets: tuple[Budget, ...] = ()
    approvals: Path | None = None
    max_resources: int = Field(500, ge=1, le=2_000)  # volumes, instances, pods: of each so many have series
    idle_network_bytes: float = Field(
        5_000_000, ge=0, allow_inf_nan=False
    )  # a day: what a machine sends that does nothing
    cache: Path | None = None  # file that keeps the newest reading over restarts

    @field_validator("opencost")
    @classmethod
    def _url(cls, value: str) -> str:
        if value and not value.startswith(("https://", "http://")):
            raise ValueError(f"not an http(s) URL: {value!r}")
        return value.rstrip("/")

    @field_validator("budgets")
    @classmethod
    def _distinct(cls, value: tuple[Budget, ...]) -> tuple[Budget, ...]:
        names = [budget.name for budget in value]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"budget {', '.join(twice)} is there twice")
        return value

    @model_validator(mode="after")
    def _paid(self) -> CostSettings:
        if (self.aws or self.cloudwatch) and self.refresh < PAID_REFRESH_MS:
            raise ValueError("refresh must be 6h or longer with aws or cloudwatch: they bill what they are asked")
        return self

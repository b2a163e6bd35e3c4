"""What responses and caps files look like: pydantic models, used while loading and nowhere else."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from sidecar import durations
from sidecar.responses.timeintervals import IntervalShape

NAME = r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"  # goes into change ids, URLs and labels
ModeText = Literal["observe", "suggest", "act"]


def _duration(value: Any) -> int:
    if not isinstance(value, str):
        raise ValueError("write a duration like 180s or 5m")
    return durations.parse(value)


def _positive(value: Any) -> int:
    ms = _duration(value)
    if ms <= 0:
        raise ValueError("must be longer than 0s")
    return ms


def _percent(value: Any) -> float:
    if not isinstance(value, str) or not value.endswith("%"):
        raise ValueError("write a percentage like 5%")
    try:
        return float(value[:-1]) / 100
    except ValueError:
        raise ValueError("write a percentage like 5%") from None


class Closed(BaseModel):
    """Unknown keys are mistakes, and so are texts where numbers belong."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class GuardShape(Closed):
    """One entry under `verify.guards`."""

    expr: str
    z: float = Field(default=6.0, ge=3, le=1000, allow_inf_nan=False)

    @field_validator("z", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


class VerifyShape(Closed):
    """`verify:` of a response."""

    expr: str
    goal: Literal["increase", "decrease"]
    by: Annotated[float, BeforeValidator(_percent)] = 0.05
    baseline: Annotated[int, BeforeValidator(_positive)] = 180_000
    window: Annotated[int, BeforeValidator(_positive)] = 180_000
    abort_if: list[str] = []
    guards: list[GuardShape] = []

    @field_validator("by")
    @classmethod
    def _more_than_noise(cls, ratio: float) -> float:
        if not 0.01 <= ratio <= 100:
            raise ValueError("must be at least 1%: noise decides about less")
        return ratio


class LimitsShape(Closed):
    """`limits:` of a response."""

    scope: Literal["pod", "job", "fleet"] = "job"
    cooldown: Annotated[int, BeforeValidator(_duration)] = 300_000
    per_hour: int = Field(default=4, ge=1)
    max_ineffective: int = Field(default=3, ge=1)
    rollout: Annotated[float, BeforeValidator(_percent)] = 1.0

    @field_validator("rollout")
    @classmethod
    def _a_share(cls, ratio: float) -> float:
        if not 0 <= ratio <= 1:
            raise ValueError("must be from 0% to 100%")
        return ratio


class ApprovalShape(Closed):
    """`approval:` of a response."""

    owner: str = Field(default="", max_length=200)
    expires: Annotated[int, BeforeValidator(_positive)] | None = None


class ResponseShape(Closed):
    """One entry under `responses:`."""

    name: str = Field(pattern=NAME)
    match: list[str] = Field(min_length=1)
    remediation: str
    with_: dict[str, Any] = Field(default={}, alias="with")
    mode: ModeText = "observe"
    approval: ApprovalShape = ApprovalShape()
    active_time_intervals: list[str] = []
    mute_time_intervals: list[str] = []
    verify: VerifyShape | None = None  # the loader asks for it where there is something to verify
    limits: LimitsShape = LimitsShape()


class NamedIntervals(Closed):
    """One entry under `time_intervals:`, as in Alertmanager's configuration."""

    name: str = Field(min_length=1)
    time_intervals: list[Any]


class FileShape(Closed):
    """A responses file. Entries are validated one by one, so that all mistakes are found."""

    responses: list[Any]
    time_intervals: list[Any] = []


class CapsShape(Closed):
    """A caps file."""

    caps: dict[str, ModeText]


__all__ = [
    "ApprovalShape",
    "CapsShape",
    "FileShape",
    "GuardShape",
    "IntervalShape",
    "LimitsShape",
    "ModeText",
    "NamedIntervals",
    "ResponseShape",
    "VerifyShape",
]

"""Every extension point, one Protocol each: what a plugin may be and what it is handed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from sidecar.model import Alert, Change, Knob, MetricInfo, Order, Outcome, Sample, Skip, Status, TrainerIdentity
from sidecar.settings import Duration


@dataclass(frozen=True, slots=True)
class Handle:
    """Where a series lives: the block of its (metric, producer) and its column in it."""

    block: int
    column: int


class Sink(Protocol):
    """The only way samples get in."""

    def series(self, metric: str, labels: Mapping[str, str], producer: str = "") -> Handle | None:
        """The place of a series, made on first sight. None when a series limit is hit (counted by the store)."""
        ...

    def push(self, block: int, t_ms: int, values: Mapping[int, float]) -> None:
        """One time slot of a block: column → value. Columns left out are missing; `model.STALE` ends a series."""
        ...


class CollectorSettings(BaseModel):
    """What every collector can be told under `collectors: {NAME: …}`; one that has more to set subclasses it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = True
    interval: Duration = Field(1_000, ge=50)  # from one sample to the next
    deadline: Duration = Field(5_000, ge=50)  # a sample that takes longer marks the collector down


@runtime_checkable
class Collector(Protocol):
    """A passive reader, made as `cls(settings)`. Its methods may block: the runner calls them in one thread of
    the collector's own, under a deadline.
    """

    name: ClassVar[str]
    settings: ClassVar[type[CollectorSettings]]  # closed schema of its section in the configuration
    metrics: ClassVar[tuple[MetricInfo, ...]]  # everything it may emit

    def probe(self) -> Status:
        """What can be seen from here, and why not more."""
        ...

    def sample(self, now_ms: int) -> Iterable[Sample]:
        """Everything seen now. Raises CollectError when nothing can be said."""
        ...

    def close(self) -> None:
        """Lets go of files and children. Called once, last."""
        ...


@dataclass(frozen=True, slots=True)
class View:
    """What a remediation may look at while it plans: pure data, no handles."""

    knobs: Mapping[str, Knob]
    identity: TrainerIdentity | None
    facts: Mapping[str, float]  # e.g. "cpu_quota" (cores), "memory_available_bytes"; absent where unknown


@runtime_checkable
class Remediation(Protocol):
    """A plugin that answers an alert. It plans; an actuator executes."""

    name: ClassVar[str]
    params: ClassVar[type[BaseModel]]  # closed schema of the response's `with:`
    actuator: ClassVar[str]  # which actuator its changes go to
    knobs: ClassVar[tuple[str, ...]]  # every target it may touch
    example: ClassVar[Mapping[str, Any]]  # a valid `with:`; a test loads it

    def plan(self, alert: Alert, view: View, params: BaseModel) -> Change | Skip:
        """Pure: the same inputs give the same plan."""
        ...


@runtime_checkable
class Actuator(Protocol):
    """Executes changes. No call blocks: orders are sent, and `outcome` tells what became of them."""

    name: ClassVar[str]

    def identity(self) -> TrainerIdentity | None:
        """Who would be changed, or None when nobody is there."""
        ...

    def knobs(self) -> Mapping[str, Knob]:
        """Every target with its current value and bounds."""
        ...

    def apply(self, order: Order) -> None:
        """Sends the order to every rank as one unit: all apply it, or those that did revert."""
        ...

    def renew(self, change_id: str, lease_ms: int) -> None:
        """Prolongs the lease of an unverified change."""
        ...

    def keep(self, change_id: str) -> None:
        """Ends the lease and keeps the new values."""
        ...

    def revert(self, change_id: str) -> None:
        """Puts the found values back, if the values set by this change are still there."""
        ...

    def outcome(self, change_id: str) -> Outcome:
        """What is known of a change; UNKNOWN where the trainer has never heard of it."""
        ...

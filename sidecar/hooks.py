"""Every extension point, one Protocol each: what a plugin may be and what it is handed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from sidecar.model import (
    Alert,
    Change,
    Finding,
    Knob,
    MetricInfo,
    Order,
    Outcome,
    Sample,
    Skip,
    Status,
    TrainerIdentity,
)
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
    globs: ClassVar[tuple[str, ...]] = ()  # settings that are lists of globs: these and every Path become absolute

    enabled: bool = True
    interval: Duration = Field(1_000, ge=50)  # from one sample to the next
    deadline: Duration = Field(5_000, ge=50)  # a sample that takes longer marks the collector down
    worth: int = Field(50, ge=0, le=100)  # when CPU runs short, the collector worth least is slowed first


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
class Section:
    """Samples that come and go together. None: as in the sample before, nothing is written and no series ends."""

    name: str
    samples: Iterable[Sample] | None


@runtime_checkable
class Sectioned(Protocol):
    """A collector parts of which change less often than it is asked: what did not change costs nothing to keep."""

    def sections(self, now_ms: int) -> Iterable[Section]:
        """Asked instead of `sample`. A section that is left out ends, with its series; each metric belongs to one
        section. Repeat samples at least every minute: readers look back five.
        """
        ...


@runtime_checkable
class Examinable(Protocol):
    """A collector that can say more than one status: `spikewatch doctor` asks it after `probe` and a sample."""

    def findings(self) -> Iterable[Finding]:
        """Everything it can and cannot see, each with the reason and the one change that would help."""
        ...


@runtime_checkable
class Stretchable(Protocol):
    """A collector with a pace of its own beside the runner's interval, e.g. in a child process."""

    def stretch(self, factor: int) -> None:
        """Work `factor` (1, 2, 4 …) times as seldom. Called in the collector's thread before a sample."""
        ...


@runtime_checkable
class Spending(Protocol):
    """A collector that uses CPU outside its own thread."""

    def cpu_seconds(self) -> float:
        """CPU its children and other threads have used so far, in seconds; never falls. Called in its thread."""
        ...


@dataclass(frozen=True, slots=True)
class View:
    """What a remediation may look at while it plans: pure data, no handles."""

    knobs: Mapping[str, Knob]
    identity: TrainerIdentity | None
    facts: Mapping[str, float]  # e.g. "cpu_quota" (cores), "memory_available_bytes"; absent where unknown
    series: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)  # what `Details.reads` names


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


@dataclass(frozen=True, slots=True)
class Reading:
    """A series that a remediation sees while it plans, as (t_ms, value) in order of time.

    `expr` is PromQL with exactly one element; as in a response's `expr`, of a rate the increments that do not overlap
    are read, of a gauge its values. Where it has no element, or several, there is no point.
    """

    expr: str
    back_ms: int = 900_000  # how far back


@dataclass(frozen=True, slots=True)
class Case:
    """A situation, and what the remediation answers to it. A test runs it, `plugins describe` shows it."""

    what: str
    params: Mapping[str, Any]  # as under `with:`
    alert: Alert
    view: View
    answer: Change | Skip  # texts for people (`why`, `detail`) are not compared


def _never(params: BaseModel) -> str:
    return ""


def _nothing(params: BaseModel) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Details:
    """What a remediation tells of itself beside its contract. Each part may be left out."""

    permissions: tuple[str, ...] = ()  # what it must be allowed to do, one line each
    reads: Mapping[str, Reading] = field(default_factory=dict)  # by the name it has in `View.series`
    cases: tuple[Case, ...] = ()
    unproven: Callable[[BaseModel], str] = _never
    """Why, with these parameters, its effect was seen on recordings only; it then runs as `suggest` at most."""
    egress: Callable[[BaseModel], tuple[str, ...]] = _nothing  # every URL that these parameters have it ask for
    drifts: tuple[str, ...] = ()  # knobs that the trainer moves by itself: what was found of them is not compared


@runtime_checkable
class Detailed(Protocol):
    """A remediation that tells more of itself."""

    details: ClassVar[Details]


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

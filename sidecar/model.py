"""The vocabulary every room shares: frozen types, standard library only."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Literal

Labels = tuple[tuple[str, str], ...]
"""(name, value) pairs sorted by name, without empty values. The metric name is `__name__` where present."""

STALE: float = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
"""Prometheus's staleness marker, recognised by its bit pattern: the series has ended."""


def labels_of(mapping: Mapping[str, str]) -> Labels:
    """Sorted pairs without empty values."""
    return tuple(sorted((k, v) for k, v in mapping.items() if v))


class Severity(IntEnum):
    """Totally ordered, so that `max` means the worst."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series. `labels` does not hold the metric name."""

    metric: str
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a metric was checked against: the real source (`device`), a stand-in of it (`fake`), or nothing yet."""

    against: Literal["device", "fake", "none"] = "none"
    date: str = ""  # of the newest check, YYYY-MM-DD
    detail: str = ""  # which device, driver, kernel or library version


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """A catalogue entry: what a metric means. Counters end in `_total`; `unit` is the base unit in the name.

    `scope`: whose number it is; where that differs from machine to machine, a label `scope` says it and this is "".
    `quality`: `exact`, `averaged` over a stated time, or `estimated` (a bias or a guess is in it; the help says which).
    `verified`: None for what the sidecar counts about itself, for which there is nothing outside to check against.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str  # "seconds", "bytes", "ratio" … or "" for a plain number
    help: str
    labels: tuple[str, ...] = ()
    source: str = ""  # where the number comes from: a file, a call, a log line
    scope: Literal["", "process", "container", "pod", "node", "device", "job", "cluster"] = ""
    quality: Literal["exact", "averaged", "estimated"] = "exact"
    verified: Evidence | None = None


class Availability(Enum):
    """What a collector can see. Missing is neither zero nor healthy."""

    AVAILABLE = "available"
    DEGRADED = "degraded"
    UNAVAILABLE = "unavailable"
    DENIED = "denied"


@dataclass(frozen=True, slots=True)
class Status:
    """A collector's answer about itself, with the reason for anything but `available`.

    `reason` is machine-readable (snake_case, becomes a label value); `fix` tells people the one change that would
    help, e.g. "set shareProcessNamespace: true in the pod's spec".
    """

    state: Availability
    reason: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a collector can or cannot see from here: a line of `spikewatch doctor`."""

    what: str  # e.g. "GPU 0: SM and DRAM activity (GPM)"
    status: Status
    detail: str = ""


class AlertState(Enum):
    """As in Prometheus."""

    INACTIVE = "inactive"
    PENDING = "pending"
    FIRING = "firing"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert instance at one evaluation. Times are wall milliseconds, 0 where not reached."""

    name: str
    labels: Labels
    annotations: tuple[tuple[str, str], ...]
    state: AlertState
    value: float
    active_at_ms: int
    fired_at_ms: int = 0
    resolved_at_ms: int = 0
    keep_firing_since_ms: int = 0
    expr: str = ""

    def label(self, name: str) -> str:
        """The label's value, or the empty string."""
        return dict(self.labels).get(name, "")


class Edge(Enum):
    """A change of an alert's state that others act on."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"
    CLEARED = "cleared"  # pending and gone again without firing


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """An edge. `restored` marks state taken over from before a restart: it opens no episode."""

    edge: Edge
    alert: Alert
    at_ms: int
    restored: bool = False
    source: str = ""  # who told: "" our own rules, else e.g. "alertmanager"


@dataclass(frozen=True, slots=True)
class Notification:
    """One alert as it is posted to an Alertmanager: times are wall milliseconds, label values are never empty.

    `labels` already holds the external labels. A resolved alert ends at the moment it resolved; one that fires
    ends a few resend intervals ahead, so that an Alertmanager which hears no more lets it go by itself.
    """

    labels: Labels
    annotations: tuple[tuple[str, str], ...]
    starts_at_ms: int
    ends_at_ms: int
    generator_url: str


# --- remediation ----------------------------------------------------------------------------------------------------


class Scope(Enum):
    """Whether a setting may differ between ranks."""

    LOCAL = "local"
    ALL_RANK = "all_rank"


KnobValue = int | float | str | bool


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing an actuator can change, with the value found now."""

    name: str
    value: KnobValue
    minimum: float | None = None
    maximum: float | None = None
    unit: str = ""
    scope: Scope = Scope.LOCAL


@dataclass(frozen=True, slots=True)
class Change:
    """What a remediation wants: new values of one actuator's targets, applied together or not at all."""

    actuator: str
    values: Mapping[str, KnobValue]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Skip:
    """A remediation's refusal. `reason` is machine-readable (snake_case); `detail` is for people."""

    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TrainerIdentity:
    """Who is attached: one job, one rendezvous epoch; a restarted trainer has other run ids."""

    job: str
    epoch: str
    run_ids: tuple[str, ...]
    ranks: tuple[int, ...]
    world: int


@dataclass(frozen=True, slots=True)
class Order:
    """A change on its way: `expect` are the values found when it was planned (compare-and-set)."""

    change_id: str
    values: Mapping[str, KnobValue]
    expect: Mapping[str, KnobValue]
    lease_ms: int


class ChangeState(Enum):
    """Where a change stands at the actuator."""

    UNKNOWN = "unknown"  # the actuator has never heard of it
    PENDING = "pending"
    APPLIED = "applied"
    REFUSED = "refused"
    REVERTED = "reverted"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an order. `found`/`now` are values before and after; `step` the trainer's step, -1 unknown."""

    state: ChangeState
    reason: str = ""
    step: int = -1
    found: Mapping[str, KnobValue] = field(default_factory=dict)
    now: Mapping[str, KnobValue] = field(default_factory=dict)
    by: str = ""  # who reverted: "order" or "lease"


JSON = dict[str, Any]

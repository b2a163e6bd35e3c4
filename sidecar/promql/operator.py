"""The base of all operators: a node of the plan bound to a store, remembering its last answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from sidecar.errors import QueryError
from sidecar.promql.frame import Vec
from sidecar.store import Store

Value = Vec | float | str


@dataclass(slots=True)
class Limits:
    """What one query may cost; as Prometheus's --query.max-samples and --query.timeout.

    `expired` is asked often: before samples are read and after each operator. It may also let others do something
    meanwhile, writing to the store included.
    """

    max_samples: int = 50_000_000
    expired: Callable[[], bool] | None = None


class Context:
    """What the operators of one bound program share: the store, defaults, and the query going on."""

    def __init__(self, store: Store, interval_ms: int, lookback_ms: int, limits: Limits) -> None:
        self.store, self.interval_ms, self.lookback_ms, self.limits = store, interval_ms, lookback_ms, limits
        self.start_ms = self.end_ms = 0
        self.epoch = 0  # answers from the same epoch at the same time are the same
        self._state: tuple[int, int, int] | None = None
        self._samples = 0
        self.watched = limits.expired is not None  # then also what operators hold is counted

    def begin(self, start_ms: int, end_ms: int) -> None:
        """A new query over [start, end]; both are its time where it is an instant query."""
        state = (start_ms, end_ms, self.store.version)
        if state != self._state:
            self._state = state
            self.epoch += 1
        self.start_ms, self.end_ms = start_ms, end_ms
        self._samples = 0

    def charge(self, samples: int) -> None:
        """Counts samples held until the query ends. Raises QueryError when it has had too many or too long."""
        self._samples += samples
        self.glance(0)

    def glance(self, samples: int) -> None:
        """Says that samples will be held, but only for a moment. Raises QueryError as `charge` does."""
        if self._samples + samples > self.limits.max_samples:
            raise QueryError("query processing would load too many samples into memory in query execution")
        if self.limits.expired is not None and self.limits.expired():
            raise QueryError("query timed out in expression evaluation")

    def held(self) -> int:
        """How many samples are counted now; give it to `release` when those counted since are let go."""
        return self._samples

    def release(self, held: int) -> None:
        """Counts no more than before."""
        self._samples = held


class Operator(ABC):
    """Gives its value at a time. Asked again with nothing new in the store, it gives the same object."""

    def __init__(self, context: Context, children: tuple[Operator, ...] = ()) -> None:
        self.context, self.children = context, children
        self._t = self._epoch = -1
        self._inputs: tuple[Value, ...] = ()
        self._value: Value = 0.0

    def at(self, t_ms: int) -> Value:
        """The value at `t_ms`. Raises QueryError."""
        context = self.context
        if self._epoch == context.epoch and self._t == t_ms:
            return self._value
        inputs = tuple([child.at(t_ms) for child in self.children])
        if self._t != t_ms or self._epoch < 0 or not self._same(inputs):
            value = self._value = self.compute(t_ms, inputs)
            self._inputs = inputs
            self._t = t_ms
            if context.watched:
                context.charge(_size(value, inputs))
        self._epoch = context.epoch
        return self._value

    def _same(self, inputs: tuple[Value, ...]) -> bool:
        return bool(inputs) and all(new is old for new, old in zip(inputs, self._inputs, strict=True))

    @abstractmethod
    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        """The value at `t_ms`, from what the children gave."""


_LABELS = 8  # samples that take about as much memory as one label set with what is worked out from it


def _size(value: Value, inputs: tuple[Value, ...]) -> int:
    """What an operator's answer takes, in samples."""
    if not isinstance(value, Vec):
        return 1
    known = any(isinstance(other, Vec) and other.frame is value.frame for other in inputs)
    return len(value.frame) * (1 if known else _LABELS)


def vector(value: Value) -> Vec:
    """The value as a vector; the parser has seen to it that it is one."""
    assert isinstance(value, Vec)
    return value


def scalar(value: Value) -> float:
    """The value as a number; the parser has seen to it that it is one."""
    assert isinstance(value, float)
    return value


def checked(vec: Vec) -> Vec:
    """The vector, unless two of its elements have the same labels. Raises QueryError."""
    if vec.frame.has_twins():
        labels = vec.frame.labels
        seen = [labels[i] for i in vec.present().tolist()]
        if len(set(seen)) < len(seen):
            raise QueryError("vector cannot contain metrics with the same labelset")
    return vec

"""What a knob is, and what offers knobs: the seam between the settings of a trainer and those who change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from spikewatch.refusal import Refused

_TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting. `minimum` and `maximum` bound numbers, `choices` texts; the value found is always among them."""

    name: str
    type: Literal["int", "float", "str", "bool"]
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    shared: bool = False  # ALL-RANK: changed at the same step on every rank, or on none
    drifts: bool = False  # the trainer moves it by itself (a loss scale), so a change does not compare what it finds

    def check(self, value: Any) -> None:
        """Raises Refused for a value of another type or out of bounds."""
        typed = isinstance(value, _TYPES[self.type]) and (self.type == "bool") == isinstance(value, bool)
        if not typed or not self._within(value):
            raise Refused("out_of_bounds", f"{self.name} is {self._wanted()}")

    def _within(self, value: Any) -> bool:
        if self.type in ("str", "bool"):
            return not self.choices or value in self.choices
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)

    def _wanted(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.type in ("str", "bool"):
            return {"str": "a text", "bool": "true or false"}[self.type]
        return f"{'a whole number' if self.type == 'int' else 'a number'} from {self.minimum} to {self.maximum}"

    def describe(self, value: Any) -> dict[str, Any]:
        """As it goes into HELLO, with the value it has now."""
        return {
            "name": self.name,
            "type": self.type,
            "unit": self.unit,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "choices": list(self.choices),
            "scope": "all_rank" if self.shared else "local",
            "value": value,
        }


class Source(Protocol):
    """Something in the trainer whose settings are changed together: a loader, an optimizer, a scaler.

    All but `change` are called from any thread, several times a second: they read what is at hand, never wait for a
    device, never draw a random number.
    """

    def knobs(self) -> Sequence[Knob]:
        """Every knob there is here, also those that cannot be changed now."""
        ...

    def values(self) -> Mapping[str, Any]:
        """The value of each of `knobs` now."""
        ...

    def unavailable(self) -> Mapping[str, str]:
        """Knobs that cannot be changed (now, or at all), each with the reason for people. May name absent ones."""
        ...

    def check(self, values: Mapping[str, Any]) -> None:
        """Raises Refused for what `change` would refuse. `values` are some of these knobs, types and bounds checked.

        What a shared knob's check lets through must not fail in `change`: by then other ranks have changed, too.
        """
        ...

    def lag(self, values: Mapping[str, Any]) -> int:
        """How many batches may be under way that will still come as before; 0 where a change acts at once."""
        ...

    def change(self, values: Mapping[str, Any], after: int) -> None:
        """Sets all of `values`, or raises Refused and has changed none. On the training thread, between two steps.

        `after` is the largest `lag` of any rank: a change that has to reach the batches acts from that one on, counted
        from the next to be handed over, so that it is the same batch everywhere. 0 where all knobs are local.
        """
        ...


class Absent:
    """Knobs that this trainer does not offer, each with the reason."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self._reasons = dict(reasons)

    def knobs(self) -> Sequence[Knob]:
        return ()

    def values(self) -> Mapping[str, Any]:
        return {}

    def unavailable(self) -> Mapping[str, str]:
        return self._reasons

    def check(self, values: Mapping[str, Any]) -> None:
        raise Refused("unsupported", "; ".join(f"{name}: {self._reasons.get(name, 'not offered')}" for name in values))

    def lag(self, values: Mapping[str, Any]) -> int:
        return 0

    def change(self, values: Mapping[str, Any], after: int) -> None:
        self.check(values)

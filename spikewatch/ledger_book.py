"""All changes of one run, newest last: what both sides of the ledger, its own and the agreed one, look up and note."""

from __future__ import annotations

import json
import threading
import zlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from spikewatch.change import Change
from spikewatch.refusal import Refused

MAX_REMEMBERED = 32  # of them the newest go into every HELLO


class Knobs(Protocol):
    """What can be changed here; see `knobs.KnobSet`."""

    def values(self) -> Mapping[str, Any]:
        """The values now, of every knob there is."""
        ...

    def check(self, values: Mapping[str, Any]) -> None:
        """Raises Refused for values that cannot be set. Called on the client's threads."""
        ...

    def change(self, values: Mapping[str, Any], after: int = 0) -> None:
        """Sets them together. Raises Refused; then nothing has changed. Called on the training thread."""
        ...

    def shared(self, names: Iterable[str]) -> bool:
        """Whether any of them must be the same on every rank."""
        ...

    def drifting(self, name: str) -> bool:
        """Whether the trainer moves it by itself."""
        ...

    def lag(self, values: Mapping[str, Any]) -> int:
        """How many batches may be under way that will still come as before."""
        ...


class Book:
    """The records under one lock. Its methods are called with the lock held."""

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.lock = threading.Lock()
        self.changes: OrderedDict[str, Change] = OrderedDict()
        self.news: deque[str] = deque(maxlen=4 * MAX_REMEMBERED)  # ids of changes whose state moved

    def known(self, change_id: str) -> Change:
        """Raises Refused where nobody has heard of it."""
        change = self.changes.get(change_id)
        if change is None:
            raise Refused("unknown_change")
        return change

    def remember(self, change: Change) -> None:
        self.changes[change.id] = change
        while len(self.changes) > MAX_REMEMBERED:
            over = next((c for c in self.changes.values() if not c.open()), None)
            if over is None:
                break
            del self.changes[over.id]

    def check(self, change: Change, values: Mapping[str, Any], expect: Mapping[str, Any]) -> None:
        """Raises Refused unless `values` can be set, the knobs are as expected, and no other change is open."""
        if any(other.open() for other in self.changes.values() if other is not change):
            raise Refused("busy", "another change is not confirmed yet")
        self.knobs.check(values)
        self.compare(expect)

    def compare(self, expected: Mapping[str, Any]) -> None:
        """Raises Refused where a knob is not as expected; one that moves by itself may be."""
        values = self.knobs.values()
        for name, value in expected.items():
            if name not in values:
                raise Refused("unknown_knob", name)
            if values[name] != value and not self.knobs.drifting(name):
                raise Refused("conflict", f"{name} is {values[name]}, not {value}")

    def digest(self) -> str:
        """The same on ranks whose shared knobs have the same values; those that move by themselves left out."""
        values, knobs = self.knobs.values(), self.knobs
        shared = {name: value for name, value in values.items() if knobs.shared([name]) and not knobs.drifting(name)}
        return f"{zlib.crc32(json.dumps(shared, sort_keys=True).encode()):08x}"

    def refuse(self, change: Change, refusal: Refused) -> None:
        change.state, change.reason, change.detail = "refused", refusal.reason, refusal.detail
        change.deadline = None
        self.news.append(change.id)

    def end(self, change: Change, state: str, by: str, step: int) -> None:
        """It is reverted, or kept."""
        change.state, change.by, change.step = state, by, step
        change.deadline, change.undoing = None, ""
        self.news.append(change.id)

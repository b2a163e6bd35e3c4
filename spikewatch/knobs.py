"""Everything that can be changed in this trainer: the knobs of all its sources as one set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from spikewatch.knob import Knob, Source
from spikewatch.loaderknobs import NAMES as LOADER
from spikewatch.refusal import Refused

PLANNED: Mapping[str, str] = {
    "empty_cache": "planned: it waits for a proof on a GPU",
    "gradient_checkpointing": "not offered: name your model's blocks with run.offer(Recomputing(*model.blocks))",
}
"""Knobs of the field that are refused where nothing offers them, with the reason."""


class KnobSet:
    """Sources under one roof. Read-only methods run on any thread, `change` on the training one."""

    def __init__(self, sources: Iterable[Source] = ()) -> None:
        """Raises ValueError where two sources have a knob of the same name."""
        self._sources: tuple[Source, ...] = ()
        self.apart: Callable[[], str] = lambda: ""  # why the ranks cannot agree now, empty when they can
        self.frozen: Callable[[], str] = lambda: ""  # why what runs on the device cannot be changed, empty when it can
        for source in sources:
            self.add(source)

    def add(self, source: Source) -> None:
        """One more, also while the run is attached: the sidecar is told. Raises ValueError for a name that is taken."""
        taken = {knob.name for known in self._sources for knob in known.knobs()}
        again = [knob.name for knob in source.knobs() if knob.name in taken]
        if again:
            raise ValueError(f"{', '.join(again)}: another part of this trainer offers that already")
        self._sources = (*self._sources, source)  # replaced whole: other threads read it without a lock

    def _owned(self) -> dict[str, tuple[Knob, Source]]:
        return {knob.name: (knob, source) for source in self._sources for knob in source.knobs()}

    def values(self) -> dict[str, Any]:
        return {name: value for source in self._sources for name, value in source.values().items()}

    def bounds(self) -> dict[str, tuple[float | None, float | None]]:
        """Smallest and largest acceptable value, None where a knob is no number."""
        return {name: (knob.minimum, knob.maximum) for name, (knob, _) in self._owned().items()}

    def unavailable(self) -> dict[str, str]:
        """Knobs that cannot be changed (now), each with the reason for people."""
        return self._unavailable(self._owned())

    def _unavailable(self, owned: Mapping[str, tuple[Knob, Source]]) -> dict[str, str]:
        reasons = {name: reason for name, reason in PLANNED.items() if name not in owned}
        for source in self._sources:
            said = source.unavailable().items()
            reasons |= {name: reason for name, reason in said if name not in owned or owned[name][1] is source}
        apart = self.apart()
        if apart:
            reasons |= {name: apart for name, (knob, _) in owned.items() if knob.shared and name not in reasons}
        frozen = self.frozen()
        if frozen:
            reasons |= {name: frozen for name in owned if name not in reasons and name not in LOADER}
        return reasons

    def describe(self) -> list[dict[str, Any]]:
        """The available knobs as they go into HELLO."""
        owned, values = self._owned(), self.values()
        unavailable = self._unavailable(owned)
        return [
            knob.describe(values[name])
            for name, (knob, _) in owned.items()
            if name not in unavailable and name in values
        ]

    def shared(self, names: Iterable[str]) -> bool:
        """Whether any of them must be the same on every rank."""
        owned = self._owned()
        return any(owned[name][0].shared for name in names if name in owned)

    def drifting(self, name: str) -> bool:
        """Whether the trainer moves it by itself."""
        owned = self._owned()
        return name in owned and owned[name][0].drifts

    def check(self, values: Mapping[str, Any]) -> None:
        """Raises Refused for anything that must not be set."""
        owned = self._owned()
        unavailable = self._unavailable(owned)
        for name, value in values.items():
            if name in unavailable:
                raise Refused("unsupported", f"{name}: {unavailable[name]}")
            if name not in owned:
                raise Refused("unknown_knob", name)
            owned[name][0].check(value)
        for source, mine in self._by_source(values):
            source.check(mine)

    def lag(self, values: Mapping[str, Any]) -> int:
        """The largest number of batches under way that will still come as before."""
        return max((source.lag(mine) for source, mine in self._by_source(values)), default=0)

    def change(self, values: Mapping[str, Any], after: int = 0) -> None:
        """Sets all of them. Raises Refused; then those that had been set already have been put back."""
        unknown = [name for name in values if name not in self._owned()]
        if unknown:
            raise Refused("unknown_knob", ", ".join(unknown))
        done: list[tuple[Source, dict[str, Any]]] = []
        try:
            for source, mine in self._by_source(values):
                now = source.values()
                source.change(mine, after)
                done.append((source, {name: now[name] for name in mine}))
        except BaseException:
            for source, before in reversed(done):
                source.change(before, 0)
            raise

    def _by_source(self, values: Mapping[str, Any]) -> list[tuple[Source, dict[str, Any]]]:
        owned = self._owned()
        split: dict[int, tuple[Source, dict[str, Any]]] = {}
        for name, value in values.items():
            source = owned[name][1]
            split.setdefault(id(source), (source, {}))[1][name] = value
        return list(split.values())

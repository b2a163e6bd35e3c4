"""The incremental face of selectors: operators that keep their window from one evaluation to the next.

Evaluated at a time before the last one (a group with a query offset beside one without), a second window is kept;
what fits none of them is read from the ring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import numpy as np

from sidecar.promql.frame import Vec
from sidecar.promql.incremental.finish import USES, finish, make
from sidecar.promql.incremental.latest import Latest
from sidecar.promql.incremental.track import Track
from sidecar.promql.operator import Context, Operator, Value, checked
from sidecar.promql.plan import Range, Selector
from sidecar.promql.select import Instant, OverRange, parameter_of
from sidecar.promql.selection import Part, Selection
from sidecar.store.cells import F64, Bools

_LANES = 3


class _Moving(Protocol):
    end_ms: int


_M = TypeVar("_M", bound=_Moving)


class Lanes(Generic[_M]):
    """Window state for each part of a selection, in a few independent copies for times that take turns."""

    def __init__(self, selection: Selection, make: Callable[[Part], _M]) -> None:
        self._selection, self._make = selection, make
        self._lanes: list[tuple[list[int], list[_M]]] = []

    def at(self, t_ms: int) -> list[_M] | None:
        """The states to move to `t_ms`, one a part; None when every lane is past that time already."""
        best: tuple[list[int], list[_M]] | None = None
        for lane in self._lanes:
            if lane[0][0] <= t_ms and (best is None or lane[0][0] > best[0][0]):
                best = lane
        if best is None:
            if len(self._lanes) == _LANES:
                return None
            best = ([t_ms], [])
            self._lanes.append(best)
        end, states = best
        end[0] = t_ms
        for part in self._selection.parts[len(states) :]:
            states.append(self._make(part))
        return states


class Windows:
    """The moving window of one selector and range, with the state that the functions over it ask for."""

    def __init__(self, selection: Selection, range_ms: int) -> None:
        self._selection, self._range_ms = selection, range_ms
        self._moved: tuple[int, int] | None = None  # to which time, with what in the store
        self._tracks: list[Track] | None = None
        self._kinds: list[str] = []
        self._lanes: Lanes[Track] = Lanes(selection, self._track)

    def require(self, kind: str) -> None:
        """Asks for a kind of state; before the first evaluation."""
        if kind and kind not in self._kinds:
            self._kinds.append(kind)

    def _track(self, part: Part) -> Track:
        track = Track(part)
        track.accumulators = {kind: make(kind, track) for kind in self._kinds}
        return track

    def at(self, end_ms: int) -> list[Track] | None:
        """The window ending at `end_ms`; None when it has moved past."""
        moved = (end_ms, self._selection.store.version)
        if moved != self._moved:
            self._tracks = tracks = self._lanes.at(end_ms)
            for track in tracks or ():
                track.advance(end_ms - self._range_ms, end_ms)
            self._moved = moved
        return self._tracks


class SlidingRange(Operator):
    """A function of the closed list over a plain range selector."""

    def __init__(
        self,
        context: Context,
        name: str,
        node: Range,
        selection: Selection,
        windows: Windows,
        parameter: Operator | None = None,
    ) -> None:
        super().__init__(context, () if parameter is None else (parameter,))
        self._name, self._node, self._selection, self._windows = name, node, selection, windows
        self._naive = OverRange(context, name, node, selection, () if parameter is None else (parameter,))
        phi = parameter.at(0) if parameter is not None else None
        windows.require(f"{USES[name]}{phi!r}" if USES[name].endswith(":") else USES[name])

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        end_ms = t_ms - self._node.selector.offset_ms
        frame = self._selection.refresh()
        tracks = self._windows.at(end_ms)
        if tracks is None:
            return self._naive.compute(t_ms, inputs)
        start_ms, parameter = end_ms - self._node.range_ms, parameter_of(inputs)
        results = [finish(self._name, track, start_ms, end_ms, t_ms, parameter) for track in tracks]
        self.context.charge(len(frame))
        if self._name != "last_over_time":
            frame = frame.nameless()
        values, mask = joined(results)
        return checked(Vec(frame, values, mask))


class SlidingInstant(Operator):
    """An instant selector."""

    def __init__(self, context: Context, selector: Selector, selection: Selection, times: bool = False) -> None:
        super().__init__(context)
        self._selector, self._selection, self._times = selector, selection, times
        self._naive = Instant(context, selector, selection, times)
        self._lanes: Lanes[Latest] = Lanes(selection, Latest)

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        at_ms = t_ms - self._selector.offset_ms
        frame = self._selection.refresh()
        states = self._lanes.at(at_ms)
        if states is None:
            return self._naive.compute(t_ms, inputs)
        self.context.charge(len(frame))
        results: list[tuple[F64, Bools | None]] = []
        for state in states:
            values, when, mask = state.advance(at_ms, self.context.lookback_ms)
            if self._times:
                values = np.broadcast_to(np.asarray(when) / 1000, len(values))
            results.append((values, mask))
        values, mask = joined(results)
        return checked(Vec(frame.nameless(), values, mask)) if self._times else Vec(frame, values, mask)


def joined(results: list[tuple[F64, Bools | None]]) -> tuple[F64, Bools | None]:
    """The results of several blocks, one after the other."""
    if len(results) == 1:
        return results[0]
    if not results:
        return np.zeros(0), None
    values = np.concatenate([values for values, _ in results])
    if all(mask is None for _, mask in results):
        return values, None
    return values, np.concatenate([np.ones(len(v), bool) if m is None else m for v, m in results])

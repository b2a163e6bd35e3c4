"""Subqueries that remember the values of their steps, so that a tick evaluates only the steps it has not seen.

A value stays right until a sample lands at or before its time. New samples are never older than the newest ones of
their block, so when a block has changed, only the steps from its newest time of last look on are in doubt.
"""

from __future__ import annotations

import numpy as np

from sidecar.promql.frame import Vec
from sidecar.promql.operator import Context, Operator, vector
from sidecar.promql.plan import Node, Selector, Subquery, children
from sidecar.promql.selection import Selection
from sidecar.store.cells import I64

_ALWAYS = -(1 << 62)


class RememberedSteps:
    """The values of an expression at its steps."""

    def __init__(self, context: Context, inner: Operator, selections: list[Selection], lead_ms: int) -> None:
        """`lead_ms` is how far into the future of a step the expression looks, by negative offsets."""
        self._context, self._inner, self._selections, self._lead_ms = context, inner, selections, lead_ms
        self._values: dict[int, Vec] = {}
        self._seen: dict[int, tuple[int, int]] = {}  # block → its version and newest time at the last look

    def at(self, times: I64) -> list[Vec]:
        """The value at each of the times, which ascend."""
        doubtful = self._doubtful_from() - self._lead_ms
        wanted = times.tolist()
        known = self._values
        self._values = {}
        for t in wanted:
            value = known.get(t) if t < doubtful else None
            if value is None:
                fresh = vector(self._inner.at(t))
                self._context.charge(len(fresh.frame))
                value = Vec(fresh.frame, np.array(fresh.values), fresh.mask)  # a copy: it may be a view of the ring
            self._values[t] = value
        return list(self._values.values())

    def _doubtful_from(self) -> int:
        """The earliest time at which a sample may have come since the last look."""
        earliest = 1 << 62
        for selection in self._selections:
            selection.refresh()
            for part in selection.parts:
                block = part.block
                version, newest = self._seen.get(block.index, (-1, _ALWAYS))
                if version != block.version:
                    earliest = min(earliest, newest)
                    self._seen[block.index] = (block.version, block.newest_ms)
        return earliest


def lead_ms(node: Node) -> int | None:
    """How far past its evaluation time an expression reads; None when it reads at a time of its own."""
    own = 0
    if isinstance(node, Selector | Subquery):
        if node.at is not None:
            return None
        own = max(0, -node.offset_ms)
    below = [lead_ms(child) for child in children(node)]
    if any(lead is None for lead in below):
        return None
    return own + max((lead for lead in below if lead is not None), default=0)

"""Vector matching: which elements of two vectors find each other, and the labels of what comes of it."""

from __future__ import annotations

import numpy as np

from sidecar.errors import QueryError
from sidecar.model import Labels
from sidecar.promql.frame import NAME, Frame
from sidecar.promql.plan import COMPARISONS, Binary, Card, Matching
from sidecar.store.cells import I64


def signature(labels: Labels, matching: Matching) -> Labels:
    """The part of a label set by which elements find each other."""
    names = matching.labels
    if matching.on:
        return tuple(pair for pair in labels if pair[0] in names)
    return tuple(pair for pair in labels if pair[0] != NAME and pair[0] not in names)


def signatures(frame: Frame, matching: Matching) -> tuple[Labels, ...]:
    """The signature of each element."""
    return frame.derive(
        ("signatures", matching.on, matching.labels),
        lambda f: tuple(signature(labels, matching) for labels in f.labels),
    )


class Table:
    """Which element of the left meets which of the right, and the labels of what comes out."""

    __slots__ = ("_card", "_sigs", "ambiguous", "frame", "left", "right")

    def __init__(self, left: I64, right: I64, frame: Frame, sigs: tuple[Labels, ...], card: Card) -> None:
        self.left, self.right, self.frame = left, right, frame
        self._sigs, self._card = sigs, card
        used = len(set(sigs)) < len(sigs) if card is Card.ONE_TO_ONE else False
        self.ambiguous = used or frame.has_twins()

    @classmethod
    def of(cls, left: Frame, right: Frame, node: Binary) -> Table:
        """Raises QueryError where two elements of the one side match the same elements."""
        flipped = node.matching.card is Card.ONE_TO_MANY
        many, one = (right, left) if flipped else (left, right)
        lookup = _unique(one, node.matching, "left" if flipped else "right")
        pairs: list[tuple[int, int]] = []
        sigs: list[Labels] = []
        for i, sig in enumerate(signatures(many, node.matching)):
            j = lookup.get(sig)
            if j is not None:
                pairs.append((i, j))
                sigs.append(sig)
        met = np.array(pairs, np.int64).reshape(len(pairs), 2)
        frame = Frame(tuple(_result(many.labels[i], one.labels[j], node) for i, j in pairs))
        a, b = (met[:, 1], met[:, 0]) if flipped else (met[:, 0], met[:, 1])
        return cls(a, b, frame, tuple(sigs), node.matching.card)

    def verify(self, there: I64) -> None:
        """Raises QueryError when the pairs `there`, in that order, are not one for one."""
        used: set[Labels] = set()
        made: set[tuple[Labels, Labels]] = set()
        for i in there.tolist():
            sig = self._sigs[i]
            if self._card is Card.ONE_TO_ONE and sig in used:
                raise QueryError(
                    "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)"
                )
            out = (sig, self.frame.labels[i])
            if out in made:
                raise QueryError("multiple matches for labels: grouping labels must ensure unique matches")
            used.add(sig)
            made.add(out)


def _unique(frame: Frame, matching: Matching, side: str) -> dict[Labels, int]:
    """Signature → element. Raises QueryError for a signature that two elements share."""
    lookup: dict[Labels, int] = {}
    for i, sig in enumerate(signatures(frame, matching)):
        if lookup.setdefault(sig, i) != i:
            raise QueryError(
                f"found duplicate series for the match group {_shown(sig)} on the {side} hand-side of the operation: "
                f"[{_shown(frame.labels[i])}, {_shown(frame.labels[lookup[sig]])}];"
                "many-to-many matching not allowed: matching labels must be unique on one side"
            )
    return lookup


def _shown(labels: Labels) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels) + "}"


def _result(many: Labels, one: Labels, node: Binary) -> Labels:
    matching = node.matching
    if node.op not in COMPARISONS or node.returns_bool:
        many = tuple(pair for pair in many if pair[0] != NAME)
    if matching.card is Card.ONE_TO_ONE:
        if matching.on:
            return tuple(pair for pair in many if pair[0] in matching.labels)
        return tuple(pair for pair in many if pair[0] not in matching.labels)
    if not matching.include:
        return many
    given = dict(one)
    kept = [pair for pair in many if pair[0] not in matching.include]
    kept += [(name, given[name]) for name in set(matching.include) if given.get(name)]
    return tuple(sorted(kept))

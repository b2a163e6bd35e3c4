"""The summaries that windows are made of: sums, extremes, moments, and the line through the samples.

Numbers are kept relative to a sample of the window wherever differences matter, so that large offsets cost no digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sidecar.promql import exact
from sidecar.promql.incremental.panes import Fold
from sidecar.promql.incremental.pile import Partial, Pile
from sidecar.store.cells import F64, I64, Bools


def _backwards(values: F64) -> F64:
    out: F64 = np.add.accumulate(values[::-1], axis=0)[::-1]
    return out


def _padded(component: Any, width: int, extra: int, fill: float, stacked: bool) -> Any:
    """A component with `extra` more series; one number for all series becomes an array."""
    array = np.asarray(component)
    if array.ndim == stacked:
        array = np.repeat(array[..., None], width, axis=-1)
    return np.concatenate((array, np.full((*array.shape[:-1], extra), fill, array.dtype)), axis=-1)


class Total(Fold):
    """(sum, compensation): their sum is good to about twice the precision of one float."""

    def suffixes(self, rows: F64, times: I64, valid: Bools | None) -> Partial:
        sums, rest = exact.running((rows if valid is None else np.where(valid, rows, 0.0))[::-1])
        return sums[::-1], rest[::-1]

    def whole(self, rows: F64, times: I64, valid: Bools | None) -> Partial:
        sums, rest = exact.running(rows if valid is None else np.where(valid, rows, 0.0))
        return sums[-1], rest[-1]

    def push(self, partial: Partial, row: F64, t_ms: int, valid: Bools | None) -> Partial:
        return self._added(partial, row if valid is None else np.where(valid, row, 0.0), 0.0)

    def merge(self, older: Partial, younger: Partial) -> Partial:
        return self._added(older, younger[0], younger[1])

    def _added(self, partial: Partial, value: F64, rest: Any) -> Partial:
        total, correction = partial
        after = total + value
        part = after - total
        return after, correction + ((total - (after - part)) + (value - part)) + rest

    def merge_all(self, pile: Pile) -> Partial:
        totals, corrections = pile.all()
        sums, rest = exact.running(totals)
        return sums[-1], rest[-1] + corrections.sum(axis=0)

    def grow(self, partial: Partial, width: int, extra: int, stacked: bool) -> Partial:
        return tuple(_padded(component, width, extra, 0.0, stacked) for component in partial)


class Extreme(Fold):
    """(largest,) or (smallest,), NaN where there is no number."""

    def __init__(self, largest: bool) -> None:
        self._better = np.fmax if largest else np.fmin

    def suffixes(self, rows: F64, times: I64, valid: Bools | None) -> Partial:
        rows = rows if valid is None else np.where(valid, rows, np.nan)
        return (self._better.accumulate(rows[::-1], axis=0)[::-1],)

    def whole(self, rows: F64, times: I64, valid: Bools | None) -> Partial:
        return (self._better.reduce(rows if valid is None else np.where(valid, rows, np.nan), axis=0),)

    def push(self, partial: Partial, row: F64, t_ms: int, valid: Bools | None) -> Partial:
        return (self._better(partial[0], row if valid is None else np.where(valid, row, np.nan)),)

    def merge(self, older: Partial, younger: Partial) -> Partial:
        return (self._better(older[0], younger[0]),)

    def merge_all(self, pile: Pile) -> Partial:
        return (self._better.reduce(pile.all()[0], axis=0),)

    def grow(self, partial: Partial, width: int, extra: int, stacked: bool) -> Partial:
        return (_padded(partial[0], width, extra, np.nan, stacked),)


def _anchor(rows: F64, valid: Bools | None) -> F64:
    """Per series its youngest sample: what differences are taken from."""
    if valid is None:
        out: F64 = rows[-1]
        return out
    last = len(rows) - 1 - valid[::-1].argmax(axis=0)
    return np.where(valid.any(axis=0), rows[last, np.arange(rows.shape[1])], 0.0)


def _counts(rows: F64, valid: Bools | None) -> Any:
    """How many samples from each row on: shape [row] or [row, series]."""
    if valid is None:
        return list(range(len(rows), 0, -1))
    return np.add.accumulate(valid[::-1], axis=0, dtype=np.int64)[::-1]


def _count(rows: F64, valid: Bools | None) -> Any:
    """How many samples, a plain number where it is the same for all series."""
    return len(rows) if valid is None else valid.sum(axis=0)


def _column(counts: Any) -> Any:
    return np.array(counts)[:, None] if isinstance(counts, list) else np.maximum(counts, 1)


class Moments(Fold):
    """(n, anchor, m, M2): the mean is anchor + m, M2 the sum of squared distances from it (Chan, Golub, LeVeque)."""

    def suffixes(self, rows: F64, times: I64, valid: Bools | None) -> Partial:
        anchor = _anchor(rows, valid)
        away = rows - anchor if valid is None else np.where(valid, rows - anchor, 0.0)
        counts = _counts(rows, valid)
        first = _backwards(away)
        mean = first / _column(counts)
        spread = np.maximum(_backwards(away * away) - first * mean, 0.0)
        return counts, np.broadcast_to(anchor, rows.shape), mean, spread

    def whole(self, rows: F64, times: I64, valid: Bools | None) -> Partial:
        anchor = _anchor(rows, valid)
        away = rows - anchor if valid is None else np.where(valid, rows - anchor, 0.0)
        count = _count(rows, valid)
        first = away.sum(axis=0)
        mean = first / np.maximum(count, 1)
        spread = np.maximum(np.einsum("ij,ij->j", away, away) - first * mean, 0.0)
        return count, anchor, mean, spread

    def push(self, partial: Partial, row: F64, t_ms: int, valid: Bools | None) -> Partial:
        n, anchor, mean, spread = partial
        if valid is None and isinstance(n, int):
            away = (row - anchor) - mean
            step = away / (n + 1)
            return n + 1, anchor, mean + step, spread + away * step * n
        there = np.ones(len(row), bool) if valid is None else valid
        anchor = np.where(there & (n == 0), row, anchor)
        away = np.where(there, (row - anchor) - mean, 0.0)
        after = n + there
        step = away / np.maximum(after, 1)
        return after, anchor, mean + step, spread + away * step * n

    def merge(self, older: Partial, younger: Partial) -> Partial:
        n_a, anchor_a, mean_a, spread_a = older
        n_b, anchor_b, mean_b, spread_b = younger
        n = n_a + n_b
        if isinstance(n, int):
            away = (anchor_b - anchor_a) + (mean_b - mean_a)
            step = away * (n_b / n)
            return n, anchor_a, mean_a + step, spread_a + spread_b + away * step * n_a
        anchor = np.where(n_a > 0, anchor_a, anchor_b)
        mean_a = np.where(n_a > 0, mean_a, 0.0)
        away = np.where(n_b > 0, ((anchor_b - anchor) + mean_b) - mean_a, 0.0)
        step = away * (n_b / np.maximum(n, 1))
        return n, anchor, mean_a + step, spread_a + spread_b + away * step * n_a

    def merge_all(self, pile: Pile) -> Partial:
        n, anchors, means, spreads = pile.all()
        anchor, shifted = _around(n, anchors, means)
        total = n.sum(axis=0)
        mean = (n * shifted).sum(axis=0) / np.maximum(total, 1)
        away = shifted - mean
        spread = spreads.sum(axis=0) + (n * away * away).sum(axis=0)
        return int(total[0]) if pile.plain(0) else total, anchor.copy(), mean, spread

    def grow(self, partial: Partial, width: int, extra: int, stacked: bool) -> Partial:
        return tuple(_padded(component, width, extra, 0, stacked) for component in partial)


def _around(n: I64, anchors: F64, means: F64) -> tuple[F64, F64]:
    """One anchor by series for many partials, and the partials' means relative to it; 0 where there is no sample."""
    some = n > 0
    if some.all():
        return anchors[-1], (anchors - anchors[-1]) + means
    anchor = _anchor(anchors, np.broadcast_to(some, anchors.shape))
    return anchor, np.where(some, (anchors - anchor) + means, 0.0)


class Line(Fold):
    """(n, base, x, Sxx, anchor, m, Sxy): least squares, times in seconds from `base` ms, values from `anchor`."""

    def suffixes(self, rows: F64, times: I64, valid: Bools | None) -> Partial:
        anchor = _anchor(rows, valid)
        away = rows - anchor if valid is None else np.where(valid, rows - anchor, 0.0)
        counts = _counts(rows, valid)
        seconds = ((times - times[-1]) / 1000)[:, None]
        xs = seconds if valid is None else np.where(valid, seconds, 0.0)
        size = _column(counts)
        sx, sy = _backwards(xs), _backwards(away)
        x = sx / size
        sxx = _backwards(xs * xs) - sx * x
        sxy = _backwards(xs * away) - sy * x
        if valid is None:
            x, sxx = x[:, 0], sxx[:, 0]
        bases = [int(times[-1])] * len(rows)
        return counts, bases, x, sxx, np.broadcast_to(anchor, rows.shape), sy / size, sxy

    def whole(self, rows: F64, times: I64, valid: Bools | None) -> Partial:
        anchor = _anchor(rows, valid)
        away = rows - anchor if valid is None else np.where(valid, rows - anchor, 0.0)
        count = _count(rows, valid)
        size = np.maximum(count, 1)
        seconds = (times - times[-1]) / 1000
        sy = away.sum(axis=0)
        base = int(times[-1])
        if valid is None:
            sx = float(seconds.sum())
            x = sx / len(rows)
            sxx = float(seconds @ seconds) - sx * x
            return count, base, x, sxx, anchor, sy / size, seconds @ away - sy * x
        xs = np.where(valid, seconds[:, None], 0.0)
        sx = xs.sum(axis=0)
        x = sx / size
        sxx, sxy = np.einsum("ij,ij->j", xs, xs) - sx * x, np.einsum("ij,ij->j", xs, away) - sy * x
        return count, base, x, sxx, anchor, sy / size, sxy

    def push(self, partial: Partial, row: F64, t_ms: int, valid: Bools | None) -> Partial:
        n, base, x, sxx, anchor, mean, sxy = partial
        dx = (t_ms - base) / 1000 - x
        if valid is None and isinstance(n, int):
            away = (row - anchor) - mean
            weight = n / (n + 1)
            return (
                n + 1,
                base,
                x + dx / (n + 1),
                sxx + dx * dx * weight,
                anchor,
                mean + away / (n + 1),
                sxy + away * (dx * weight),
            )
        there = np.ones(len(row), bool) if valid is None else valid
        anchor = np.where(there & (n == 0), row, anchor)
        away = np.where(there, (row - anchor) - mean, 0.0)
        dx = np.where(there, dx, 0.0)
        after = n + there
        size = np.maximum(after, 1)
        weight = n / size
        return (
            after,
            base,
            x + dx / size,
            sxx + dx * dx * weight,
            anchor,
            mean + away / size,
            sxy + away * (dx * weight),
        )

    def merge(self, older: Partial, younger: Partial) -> Partial:
        n_a, base, x_a, sxx_a, anchor_a, mean_a, sxy_a = older
        n_b, base_b, x_b, sxx_b, anchor_b, mean_b, sxy_b = younger
        n = n_a + n_b
        dx = (base_b - base) / 1000 + (x_b - x_a)
        if isinstance(n, int):
            away = (anchor_b - anchor_a) + (mean_b - mean_a)
            share = n_b / n
            weight = n_a * share
            return (
                n,
                base,
                x_a + dx * share,
                sxx_a + sxx_b + dx * dx * weight,
                anchor_a,
                mean_a + away * share,
                sxy_a + sxy_b + away * (dx * weight),
            )
        some = n_a > 0
        anchor = np.where(some, anchor_a, anchor_b)
        mean_a, x_a = np.where(some, mean_a, 0.0), np.where(some, x_a, 0.0)
        away = np.where(n_b > 0, ((anchor_b - anchor) + mean_b) - mean_a, 0.0)
        dx = np.where(n_b > 0, (base_b - base) / 1000 + (x_b - x_a), 0.0)
        share = n_b / np.maximum(n, 1)
        weight = n_a * share
        return (
            n,
            base,
            x_a + dx * share,
            sxx_a + sxx_b + dx * dx * weight,
            anchor,
            mean_a + away * share,
            sxy_a + sxy_b + away * (dx * weight),
        )

    def merge_all(self, pile: Pile) -> Partial:
        n, bases, x_means, sxxs, anchors, means, sxys = pile.all()
        anchor, shifted = _around(n, anchors, means)
        base = int(bases[-1, 0])
        xs = (bases - base) / 1000 + x_means
        total = n.sum(axis=0)
        size = np.maximum(total, 1)
        x, mean = (n * xs).sum(axis=0) / size, (n * shifted).sum(axis=0) / size
        dx, away = xs - x, shifted - mean
        sxx = sxxs.sum(axis=0) + (n * dx * dx).sum(axis=0)
        sxy = sxys.sum(axis=0) + (n * dx * away).sum(axis=0)
        if pile.plain(0):
            return int(total[0]), base, float(x[0]), float(sxx[0]), anchor.copy(), mean, sxy
        return total, base, x, sxx, anchor.copy(), mean, sxy

    def grow(self, partial: Partial, width: int, extra: int, stacked: bool) -> Partial:
        n, base, *rest = partial
        return (
            _padded(n, width, extra, 0, stacked),
            base,
            *(_padded(component, width, extra, 0.0, stacked) for component in rest),
        )

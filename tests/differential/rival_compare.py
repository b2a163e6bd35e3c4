"""Sample by sample and message by message: what is equal, what is not, and who is right then."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

from exact_windows import exact

from sidecar.model import STALE

CLOSE = 1e-9
_EXACT = {"load:slope": ("deriv", 0.0), "load:soon": ("predict_linear", 10.0)}  # [2s]


@dataclass
class Metric:
    """How the samples of one written metric compare."""

    samples: int = 0
    equal: int = 0  # bit for bit, but for the many kinds of NaN
    close: int = 0  # to 1e-9
    nearer: int = 0  # further apart, and ours nearer to exact arithmetic over the same samples
    worst: float = 0.0  # largest relative difference
    wrong: list = field(default_factory=list)

    def summary(self):
        found = {"samples": self.samples, "equal": self.equal}
        if self.equal < self.samples:
            found |= {"within_1e-9": self.close, "nearer_to_exact": self.nearer, "worst_relative": self.worst}
        return found | ({"wrong": len(self.wrong)} if self.wrong else {})


def samples(run, face):
    """{metric: Metric} over every sample that either side wrote up to the horizon."""
    theirs, ours = run.recorded.written, run.ours[face].written
    out = {}
    for labels in theirs.keys() | ours.keys():
        metric = out.setdefault(dict(labels)["__name__"], Metric())
        a = theirs.get(labels, {})
        b = {t: v for t, v in ours.get(labels, {}).items() if t <= run.recorded.horizon_ms}
        for t in a.keys() | b.keys():
            metric.samples += 1
            if t in a and t in b:
                _compare(metric, run, labels, t, a[t], b[t])
            else:
                metric.wrong.append((labels, t, a.get(t), b.get(t)))
    return out


def _compare(metric, run, labels, t, theirs, ours):
    if ours == theirs or (math.isnan(ours) and math.isnan(theirs)):
        metric.equal += 1
        return
    apart = abs(ours - theirs) / max(abs(ours), abs(theirs))
    if apart <= CLOSE:
        metric.close += 1
    elif _nearer(run, labels, t, theirs, ours):
        metric.nearer += 1
    else:
        metric.wrong.append((labels, t, theirs, ours))
        return
    metric.worst = max(metric.worst, apart)


def _nearer(run, labels, t, theirs, ours):
    found = dict(labels)
    name, ahead = _EXACT.get(found["__name__"], ("", 0.0))
    if not name or not math.isfinite(ours):
        return False
    key = "load", (("rank", found["rank"]),)
    window = [
        (scrape.t_ms, run.served[scrape.serial][key])
        for scrape in run.recorded.scrapes
        if t - 2000 < scrape.t_ms <= t and scrape.serial is not None and key in run.served[scrape.serial]
    ]
    truth = exact(name, window, t - 2000, t, ahead)
    return truth is not None and abs(Fraction(ours) - truth) <= abs(Fraction(theirs) - truth)


def visible(run, face):
    """Series that one side sees at an instant and the other does not: [(labels, times only there, times only here)]."""
    theirs, ours = run.recorded.visible, run.ours[face].visible
    return [
        (labels, sorted(a - b), sorted(b - a))
        for labels in theirs.keys() | ours.keys()
        if (a := theirs.get(labels, set())) != (b := ours.get(labels, set()))
    ]


def messages(run, face):
    """(number of messages that are equal, differences).

    Every message of ours has its equal at the same place among Prometheus's about that alert; Prometheus, which went
    on after the horizon, has sent a few more.
    """
    theirs, ours = run.messages["theirs"], run.messages[face]
    horizon, equal, differences = run.recorded.horizon_ms, 0, []
    for labels in theirs.keys() | ours.keys():
        a, b = theirs.get(labels, []), ours.get(labels, [])
        pairs = zip(a, b, strict=False)
        differences += [(labels, n, x, y) for n, (x, y) in enumerate(pairs) if x != y]
        equal += sum(x == y for x, y in zip(a, b, strict=False))
        more = a[len(b) :]
        most = run.tail_ms // 200 + 2
        if len(b) > len(a) or len(more) > most or (not b and any(m["startsAt"] <= horizon for m in more)):
            differences.append((labels, len(b), more, b[len(a) :]))
    return equal, differences


def ends(run):
    """What is wrong with the run as read back for a backtest: changed samples, ends that are missing or misplaced."""
    up = dict(run.recorded.up["labels"])
    target = {name: up[name] for name in ("instance", "job")}
    read = {}
    for t, labels, value in run.rows:
        read.setdefault(labels, []).append((t, value))
    times = [scrape.t_ms for scrape in run.recorded.scrapes if scrape.t_ms >= run.rows[0][0]]
    wrong = []
    for labels, rows in read.items():
        known = dict(labels)
        key = known["__name__"], tuple(sorted((k, v) for k, v in known.items() if k not in ("__name__", *target)))
        there = {s.t_ms: run.served[s.serial].get(key) for s in run.recorded.scrapes if s.serial is not None}
        there = run.recorded.up["values"] if key[0] == "up" else there
        wrong += [(labels, row) for row in _misread(rows, {t: there.get(t) for t in times})]
    return wrong


def _misread(rows, there):
    """Rows that differ from {time of a scrape: value, or None where the series was not in it}."""
    samples = {t: value for t, value in rows if value is not STALE}
    marks = [t for t, value in rows if value is STALE]
    for t, value in there.items():
        if value is not None and repr(samples.get(t)) != repr(value):
            yield t, value, samples.get(t)
    present = [t for t, value in there.items() if value is not None]
    for last in present:
        following = next((t for t in there if t > last), None)
        if following is None:
            continue
        gone = there[following] is None
        back = next((t for t in present if t > last), math.inf)
        marked = [t for t in marks if last < t < back]
        # the end shows at the first multiple of 200 ms after it, unless the series is back by then
        step = -(-following // 200) * 200
        if gone and step < back and max(there) > step and marked != [step]:
            yield last, "no end", marked, following
        if not gone and marked:
            yield last, "an end", marked, following

"""What Prometheus has recorded in a run, read back: scrapes, evaluations, and everything its rules wrote."""

from __future__ import annotations

from dataclasses import dataclass

from rival_rules import SEEN, document

from sidecar import durations

GROUPS = [group["name"] for group in document()["groups"]]
WRITTEN = '{__name__=~"ALERTS|ALERTS_FOR_STATE|either|[a-z]+:.+"}'
"""Everything the rules write; nothing that is scraped has such a name."""


@dataclass(frozen=True)
class Scrape:
    """One scrape: when, and its number at the exporter; None where it failed, which ends every series."""

    t_ms: int
    serial: int | None


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a group: when, and the newest scrape visible to its first and to its last rule."""

    group: str
    at_ms: int
    offset_ms: int
    seen_ms: int
    seen_later_ms: int


@dataclass(frozen=True)
class Recorded:
    """One run up to a horizon. `written` is {labels: {time: value}}, `visible` {labels: times at which it is seen}."""

    horizon_ms: int
    up: dict
    scrapes: list
    evaluations: list
    written: dict
    visible: dict


def read(api, horizon_ms, length_ms):
    """The last `length_ms` up to the horizon. Times are milliseconds."""
    window = durations.text(length_ms)

    def raw(selector):
        return {
            series.labels: dict(series.points) for series in api.instant(f"{selector}[{window}]", horizon_ms).series
        }

    ((up_labels, up),) = raw("up").items()
    serials = {t: int(value) for points in raw("serial").values() for t, value in points.items()}
    scrapes = [Scrape(t, serials[t] if value == 1 else None) for t, value in sorted(up.items())]
    evaluations = _evaluations(raw(f'{{__name__=~"{"|".join(SEEN)}"}}'))
    return Recorded(
        horizon_ms,
        {"labels": up_labels, "values": up},
        scrapes,
        evaluations,
        raw(WRITTEN),
        _visible(api, evaluations, horizon_ms),
    )


def _evaluations(seen):
    marks = {}
    for labels, points in seen.items():
        found = dict(labels)
        for t, value in points.items():
            marks.setdefault((found["group"], t), {})[found["__name__"]] = round(value * 1000)
    out = []
    for group in document()["groups"]:
        offset = durations.parse(group.get("query_offset", "0"))
        for (name, t), found in marks.items():
            if name == group["name"]:
                out.append(Evaluation(name, t + offset, offset, found[SEEN[0]], found[SEEN[1]]))
    return sorted(out, key=lambda e: (e.at_ms, e.group))


def grids(evaluations):
    """The first instant at which each group's data may be looked at; it goes on every 200 ms."""
    return {group: min(e.at_ms - e.offset_ms for e in evaluations if e.group == group) for group in GROUPS}


def _visible(api, evaluations, horizon_ms):
    """What an instant query sees: a series is gone where Prometheus wrote an end marker."""
    out = {}
    for start in grids(evaluations).values():
        for series in api.over(WRITTEN, start, horizon_ms, 200).series:
            out.setdefault(series.labels, set()).update(t for t, _ in series.points)
    return out

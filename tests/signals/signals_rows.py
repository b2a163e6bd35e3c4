"""What came of a signal that was provoked: when it fired, what answered it, and how that ended."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import yaml
from signals_stage import Pod, Stage

from sidecar.alerting.loader import load_rules
from sidecar.alerting.rules import Rule
from sidecar.app.files import shipped_folder
from sidecar.responses.why import Answer, why
from sidecar.statedb import StateDB

LONGEST_FOR_MS = 60_000
"""A `for` up to here is waited out; a longer one is replaced by SHORT_FOR and added to what was measured."""
SHORT_FOR = "2s"

Against = Literal["device", "fake", "recorded"]
"""What the signal's source was: the real thing, a stand-in, or something real that was recorded elsewhere."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a story's numbers came from; `against` is that of its least real part."""

    what: str
    against: Against


@dataclass(frozen=True, slots=True)
class Row:
    """One alert of one story. Times are seconds."""

    signal: str
    alert: str
    severity: str
    at: str  # pod, job or cluster
    source: str
    against: Against
    cause: str
    detection_s: float  # from the cause until the alert's expression was first true and stayed so
    for_s: float  # as shipped
    for_was_waited_out: bool
    seconds: float  # from the cause to firing, with the `for` that is shipped
    value: float
    responses: tuple[Mapping[str, Any], ...]  # what answers the alert, in order


@cache
def shipped() -> Mapping[str, tuple[Rule, str]]:
    """Alert → (its rule, where it is evaluated), of the rules that are loaded unless told otherwise."""
    groups = load_rules(sorted(shipped_folder().glob("**/*.rules.yaml"))).groups
    return {r.name: (r, g.name.rpartition("-")[2]) for g in groups for r in g.rules if r.is_alert}


def shortened() -> dict[str, dict[str, str]]:
    """The `overrides:` that replace every `for` too long to be waited out."""
    return {name: {"for": SHORT_FOR} for name, (rule, _) in shipped().items() if rule.for_ms > LONGEST_FOR_MS}


def edges(pod: Pod, alert: str, edge: str = "firing") -> list[dict[str, Any]]:
    """Every time the alert began to fire here."""
    return [e for e in pod.journal("edge") if (e["data"]["alert"], e["data"]["edge"]) == (alert, edge)]


def fired(
    pod: Pod, alert: str, since: float, source: Source, cause: str, *, seconds: float = 180.0, verdict_s: float = 0.0
) -> Row:
    """Waits until `alert` fires because of what was done at wall time `since`, and until what answers it has ended.

    Before the cause it must not have fired. Up to `verdict_s` are waited for verdicts; plans that wait for an approval
    get it where that is above zero.
    """
    rule, at = shipped()[alert]
    edge = pod.until(lambda: next(iter(edges(pod, alert)), None), f"{alert} fires", seconds)
    assert edge is not None
    data, waited_out = edge["data"], rule.for_ms <= LONGEST_FOR_MS
    assert data["active_at_ms"] / 1000 >= since - 1.0, f"{alert} was active before its cause: {data}"
    detection = max(0.0, data["active_at_ms"] / 1000 - since)
    total = max(0.0, edge["at_ms"] / 1000 - since) if waited_out else detection + rule.for_ms / 1000
    labels = dict(rule.label_texts)
    return Row(
        signal=labels["signal"], alert=alert, severity=labels["severity"], at=at, source=source.what,
        against=source.against, cause=cause, detection_s=round(detection, 1), for_s=rule.for_ms / 1000,
        for_was_waited_out=waited_out, seconds=round(total, 1), value=data["value"],
        responses=tuple(_told(a) for a in answered(pod, alert, verdict_s)),
    )  # fmt: skip


def answered(pod: Pod, alert: str, verdict_s: float) -> tuple[Answer, ...]:
    """What the shipped responses decided, once nothing more is to be expected."""
    deadline = time.monotonic() + verdict_s
    first = time.monotonic() + 10.0
    while True:
        answers = _answers(pod, alert)
        open_ones = [a for a in answers if not a.reason or (a.reason == "acted" and not a.result)]
        waiting = [a for a in open_ones if a.waited]
        now, helped = time.monotonic(), any(a.result == "kept" for a in answers)
        if not open_ones or helped or now > max(first, deadline) or (verdict_s == 0.0 and waiting):
            return answers
        if verdict_s > 0.0:
            _approve(pod, alert)
        time.sleep(0.5)


def _answers(pod: Pod, alert: str) -> tuple[Answer, ...]:
    with contextlib.closing(StateDB(pod.folder / "state" / "state.db", read_only=True)) as db:
        told = why(db, alert)
    return told[-1].answers if told else ()  # the oldest: the episode that the cause began


def _approve(pod: Pod, alert: str) -> None:
    for plan in pod.api.get("/api/v1/approvals").json()["data"]["approvals"]:
        if plan["alert"] == alert:
            path = f"/api/v1/responses/{plan['episode']}/{plan['response']}/approve"
            pod.api.post(path, data={"by": "the story", "for": "1h"})


def _told(answer: Answer) -> dict[str, Any]:
    decision = answer.reason or (answer.waited[-1] if answer.waited else "not looked at")
    return {
        "response": answer.response,
        "decision": decision,
        "waited_for": list(answer.waited),
        "detail": answer.detail,
        "verdict": answer.verdict,
        "verdict_reason": answer.verdict_reason,
        "gain_percent": answer.gain_percent,
        "result": answer.result,
    }


def as_data(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """For the record."""
    return [dataclasses.asdict(row) for row in rows]


def quiet(pod: Pod, *alerts: str) -> None:
    """Nothing of these has fired so far."""
    assert not [a for a in alerts if edges(pod, a)], pod.report()


def pod_on(stage: Stage, name: str = "pod", **more: Any) -> Pod:
    """A sidecar, as `Stage.pod` makes it, whose shipped alerts with a long `for` have a short one."""
    overrides = stage.folder / "overrides.yaml"
    overrides.write_text(yaml.safe_dump({"overrides": shortened()}))
    return stage.pod(name, overrides=str(overrides), **more)

"""What the responder writes down: episodes, decisions, experiments, each with its journal entry."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from sidecar.model import AlertEvent
from sidecar.responses.episode import Attempt, Episode, Plan
from sidecar.responses.episode import change_id as change_of
from sidecar.responses.experiment import Experiment, Phase, Send
from sidecar.responses.journal import Entry, Journal, to_json
from sidecar.responses.statistics import Judgement, Window, outline

_CHUNK = 500  # SQLite's default limit of variables in a statement is far above


class Records:
    """Statements and entries; nothing is durable before the journal's `commit`.

    A row that is there already is left alone: a conflict would otherwise block every later commit.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    # --- alerts and episodes ----------------------------------------------------------------------------------------

    def edge(self, event: AlertEvent, responses: Iterable[str]) -> None:
        """An alert changed its state."""
        alert = event.alert
        data = {
            "edge": event.edge.value,
            "alert": alert.name,
            "labels": dict(alert.labels),
            "value": alert.value,
            "active_at_ms": alert.active_at_ms,
            "responses": list(responses),
            **({"restored": True} if event.restored else {}),
            **({"source": event.source} if event.source else {}),
        }
        self._journal.note(Entry(event.at_ms, "edge", data=data))

    def known(self, ids: list[str]) -> set[str]:
        """Which of these episodes there have been already."""
        found: set[str] = set()
        for i in range(0, len(ids), _CHUNK):
            chunk = ids[i : i + _CHUNK]
            marks = ",".join("?" * len(chunk))
            rows = self._journal.rows(f"SELECT id FROM episodes WHERE id IN ({marks})", chunk)
            found.update(row["id"] for row in rows)
        return found

    def opened(self, episode: Episode) -> None:
        """An episode begins."""
        alert = {
            "name": episode.alert.name,
            "labels": dict(episode.alert.labels),
            "responses": [a.response for a in episode.attempts],
        }
        self._journal.put(
            "INSERT OR IGNORE INTO episodes (id, alert, opened_at_ms) VALUES (?,?,?)",
            (episode.id, to_json(alert), episode.opened_at_ms),
            needed=False,
        )

    def closed(self, episode_id: str, reason: str, now_ms: int) -> None:
        """An episode ends."""
        self._journal.put(
            "UPDATE episodes SET closed_at_ms = ?, reason = ? WHERE id = ?",
            (max(1, now_ms), reason, episode_id),
            needed=False,
        )

    def unfinished(self) -> list[tuple[str, list[str]]]:
        """Episodes that a former process left open, each with the responses it had not decided."""
        rows = self._journal.rows
        out = []
        for row in rows("SELECT id, alert FROM episodes WHERE closed_at_ms = 0 ORDER BY rowid"):
            done = {d["response"] for d in rows("SELECT response FROM decisions WHERE episode = ?", (row["id"],))}
            out.append((row["id"], [r for r in json.loads(row["alert"])["responses"] if r not in done]))
        return out

    # --- decisions --------------------------------------------------------------------------------------------------

    def waiting(self, episode: Episode, attempt: Attempt, detail: str, now_ms: int) -> None:
        """A passing refusal, noted once for each reason."""
        data = {"reason": attempt.waits_for, "detail": detail}
        self._journal.note(Entry(now_ms, "waiting", episode.id, attempt.response, data=data))

    def decided(
        self, episode_id: str, response: str, reason: str, now_ms: int, *, change_id: str = "", **data: Any
    ) -> None:
        """The one decision about a response in an episode."""
        data = {"reason": reason, **{k: v for k, v in data.items() if v}}
        self._journal.put(
            "INSERT OR IGNORE INTO decisions (episode, response, at_ms, reason, data) VALUES (?,?,?,?,?)",
            (episode_id, response, now_ms, reason, to_json(data)),
            needed=bool(change_id),
        )
        self._journal.note(Entry(now_ms, "decision", episode_id, response, change_id, data))
        if not change_id:  # a plan that may have been shown and will not be carried out
            self._journal.put(
                "UPDATE experiments SET phase = 'closed' WHERE change_id = ?",
                (change_of(episode_id, response),),
                needed=False,
            )

    # --- experiments ------------------------------------------------------------------------------------------------

    def save(self, x: Experiment, now_ms: int, **data: Any) -> None:
        """An experiment entered a phase."""
        self._journal.put(
            "INSERT OR REPLACE INTO experiments (change_id, episode, response, trainer, phase, updated_at_ms, data) "
            "VALUES (?,?,?,?,?,?,?)",
            (x.change_id, x.episode, x.response, f"{x.job}/{x.epoch}", x.phase.value, now_ms, to_json(x.to_dict())),
        )
        self._journal.note(
            Entry(now_ms, "experiment", x.episode, x.response, x.change_id, {"phase": x.phase.value, **data})
        )

    def command(self, x: Experiment, send: Send, now_ms: int) -> None:
        """A message will leave once this is on disk. Renewals are not written down: they come every few seconds."""
        if send is not Send.RENEW:
            data = {"command": send.value}
            self._journal.note(Entry(now_ms, "command", x.episode, x.response, x.change_id, data))

    def failed(self, x: Experiment, send: Send, problem: str, now_ms: int) -> None:
        """A message could not leave; the state machine will see that it had no effect."""
        data = {"command": send.value, "failed": problem}
        self._journal.note(Entry(now_ms, "command", x.episode, x.response, x.change_id, data))

    def verdict(
        self,
        x: Experiment,
        judgement: Judgement | None,
        usd_per_hour: float | None,
        now_ms: int,
        *,
        detail: str = "",
        baseline: Window | None = None,
    ) -> None:
        """What an experiment came to, with the numbers behind it."""
        assert x.verdict is not None
        data: dict[str, Any] = {"verdict": x.verdict.value, "reason": x.reason, "remediation": x.remediation}
        if detail:
            data["detail"] = detail
        windows = {"baseline": baseline, "after": judgement.after if judgement is not None else None}
        if held := {name: outline(window) for name, window in windows.items() if window is not None}:
            data["samples"] = held
        if judgement is not None and judgement.estimate is not None:
            estimate = judgement.estimate
            data["gain_percent"] = round(estimate.gain * 100, 3)
            data["at_least_percent"] = round(estimate.lower * 100, 3)
            data["estimate"] = asdict(estimate)
        if usd_per_hour is not None:
            data["usd_per_hour"] = round(usd_per_hour, 4)
        self._journal.note(Entry(now_ms, "verdict", x.episode, x.response, x.change_id, data))

    def decision(self, episode_id: str, response: str) -> str:
        """The reason of a decision; empty where there is none."""
        rows = self._journal.rows(
            "SELECT reason FROM decisions WHERE episode = ? AND response = ?", (episode_id, response)
        )
        return str(rows[0]["reason"]) if rows else ""

    def unclosed(self) -> list[Experiment]:
        """Experiments that a former process left."""
        rows = self._journal.rows("SELECT phase, data FROM experiments WHERE phase != 'closed' ORDER BY rowid")
        return [Experiment.from_dict(row["phase"], json.loads(row["data"])) for row in rows]

    def sidecar(self, what: str, now_ms: int, **data: Any) -> None:
        """Something about ourselves."""
        self._journal.note(Entry(now_ms, "sidecar", data={"event": what, **data}))


def described(plan: Plan | None) -> Mapping[str, Any] | None:
    """A plan for the journal."""
    if plan is None:
        return None
    return {
        "actuator": plan.change.actuator,
        "values": dict(plan.change.values),
        "found": dict(plan.found),
        "why": plan.change.why,
    }


def details(x: Experiment) -> dict[str, Any]:
    """What a phase's entry says beside its name."""
    if x.phase in (Phase.PLANNED, Phase.APPROVED, Phase.INTENDED):
        data: dict[str, Any] = {"values": dict(x.values), "found": dict(x.found), "why": x.why}
        return {**data, "by": x.approved_by} if x.approved_by else data
    if x.phase is Phase.SETTLING:
        return {"step": x.step, "values": dict(x.values), "found": dict(x.found), "measure_from_ms": x.measure_from_ms}
    if x.phase is Phase.CLOSED and x.result is not None:
        return {"result": x.result.value, "verdict": x.verdict.value if x.verdict else None, "reason": x.reason}
    return {}

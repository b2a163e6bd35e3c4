"""What people read: the metric catalogue of the whole program, journal entries and experiments as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from sidecar.app.selfmetrics import METRICS as OWN
from sidecar.app.selfmetrics import PRICE
from sidecar.collectors.runner import METRICS as RUNNER
from sidecar.model import JSON, Evidence, MetricInfo
from sidecar.outputs.alertmanager import METRICS as NOTIFIER
from sidecar.outputs.exposition import METRICS as EXPOSITION
from sidecar.outputs.silences import METRICS as SILENCES
from sidecar.plugins import Registry
from sidecar.responses.episode import Attempt, Episode
from sidecar.responses.experiment import Experiment
from sidecar.responses.journal import Entry, to_json
from sidecar.responses.killswitch import Halt
from sidecar.responses.records import described
from sidecar.responses.response import Mode, Response
from sidecar.responses.savings import METRICS as SAVINGS
from sidecar.responses.tally import METRICS as RESPONSES
from sidecar.trainer.catalogue import METRICS as TRAINER


def catalogue(registry: Registry) -> tuple[MetricInfo, ...]:
    """Every metric this program can export, each once: docs, warnings of `check` and HELP lines come from here."""
    everything = (
        *TRAINER,
        *RUNNER,
        # What a plugin says nothing about was not checked, as far as we know.
        *(info if info.verified else replace(info, verified=Evidence()) for info in registry.catalogue()),
        *NOTIFIER,
        *SILENCES,
        *RESPONSES,
        *SAVINGS,
        *OWN,
        *PRICE,
        *EXPOSITION,
    )
    return tuple({info.name: info for info in everything}.values())


def entries(found: Iterable[tuple[int, Entry]]) -> list[JSON]:
    """Journal entries with their row ids."""
    return [{"id": number, **asdict(entry), "data": dict(entry.data)} for number, entry in found]


def response(one: Response, mode: Mode, ineffective: Mapping[str, int]) -> JSON:
    """A response as it runs; `mode` as the platform's caps leave it."""
    most = one.limits.max_ineffective
    return {
        "name": one.name,
        "match": [str(m) for m in one.matchers],
        "remediation": one.remediation,
        "mode": mode.text,
        "owner": one.approval.owner,
        "scope": one.limits.scope,
        "rollout": one.limits.rollout,
        "ineffective": dict(ineffective),
        "breaker_open": sorted(scope for scope, n in ineffective.items() if n >= most),
    }


def waiting(episode: Episode, attempt: Attempt, one: Response, expires_ms: int) -> JSON:
    """A plan that waits for an approval."""
    return {
        "episode": episode.id,
        "response": attempt.response,
        "owner": one.approval.owner,
        "alert": episode.alert.name,
        "labels": dict(episode.alert.labels),
        "remediation": one.remediation,
        **(described(attempt.plan) or {}),
        "planned_at_ms": attempt.planned_at_ms,
        "expires_at_ms": expires_ms,
    }


def kill_switch(halt: Halt | None) -> JSON:
    """The state of the kill switch."""
    return {"on": False} if halt is None else {"on": True, **asdict(halt)}


def experiment(x: Experiment) -> JSON:
    """An experiment under way."""
    plain: JSON = json.loads(to_json({k: _plain(v) for k, v in asdict(x).items()}))
    return plain


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)

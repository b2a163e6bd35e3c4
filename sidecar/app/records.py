"""What people read: the metric catalogue of the whole program, journal entries and experiments as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from sidecar.app.selfmetrics import METRICS as OWN
from sidecar.collectors.runner import METRICS as RUNNER
from sidecar.model import JSON, MetricInfo
from sidecar.outputs.alertmanager import METRICS as NOTIFIER
from sidecar.outputs.exposition import METRICS as EXPOSITION
from sidecar.plugins import Registry
from sidecar.responses.experiment import Experiment
from sidecar.responses.journal import Journal, to_json
from sidecar.responses.tally import METRICS as RESPONSES
from sidecar.trainer.catalogue import METRICS as TRAINER


def catalogue(registry: Registry) -> tuple[MetricInfo, ...]:
    """Every metric this program can export, each once: docs, warnings of `check` and HELP lines come from here."""
    everything = (*TRAINER, *RUNNER, *registry.catalogue(), *NOTIFIER, *RESPONSES, *OWN, *EXPOSITION)
    return tuple({info.name: info for info in everything}.values())


def newest_entries(journal: Journal, limit: int) -> list[JSON]:
    """The newest `limit` journal entries, oldest first."""
    row = journal.db.connection.execute("SELECT max(id) FROM journal").fetchone()
    last = int(row[0] or 0)
    return [
        {"id": number, **asdict(entry), "data": dict(entry.data)}
        for number, entry in journal.entries(after_id=max(0, last - limit), limit=limit)
    ]


def experiment(x: Experiment) -> JSON:
    """An experiment under way."""
    plain: JSON = json.loads(to_json({k: _plain(v) for k, v in asdict(x).items()}))
    return plain


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)

"""The sidecar as anyone sees it over HTTP: the alert, the journal, the loader's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from sidecar.cli.demo.scenarios import ALERT
from sidecar.errors import SpikewatchError
from sidecar.model import KnobValue

KNOB_METRICS = {
    "spikewatch_trainer_num_workers": "num_workers",
    "spikewatch_trainer_prefetch_factor": "prefetch_factor",
}


class SidecarError(SpikewatchError):
    """The sidecar did not answer, or not as documented."""


@dataclass(slots=True)
class Watch:
    """What was seen so far; `poll` looks again. Times are wall seconds."""

    url: str
    client: httpx.Client
    alert: str = ""  # pending, firing or empty
    active_at: float = 0.0
    journal: list[dict[str, Any]] = field(default_factory=list)

    def ready(self) -> bool:
        """Whether it has started."""
        try:
            return self.client.get(f"{self.url}/-/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def poll(self) -> list[dict[str, Any]]:
        """Looks at the alert and the journal; the entries that are new. Raises SidecarError."""
        self.alert, self.active_at = "", 0.0
        for alert in self._get("/api/v1/alerts")["alerts"]:
            # With several ranks there are several alerts: the furthest, and of those the first, stands for all.
            if alert["labels"]["alertname"] != ALERT or (self.alert == "firing" and alert["state"] != "firing"):
                continue
            since = datetime.fromisoformat(alert["activeAt"]).timestamp()
            if self.alert != alert["state"] or since < self.active_at:
                self.alert, self.active_at = alert["state"], since
        after = self.journal[-1]["id"] if self.journal else 0
        new: list[dict[str, Any]] = self._get(f"/api/v1/journal?after={after}")["entries"]
        self.journal += new
        return new

    def knobs(self) -> list[Mapping[str, KnobValue]]:
        """The loader's settings as each rank reports them, by rank."""
        ranks: dict[str, dict[str, KnobValue]] = {}
        for family in text_string_to_metric_families(self._ask("/metrics").text):
            for sample in family.samples:
                if sample.name in KNOB_METRICS:
                    ranks.setdefault(sample.labels["rank"], {})[KNOB_METRICS[sample.name]] = int(sample.value)
        return [ranks[rank] for rank in sorted(ranks, key=int)]

    def _get(self, path: str) -> Any:
        answer = self._ask(path)
        try:
            return answer.json()["data"]
        except (ValueError, KeyError) as e:
            raise SidecarError(f"GET {self.url}{path}: not the documented answer: {answer.text[:200]!r}") from e

    def _ask(self, path: str) -> httpx.Response:
        try:
            return self.client.get(self.url + path).raise_for_status()
        except httpx.HTTPError as e:
            raise SidecarError(f"GET {self.url}{path}: {e}") from e

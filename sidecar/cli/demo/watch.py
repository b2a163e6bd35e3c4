"""The sidecar as anyone sees it over HTTP: is it ready, its journal, the settings that the trainer reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx
from prometheus_client.parser import text_string_to_metric_families

from sidecar.errors import SpikewatchError
from sidecar.model import KnobValue

KNOB_METRICS = {
    "spikewatch_trainer_dataloader_workers": "num_workers",
    "spikewatch_trainer_dataloader_prefetch_factor": "prefetch_factor",
}

ENTRIES = 1000  # asked for at a time; a scenario writes fewer


class SidecarError(SpikewatchError):
    """The sidecar did not answer, or not as documented."""


class Watch:
    """Asks one sidecar. Every method but `ready` raises SidecarError."""

    def __init__(self, url: str, client: httpx.Client) -> None:
        self._url, self._client = url, client
        self._seen: set[int] = set()

    def ready(self) -> bool:
        """Whether it has started."""
        try:
            return self._client.get(f"{self._url}/-/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def journal(self) -> list[dict[str, Any]]:
        """The entries that are new since the last call, oldest first."""
        path = f"/api/v1/journal?limit={ENTRIES}"
        answer = self._ask(path)
        try:
            entries = {int(entry["id"]): entry for entry in answer.json()["data"]["entries"]}
        except (ValueError, KeyError, TypeError) as e:
            raise SidecarError(f"GET {self._url}{path}: not the documented answer: {answer.text[:200]!r}") from e
        new = sorted(entries.keys() - self._seen)
        self._seen.update(new)
        return [entries[number] for number in new]

    def knobs(self) -> list[Mapping[str, KnobValue]]:
        """The loader's settings as each rank reports them, by rank; empty while none is attached."""
        ranks: dict[str, dict[str, KnobValue]] = {}
        for family in text_string_to_metric_families(self._ask("/metrics").text):
            for sample in family.samples:
                if sample.name in KNOB_METRICS:
                    ranks.setdefault(sample.labels["rank"], {})[KNOB_METRICS[sample.name]] = int(sample.value)
        return [ranks[rank] for rank in sorted(ranks, key=int)]

    def approve(self, episode: str, response: str, by: str) -> None:
        """Says yes to a plan."""
        path = f"/api/v1/responses/{quote(episode)}/{quote(response)}/approve"
        try:
            self._client.post(self._url + path, json={"by": by}).raise_for_status()
        except httpx.HTTPError as e:
            raise SidecarError(f"POST {self._url}{path}: {e}") from e

    def _ask(self, path: str) -> httpx.Response:
        try:
            return self._client.get(self._url + path).raise_for_status()
        except httpx.HTTPError as e:
            raise SidecarError(f"GET {self._url}{path}: {e}") from e

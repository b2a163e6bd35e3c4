"""Fetches one page and makes samples of it, under the job's limits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.collectors.scrape import page
from sidecar.collectors.scrape.jobs import Job, Target
from sidecar.collectors.scrape.relabel import LABEL_NAME, relabel
from sidecar.errors import CollectError
from sidecar.model import Labels, Sample, labels_of

if TYPE_CHECKING:
    import httpx

_OURS = "spikewatch_"  # such names come from relabelling only: a page must not pass itself off as the sidecar


@dataclass(frozen=True, slots=True)
class Scraped:
    """What one scrape brought. `refused` counts samples whose names are not theirs, or need quotes to be written."""

    samples: tuple[Sample, ...]
    refused: int


class Fetcher:
    """A client for one target; keeps its connection."""

    def __init__(self, target: Target, transport: httpx.BaseTransport | None = None) -> None:
        """`transport` None talks to the network."""
        self._target = target
        self._transport = transport
        self._client: httpx.Client | None = None

    def scrape(self) -> Scraped:
        """Raises CollectError with the reason: unreachable, http_status, too_large, not_metrics, too_many_samples …"""
        return samples(self._target, self._fetch())

    def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            self._client.close()

    def _fetch(self) -> str:
        import httpx  # 10 MB of resident memory that only a sidecar with something to scrape pays

        job = self._target.job
        try:
            if self._client is None:
                self._client = httpx.Client(
                    transport=self._transport,
                    verify=self._target.context(),
                    trust_env=False,
                    follow_redirects=True,
                    timeout=job.scrape_timeout / 1000,
                )
            server_name = job.tls_config.server_name if job.tls_config else None
            with self._client.stream(
                "GET",
                self._target.url,
                headers=self._target.headers(),
                extensions={"sni_hostname": server_name} if server_name else {},
            ) as response:
                if response.status_code != 200:
                    raise self._error("http_status", f"answers {response.status_code}")
                return self._body(response).decode("utf-8", "replace")
        except httpx.TimeoutException as e:
            raise self._error("timeout", f"no answer within {job.scrape_timeout} ms") from e
        except (httpx.HTTPError, httpx.InvalidURL) as e:
            raise self._error("unreachable", f"{type(e).__name__}: {e}") from e
        except OSError as e:
            raise self._error("credentials", str(e)) from e

    def _body(self, response: httpx.Response) -> bytes:
        job = self._target.job
        end = time.monotonic() + job.scrape_timeout / 1000  # a page that drips would never time out by itself
        found = bytearray()
        for chunk in response.iter_bytes():
            found += chunk
            if len(found) > job.body_size_limit:
                raise self._error("too_large", f"more than {job.body_size_limit} bytes (body_size_limit)")
            if time.monotonic() > end:
                raise self._error("timeout", f"not complete within {job.scrape_timeout} ms")
        return bytes(found)

    def _error(self, reason: str, text: str) -> CollectError:
        return CollectError("scrape", reason, f"{self._target.url}: {text}")


def samples(target: Target, text: str) -> Scraped:
    """The samples of a page, labelled, relabelled and held against the job's limits. Raises CollectError."""
    job = target.job
    found: dict[tuple[str, Labels], Sample] = {}
    refused = 0
    try:
        for labels, value in page.parse(text):
            if labels["__name__"].startswith(_OURS) or not _plain(labels):
                refused += 1
                continue
            kept = relabel(_merged(labels, target.labels, job), job.metric_relabel_configs)
            if not kept:
                continue
            if "__name__" not in kept or not _plain(kept):
                raise CollectError("scrape", "bad_name", f"{target.url}: relabelling left no valid name: {kept}")
            sample = Sample(kept.pop("__name__"), labels_of(kept), value)
            _check(job, sample)
            found.setdefault((sample.metric, sample.labels), sample)  # of two alike the first counts, as in Prometheus
            if len(found) > job.sample_limit:
                text = f"{target.url}: more than {job.sample_limit} samples (sample_limit); drop some by relabelling"
                raise CollectError("scrape", "too_many_samples", text)
    except page.PageError as e:
        raise CollectError("scrape", "not_metrics", f"{target.url}: {e}") from e
    return Scraped(tuple(found.values()), refused)


def _plain(labels: Mapping[str, str]) -> bool:
    """Names in quotes may hold anything since Prometheus 3; rules and pages of ours write them without."""
    name = labels["__name__"].replace(":", "_")
    return LABEL_NAME.fullmatch(name) is not None and all(LABEL_NAME.fullmatch(label) for label in labels)


def _merged(scraped: Mapping[str, str], own: Mapping[str, str], job: Job) -> dict[str, str]:
    """The target's labels win and the page's become exported_…, unless the job honours the page's."""
    if job.honor_labels:
        return {**own, **scraped}
    labels = {**scraped, **own}
    for name in own.keys() & scraped.keys():
        new = f"exported_{name}"
        while new in labels:
            new = f"exported_{new}"
        if scraped[name]:
            labels[new] = scraped[name]
    return labels


def _check(job: Job, sample: Sample) -> None:
    if len(sample.labels) + 1 > job.label_limit:
        raise CollectError("scrape", "too_many_labels", f"{sample.metric}: more than {job.label_limit} labels")
    for name, value in sample.labels:
        if len(name) > job.label_name_length_limit or len(value) > job.label_value_length_limit:
            raise CollectError("scrape", "label_too_long", f"{sample.metric}: label {name[:80]} is too long")

"""The /metrics page: the newest value of every series, and the sidecar's own metrics, as Prometheus scrapes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from sidecar.model import Labels, MetricInfo, Sample
from sidecar.outputs.pagetext import Family, PageText

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

# Prometheus keeps ALERTS for its own rules: scraped under this name, ours would mix with those of the server.
_ALERTS, ALERTS_AS = "ALERTS", "spikewatch_alerts"
_ERRORS = "spikewatch_exposition_errors_total"
_UNKNOWN_HELP = "A metric this version of spikewatch has no description of."

METRICS: tuple[MetricInfo, ...] = (
    MetricInfo(ALERTS_AS, "gauge", "", "Always 1: an alert that is pending or firing.", ("alertname", "alertstate")),
    MetricInfo(
        _ERRORS,
        "counter",
        "",
        "Pages of which a part is missing because its source failed.",
        ("source",),
    ),
)

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Newest(Protocol):
    """The newest value of every series that is not stale, as (metric, labels, value)."""

    def __call__(self) -> Iterable[tuple[str, Labels, float]]: ...


class SampleSource(Protocol):
    """Metrics a part of the sidecar has about itself."""

    def __call__(self) -> Iterable[Sample]: ...


class Exposition:
    """Renders pages. Reads memory only: no driver, no file, no network.

    External labels are never on the page, for Prometheus adds its own. Left out are the results of recording rules
    (a colon in the name is reserved for the server that scrapes) and ALERTS_FOR_STATE; ALERTS appears as
    `spikewatch_alerts`. A metric that is not in the catalogue is untyped.
    """

    def __init__(
        self, newest: Newest, catalogue: Iterable[MetricInfo], sources: Mapping[str, SampleSource] | None = None
    ) -> None:
        """Of two descriptions of one metric the first counts, with a warning: a plugin may bring the second."""
        self._newest = newest
        self._sources = dict(sources or {})
        self._catalogue = _distinct((*METRICS, *catalogue))
        self._errors: dict[str, int] = {}
        self._text = PageText()

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """Content and content type, in the format that the Accept header of the request asks for."""
        from prometheus_client.exposition import choose_encoder, generate_latest

        families = [self._family(name, values) for name, values in sorted(self._by_metric().items())]
        try:
            encoder, content_type = choose_encoder(accept)
        except (ValueError, TypeError):  # a version that is no number; everybody understands the oldest format
            encoder, content_type = generate_latest, "text/plain; version=0.0.4; charset=utf-8"
        return self._text.page(encoder, content_type, families), content_type

    def _by_metric(self) -> dict[str, dict[Labels, float]]:
        found: dict[str, dict[Labels, float]] = {}
        # The store may hold a series that a source reports too. The source is fresher, and two lines of one series
        # would spoil the whole scrape.
        for name, source in self._sources.items():
            for sample in self._read(name, source):
                found.setdefault(sample.metric, {}).setdefault(sample.labels, sample.value)
        for metric, labels, value in self._read("store", self._newest):
            name = ALERTS_AS if metric == _ALERTS else metric
            if ":" not in name and name != "ALERTS_FOR_STATE":
                plain = labels[1:] if labels and labels[0][0] == "__name__" else _nameless(labels)
                found.setdefault(name, {}).setdefault(plain, value)
        for part, count in self._errors.items():
            found.setdefault(_ERRORS, {})[("source", part),] = count
        return found

    def _read(self, part: str, source: Callable[[], Iterable[_T]]) -> list[_T]:
        """Everything a source has; nothing of it where it fails, for one broken part must not hide all others."""
        try:
            return list(source())
        except Exception as e:  # noqa: BLE001
            if part not in self._errors:
                _log.warning("/metrics lacks what %s has: %s: %s", part, type(e).__name__, e)
            self._errors[part] = self._errors.get(part, 0) + 1
            return []

    def _family(self, name: str, values: dict[Labels, float]) -> Family:
        return Family(name, partial(self._empty, name), values)

    def _empty(self, name: str) -> Metric:
        from prometheus_client.metrics_core import Metric

        info = self._catalogue.get(name)
        if info is None:
            return Metric(name, _UNKNOWN_HELP, "unknown")
        base = name.removesuffix("_total") if info.kind == "counter" else name
        return Metric(base, info.help, info.kind, info.unit if info.unit and base.endswith("_" + info.unit) else "")


def _nameless(labels: Labels) -> Labels:
    return tuple([pair for pair in labels if pair[0] != "__name__"])


def _distinct(catalogue: Iterable[MetricInfo]) -> dict[str, MetricInfo]:
    found: dict[str, MetricInfo] = {}
    families: dict[str, str] = {}  # OpenMetrics names the family of a counter without _total
    for info in catalogue:
        holder = families.setdefault(info.name.removesuffix("_total"), info.name)
        if holder != info.name:
            _log.warning("metric %s is exported untyped: in OpenMetrics it clashes with %s", info.name, holder)
        elif found.setdefault(info.name, info) != info:
            _log.warning("metric %s is described twice; the first description counts", info.name)
    return found

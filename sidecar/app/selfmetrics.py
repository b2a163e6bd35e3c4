"""What the sidecar says about itself on /metrics, beyond what each room says for its own part."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar import __version__
from sidecar.alerting.manager import ManagerStats
from sidecar.model import MetricInfo, Sample
from sidecar.settings import Settings
from sidecar.store import Stats

METRICS: tuple[MetricInfo, ...] = (
    MetricInfo("spikewatch_build_info", "gauge", "", "Always 1: the version that runs.", ("version",)),
    MetricInfo("spikewatch_config_hash", "gauge", "", "A number that follows the content of all loaded files."),
    MetricInfo(
        "spikewatch_config_last_reload_successful", "gauge", "", "Whether the newest attempt to load was accepted."
    ),
    MetricInfo(
        "spikewatch_config_last_reload_success_timestamp_seconds",
        "gauge",
        "seconds",
        "When the configuration that runs was loaded.",
    ),
    MetricInfo("spikewatch_clock_offset_seconds", "gauge", "seconds", "The machine's wall clock minus ours."),
    MetricInfo("spikewatch_ticks_total", "counter", "", "Ticks since start."),
    MetricInfo("spikewatch_tick_errors_total", "counter", "", "Parts of a tick that failed.", ("part",)),
    MetricInfo("spikewatch_tick_duration_seconds", "gauge", "seconds", "How long the newest tick took."),
    MetricInfo("spikewatch_rule_evaluations_total", "counter", "", "Rule evaluations since start."),
    MetricInfo("spikewatch_rule_evaluation_failures_total", "counter", "", "Rule evaluations that failed."),
    MetricInfo("spikewatch_rule_group_iterations_missed_total", "counter", "", "Evaluations that came too late to do."),
    MetricInfo("spikewatch_alert_state_write_failures_total", "counter", "", "Writes of alert state that failed."),
    MetricInfo("spikewatch_store_series", "gauge", "", "Series in memory."),
    MetricInfo("spikewatch_store_bytes", "gauge", "bytes", "Memory the samples take."),
    MetricInfo("spikewatch_store_samples_total", "counter", "", "Samples taken in."),
    MetricInfo("spikewatch_store_rejected_samples_total", "counter", "", "Samples refused.", ("reason",)),
    MetricInfo("spikewatch_store_refused_series_total", "counter", "", "Series refused because a limit was hit."),
)

PRICE: tuple[MetricInfo, ...] = (
    MetricInfo(
        "spikewatch_usd_per_gpu_hour",
        "gauge",
        "",
        "Price of a GPU for an hour in US dollars, as configured; absent where it is not.",
    ),
    MetricInfo(
        "spikewatch_priced_gpus", "gauge", "", "GPUs of this pod the price is for; absent where not configured."
    ),
)
"""Settings that rules reckon with: the sidecar writes them into the store, where rules can read them."""


def price(settings: Settings) -> Iterable[Sample]:
    """The metrics named in PRICE. What is not configured is left out: no price is not a price of nothing."""
    for name, value in (("usd_per_gpu_hour", settings.usd_per_gpu_hour), ("priced_gpus", settings.gpus)):
        if value is not None:
            yield Sample(f"spikewatch_{name}", (), float(value))


class Vitals:
    """Counters of the process's own loop, and the state of its configuration."""

    def __init__(self) -> None:
        self.ticks = 0
        self.tick_seconds = 0.0
        self.tick_errors: dict[str, int] = {}
        self.config_hash = 0
        self.reload_ok = True
        self.loaded_at_ms = 0

    def failed(self, part: str) -> None:
        """Counts a part of a tick that failed."""
        self.tick_errors[part] = self.tick_errors.get(part, 0) + 1

    def samples(self, manager: ManagerStats, store: Stats, offset_ms: int) -> Iterable[Sample]:
        """The metrics named in METRICS."""
        yield Sample("spikewatch_build_info", (("version", __version__),), 1.0)
        for part, count in self.tick_errors.items():
            yield Sample("spikewatch_tick_errors_total", (("part", part),), count)
        for reason, count in (
            ("out_of_order", store.rejected_out_of_order),
            ("duplicate", store.rejected_duplicate),
            ("unknown_series", store.rejected_unknown),
        ):
            yield Sample("spikewatch_store_rejected_samples_total", (("reason", reason),), count)
        for name, value in (
            ("config_hash", float(self.config_hash)),
            ("config_last_reload_successful", float(self.reload_ok)),
            ("config_last_reload_success_timestamp_seconds", self.loaded_at_ms / 1000),
            ("clock_offset_seconds", offset_ms / 1000),
            ("ticks_total", self.ticks),
            ("tick_duration_seconds", self.tick_seconds),
            ("rule_evaluations_total", manager.evaluations),
            ("rule_evaluation_failures_total", manager.failures),
            ("rule_group_iterations_missed_total", manager.missed),
            ("alert_state_write_failures_total", manager.persistence_failures),
            ("store_series", store.series),
            ("store_bytes", store.bytes),
            ("store_samples_total", store.samples),
            ("store_refused_series_total", store.refused_series),
        ):
            yield Sample(f"spikewatch_{name}", (), float(value))

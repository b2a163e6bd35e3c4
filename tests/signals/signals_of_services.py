"""Signals about what cannot be seen: pages that are scraped, and a driver that withholds its counters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from signals_of_gpus import NVML, pod_with_gpus
from signals_rows import Row, Source, fired, pod_on, quiet
from signals_stage import Pod, Stage

PAGE = Source("page of metrics of a stand-in, scraped over HTTP", "fake")


class Gateway:
    """A serving gateway and a tracing backend on one page."""

    def __init__(self) -> None:
        self.shows_hits, self.sampled = True, 0.1

    def page(self, path: str) -> tuple[int, str, bytes]:
        """Their metrics now."""
        hits = "gateway_cache_hit_ratio 0.8\n" if self.shows_hits else ""
        return 200, "text/plain; version=0.0.4", f"{hits}sampling_probability {self.sampled}\n".encode()


def scraping(stage: Stage, gateway: Gateway) -> Pod:
    """A cluster process that scrapes both."""
    target = stage.serve(gateway.page)
    renamed = (("gateway", "gateway_cache_hit_ratio", "spikewatch_gateway_cache_hit_ratio"),
               ("tracing", "sampling_probability", "spikewatch_trace_sampling_ratio"))  # fmt: skip
    jobs = [
        {
            "job_name": source, "source": source, "scrape_interval": "1s", "scrape_timeout": "900ms",
            "static_configs": [{"targets": [target]}],
            "metric_relabel_configs": [
                {"source_labels": ["__name__"], "regex": theirs, "action": "keep"},
                {"target_label": "__name__", "replacement": ours},
            ],
        }
        for source, theirs, ours in renamed
    ]  # fmt: skip
    pod = pod_on(stage, "cluster", collectors={"scrape": {"jobs": jobs}})
    pod.until_true("spikewatch_gateway_cache_hit_ratio == 0.8")
    pod.until_true("spikewatch_trace_sampling_ratio == 0.1")
    return pod


def unseen(stage: Stage, kit: object) -> Sequence[Row]:
    """A gateway that no longer says how often its cache hits, and traces that are hardly sampled."""
    gateway = Gateway()
    pod = scraping(stage, gateway)
    time.sleep(5)
    quiet(pod, "BlindGatewayCache", "BlindTraceSampling")
    gateway.shows_hits, gateway.sampled, since = False, 0.005, time.time()
    return [
        fired(pod, "BlindGatewayCache", since, PAGE, "the gateway stops exporting its cache's hit ratio", seconds=900),
        fired(pod, "BlindTraceSampling", since, PAGE, "trace sampling goes from 10 % to 0.5 %", seconds=900),
    ]


def no_gpm(stage: Stage, library: Path) -> Sequence[Row]:
    """A driver that refuses activity counters in the middle of a run."""
    pod, gpus = pod_with_gpus(stage, library)
    time.sleep(5)
    quiet(pod, "BlindGpuBandwidth", "CollectorDown")
    since = gpus.become(**_refused(3, 2, 5, 10))
    return [fired(pod, "BlindGpuBandwidth", since, NVML, "the driver refuses the activity counters (GPM)", seconds=300)]


def _refused(code: int, *metrics: int) -> dict[str, Any]:
    return {f"gpmerr.{metric}": code for metric in metrics}

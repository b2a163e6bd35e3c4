"""Every metric a declared serving worker gives."""

from __future__ import annotations

from sidecar.model import Evidence, MetricInfo


def _metric(name: str, kind: str, unit: str, text: str) -> MetricInfo:
    return MetricInfo(
        f"spikewatch_worker_{name}",
        "counter" if kind == "counter" else "gauge",
        unit,
        text,
        ("worker", "slot"),
        "spikewatch client, worker.request()",
        "process",
        verified=Evidence("device", "2026-11-29", "real processes, Linux 6.18"),
    )


FIELDS: tuple[tuple[str, MetricInfo], ...] = (
    (
        "idle_seconds",
        _metric("idle_seconds", "gauge", "seconds", "Time since the last request of a declared worker ended."),
    ),
    (
        "cold_start_seconds",
        _metric(
            "cold_start_seconds",
            "gauge",
            "seconds",
            "From the start of a declared worker's process to the end of its first request; absent before.",
        ),
    ),
    (
        "resident_bytes",
        _metric(
            "resident_memory_bytes",
            "gauge",
            "bytes",
            "Resident memory of a declared worker's process, as it reads it in /proc itself.",
        ),
    ),
    ("requests_total", _metric("requests_total", "counter", "", "Requests a declared worker has served.")),
)
"""(ring field, metric). `slot` tells workers of one name apart: the lowest number that was free."""

METRICS: tuple[MetricInfo, ...] = tuple(info for _, info in FIELDS)

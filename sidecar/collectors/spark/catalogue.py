"""The metrics of the collector `spark`."""

from __future__ import annotations

from typing import Literal

from sidecar.model import Evidence, MetricInfo

API = Evidence("device", "2026-11-30", "Spark 4.0.1, a driver with an executor and its history server; YARN by hand")

_STAGE = ("app", "stage")


def _info(
    name: str,
    unit: str,
    text: str,
    labels: tuple[str, ...],
    quality: Literal["exact", "averaged", "estimated"] = "exact",
) -> MetricInfo:
    kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
    return MetricInfo(f"spikewatch_spark_{name}", kind, unit, text, labels, "Spark REST API", "cluster", quality, API)


METRICS: tuple[MetricInfo, ...] = (
    _info(
        "task_serialized_bytes",
        "bytes",
        "Serialised data of a task: the largest of what it read, wrote, got or gave by shuffle, or sent to the driver; "
        "mean, p50 or max over a stage's tasks.",
        (*_STAGE, "stat"),
    ),
    _info(
        "task_max_bytes",
        "bytes",
        "The same by kind (input, output, shuffle_read, shuffle_write, result), of the task that has most.",
        (*_STAGE, "kind"),
    ),
    _info("stage_tasks", "", "Tasks that a stage is cut into.", _STAGE),
    _info("up", "", "Whether a server answered the newest reading.", ("server",)),
    _info("applications", "", "Applications looked at in the newest reading.", ("server",)),
    _info("left_out", "", "What the newest reading did not look at: beyond its limits.", ("server", "what")),
    _info("read_seconds", "seconds", "How long the newest reading took.", ("server",)),
    _info("read_errors_total", "", "Readings that failed; their series end.", ("server",)),
)

"""The metrics of the collector `datasets`."""

from __future__ import annotations

from typing import Literal

from sidecar.model import Evidence, MetricInfo

FILES = Evidence("device", "2026-11-30", "Parquet files by pyarrow 26.0 on a local disk and by s3fs; S3 was moto")

_DATASET = ("dataset",)


def _info(
    name: str,
    unit: str,
    text: str,
    labels: tuple[str, ...] = _DATASET,
    source: str = "listing",
    quality: Literal["exact", "averaged", "estimated"] = "exact",
) -> MetricInfo:
    kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
    return MetricInfo(f"spikewatch_dataset_{name}", kind, unit, text, labels, source, "cluster", quality, FILES)


METRICS: tuple[MetricInfo, ...] = (
    _info("files", "", "Parquet files found; empty ones and hidden ones do not count."),
    _info("bytes", "bytes", "Size of all Parquet files found, as stored."),
    _info("file_size_bytes", "bytes", "Size of a Parquet file as stored: mean, p50 or max.", ("dataset", "stat")),
    _info(
        "row_group_bytes",
        "bytes",
        "Size of a row group before compression: mean, p50 or max, of the files whose footers were read.",
        ("dataset", "stat"),
        "footers",
        "estimated",
    ),
    _info("row_groups_per_file", "", "Mean, of the files whose footers were read.", _DATASET, "footers", "estimated"),
    _info("rows_per_file", "", "Mean, of the files whose footers were read.", _DATASET, "footers", "estimated"),
    _info("footers", "", "Files whose footers were read in the newest reading.", _DATASET, "footers"),
    _info(
        "left_out",
        "",
        "What the newest reading did not look at: beyond its limits, empty, or unreadable.",
        ("dataset", "what"),
    ),
    _info("last_read_timestamp_seconds", "seconds", "When the newest reading ended."),
    _info("read_seconds", "seconds", "How long the newest reading took."),
    _info("read_errors_total", "", "Readings that failed; their series end."),
)

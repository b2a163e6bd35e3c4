"""Every metric an attached trainer gives: name, kind, unit, meaning, and the field of the ring it comes from."""

from __future__ import annotations

from typing import Literal

from sidecar.model import MetricInfo

_Kind = Literal["counter", "gauge"]
_PREFIX = "spikewatch_trainer_"


def _metric(
    name: str, kind: Literal["counter", "gauge"], unit: str, text: str, source: str, *labels: str
) -> MetricInfo:
    return MetricInfo(_PREFIX + name, kind, unit, text, ("rank", *labels), source)


def _field(field: str, name: str, kind: _Kind, unit: str, text: str) -> tuple[str, MetricInfo]:
    return field, _metric(name, kind, unit, text, f"spikewatch client, ring field {field}")


FIELDS: tuple[tuple[str, MetricInfo], ...] = (
    _field("steps_total", "steps_total", "counter", "", "Training steps finished (calls of step())."),
    _field(
        "step_seconds_total",
        "step_seconds_total",
        "counter",
        "seconds",
        "Time spent in training steps, the one in progress included; evaluation and checkpoints are not.",
    ),
    _field(
        "data_wait_seconds_total",
        "data_wait_seconds_total",
        "counter",
        "seconds",
        "Time the training loop waited for its loader, the wait in progress included.",
    ),
    _field(
        "samples_total", "samples_total", "counter", "", "Samples used by finished steps, where they can be counted."
    ),
    _field("input_bytes_total", "input_bytes_total", "counter", "bytes", "Tensor bytes of the batches handed over."),
    _field(
        "prefetch_requests_total",
        "prefetch_requests_total",
        "counter",
        "",
        "Batches asked of a loader that prefetches.",
    ),
    _field(
        "prefetch_hits_total",
        "prefetch_hits_total",
        "counter",
        "",
        "Of them those that were ready at the moment of asking.",
    ),
    _field(
        "overflows_total",
        "gradient_overflows_total",
        "counter",
        "",
        "Steps the gradient scaler skipped because a gradient was not finite.",
    ),
    _field(
        "consecutive_overflows",
        "consecutive_overflows",
        "gauge",
        "",
        "Gradient overflows in a row up to the newest step.",
    ),
    _field("nonfinite_losses_total", "nonfinite_losses_total", "counter", "", "Steps whose loss was NaN or infinite."),
    _field("loss", "loss", "gauge", "", "Newest loss that has arrived from the device."),
    _field("grad_norm", "gradient_norm", "gauge", "", "Newest gradient norm that was given to step()."),
    _field("loss_scale", "loss_scale", "gauge", "", "Loss scale of an enabled fp16 gradient scaler."),
    _field("batch_size", "batch_size", "gauge", "", "Samples a batch of this rank's loader."),
    _field("num_workers", "dataloader_workers", "gauge", "", "Worker processes of the loader."),
    _field(
        "prefetch_factor",
        "dataloader_prefetch_factor",
        "gauge",
        "",
        "Batches loaded ahead by each worker; absent where there are no workers.",
    ),
    _field(
        "last_step_timestamp",
        "last_step_timestamp_seconds",
        "gauge",
        "seconds",
        "When the newest step ended, seconds since 1970.",
    ),
    _field("epoch", "epoch", "gauge", "", "Passes over the loader begun before the present one."),
    _field(
        "errors_total",
        "client_errors_total",
        "counter",
        "",
        "Errors of the spikewatch client inside the trainer, all without effect on it.",
    ),
)
"""(ring field, metric), each with one label `rank`."""

PHASE = _metric(
    "phase", "gauge", "", "1 for the phase the rank is in, 0 for the others.", "spikewatch client, run.phase()", "phase"
)
RECORDS_LOST = _metric(
    "records_lost_total",
    "counter",
    "",
    "Step records overwritten or damaged before they were read; the totals above lose nothing by it.",
    "telemetry ring",
)
RUN_INFO = _metric(
    "run_info",
    "gauge",
    "",
    "Always 1. Which process a rank is: random run id, framework and torch.distributed backend.",
    "HELLO",
    "run_id",
    "framework",
    "backend",
)

METRICS: tuple[MetricInfo, ...] = (*(info for _, info in FIELDS), PHASE, RECORDS_LOST, RUN_INFO)

COUNTER_FIELDS = frozenset(field for field, info in FIELDS if info.kind == "counter")

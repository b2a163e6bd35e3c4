"""Every metric an attached trainer gives: name, kind, unit, meaning, and the field of the ring it comes from."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from sidecar.model import Evidence, MetricInfo
from sidecar.trainer import workercatalogue

_Kind = Literal["counter", "gauge"]
_PREFIX = "spikewatch_trainer_"

TRAINED = Evidence("device", "2026-11-29", "real trainings, torch 2.13.0 on CPU and gloo")
SNAPSHOTS = Evidence("fake", "2026-11-29", "snapshots of the allocator, no GPU")
PROFILES = Evidence("fake", "2026-11-29", "events of a profile, no GPU")


def _metric(
    name: str, kind: Literal["counter", "gauge"], unit: str, text: str, source: str, *labels: str
) -> MetricInfo:
    return MetricInfo(_PREFIX + name, kind, unit, text, ("rank", *labels), source, "process", verified=TRAINED)


def _field(
    field: str, name: str, kind: _Kind, unit: str, text: str, quality: Literal["exact", "estimated"] = "exact"
) -> tuple[str, MetricInfo]:
    info = _metric(name, kind, unit, text, f"spikewatch client, ring field {field}")
    return field, replace(info, quality=quality)


def _of_allocator(field: str, name: str, kind: _Kind, unit: str, text: str) -> tuple[str, MetricInfo]:
    _, info = _field(field, name, kind, unit, text)
    return field, replace(info, source="CUDA caching allocator", verified=SNAPSHOTS)


def _memory(name: str, unit: str, text: str) -> tuple[str, MetricInfo]:
    return _of_allocator(f"memory_{name}", f"memory_{name}", "gauge", unit, text)


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
    _field("epoch_steps", "epoch_steps", "gauge", "", "Steps finished in the present pass over the loader."),
    _field(
        "epoch_overflows",
        "epoch_gradient_overflows",
        "gauge",
        "",
        "Of them those the gradient scaler skipped because a gradient was not finite.",
    ),
    _field(
        "loss_stddev", "loss_stddev", "gauge", "", "Standard deviation of the last 100 finite losses; absent before."
    ),
    _field(
        "cold_start_seconds",
        "cold_start_seconds",
        "gauge",
        "seconds",
        "From the start of the trainer process to the end of its first step.",
    ),
    _memory("reserved_bytes", "bytes", "Device memory the caching allocator holds, used and unused."),
    _memory("allocated_bytes", "bytes", "Device memory the caching allocator has handed to tensors."),
    _memory(
        "largest_free_bytes",
        "bytes",
        "Largest block that could be had now: a free block of the cache, or all that the driver has free with the "
        "segments the cache could give back; at most every 10 s.",
    ),
    _memory(
        "fragmentation_ratio",
        "ratio",
        "1 less the largest free block over all free memory; wholly free segments count as one with what the driver "
        "has free; at most every 10 s.",
    ),
    _of_allocator(
        "alloc_retries_total",
        "alloc_retries_total",
        "counter",
        "",
        "Allocations that only succeeded after the allocator's cache was emptied.",
    ),
    _of_allocator(
        "ooms_total", "out_of_memory_total", "counter", "", "Allocations that failed for lack of device memory."
    ),
    _field(
        "sync_seconds_total",
        "sync_seconds_total",
        "counter",
        "seconds",
        "Time of gradient communication, overlapped by the backward pass or not; DDP measures one step in 20, that "
        "one stands for the others.",
        quality="estimated",
    ),
    _field("ddp_forward_seconds", "ddp_forward_seconds", "gauge", "seconds", "Forward pass of the step DDP measured."),
    _field(
        "ddp_backward_seconds", "ddp_backward_seconds", "gauge", "seconds", "Backward pass of the step DDP measured."
    ),
    _field(
        "ddp_communication_seconds",
        "ddp_communication_seconds",
        "gauge",
        "seconds",
        "Gradient communication of the step DDP measured, from its first bucket to its last.",
    ),
    _field(
        "ddp_overlap_ratio",
        "ddp_overlap_ratio",
        "gauge",
        "ratio",
        "Time that communication and backward pass share, over the longer of the two.",
    ),
    (
        "copy_compute_overlap_ratio",
        replace(
            _metric(
                "copy_compute_overlap_ratio",
                "gauge",
                "ratio",
                "Time that device copies and kernels share, over the longer of the two, in the newest profile.",
                "spikewatch client, run.on_trace()",
            ),
            verified=PROFILES,
        ),
    ),
    (
        "offload_bytes_total",
        MetricInfo(
            "spikewatch_offload_bytes_total",
            "counter",
            "bytes",
            "Bytes the training engine moved to and from its offload storage.",
            ("rank",),
            "spikewatch client, run.offloaded()",
            "process",
            verified=TRAINED,
        ),
    ),
)
"""(ring field, metric), each with one label `rank`."""

BUFFERS = _metric(
    "gradient_buckets_total",
    "counter",
    "",
    "Gradient buckets handed to collectives, by whether their address is a multiple of 512.",
    "addresses of DDP's buckets, with gradient_as_bucket_view=True",
    "aligned",
)
BUFFER_FIELDS = (("buffers_aligned_total", "true"), ("buffers_misaligned_total", "false"))

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
ENGINE = ("parallelism", "precision", "offload")
RUN_INFO = _metric(
    "run_info",
    "gauge",
    "",
    "Always 1. Which process a rank is: random run id, framework, torch.distributed backend, and how it trains.",
    "HELLO",
    "run_id",
    "framework",
    "backend",
    *ENGINE,
)
DEVICE_INFO = replace(
    _metric("device_info", "gauge", "", "Always 1. Which GPU a rank trains on, by UUID.", "the model's device", "gpu"),
    verified=Evidence("none"),
)
ORIGIN_PARTS = ("module", "operation", "direction")
ORIGIN = _metric(
    "nonfinite_origin_info",
    "gauge",
    "",
    "Always 1. Where the first value that is not finite came from, in the step that was searched after gradient "
    "overflows in a row.",
    "one searched step",
    *ORIGIN_PARTS,
)
CLIENT_OFF = _metric(
    "client_off_info",
    "gauge",
    "",
    "Always 1. The client of this rank has turned itself off after internal errors, the last of this kind; until the "
    "rank attaches anew.",
    "the client's last words",
    "reason",
)

METRICS: tuple[MetricInfo, ...] = (
    *(info for _, info in FIELDS),
    BUFFERS,
    PHASE,
    RECORDS_LOST,
    RUN_INFO,
    DEVICE_INFO,
    ORIGIN,
    CLIENT_OFF,
    *workercatalogue.METRICS,
)

COUNTER_FIELDS = frozenset(
    {field for field, info in (*FIELDS, *workercatalogue.FIELDS) if info.kind == "counter"}
    | {field for field, _ in BUFFER_FIELDS}
)

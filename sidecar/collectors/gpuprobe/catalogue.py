"""Every metric of the probes, with where its number comes from."""

from __future__ import annotations

from typing import Literal

from sidecar.model import Evidence, MetricInfo

UNSEEN = Evidence("fake", "2026-11-29", "kernels run by an interpreter and on the CPU; no GPU was at hand")
PREFIX = "spikewatch_gpu_probe_"


def _info(
    name: str, unit: str, text: str, labels: tuple[str, ...] = (), quality: Literal["exact", "estimated"] = "exact"
) -> MetricInfo:
    kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
    return MetricInfo(PREFIX + name, kind, unit, text, ("gpu", *labels), "CUDA kernel", "device", quality, UNSEEN)


READINGS: tuple[MetricInfo, ...] = (
    _info("memory_read_bytes_per_second", "bytes_per_second", "Contiguous read of memory.", ("statistic",)),
    _info("memory_copy_bytes_per_second", "bytes_per_second", "Copy within memory, read and write.", ("statistic",)),
    _info("memory_stride_efficiency_ratio", "ratio", "Useful bytes of words apart, over adjacent.", ("stride_bytes",)),
    _info(
        "memory_alignment_efficiency_ratio",
        "ratio",
        "Reads from an offset within a sector, over aligned ones.",
        ("level", "offset_bytes"),
    ),
    _info("l2_read_bytes_per_second", "bytes_per_second", "Reads that stay in the L2 cache."),
    _info("reduce_bytes_per_second", "bytes_per_second", "Adding two arrays: three times one array's bytes."),
    _info("shared_conflict_slowdown_ratio", "ratio", "Shared memory with every lane in one bank, over padded rows."),
    _info("shared_bytes_per_clock", "", "Shared memory without conflicts, bytes a clock and multiprocessor."),
    _info("tensor_flops_per_second", "flops_per_second", "Tensor cores.", ("dtype", "path")),
    _info("tensor_peak_ratio", "ratio", "Of what the multiprocessors can do at the measured clock.", ("dtype", "path")),
    _info("sm_clock_hertz", "hertz", "Clock while the tensor cores worked.", ("dtype", "path")),
    _info("fusion_speedup_ratio", "ratio", "RMSNorm and projection as two kernels, over one."),
    _info("fusion_saved_bytes", "bytes", "Memory traffic the fused kernel leaves out."),
    _info("launch_dispatch_seconds", "seconds", "Host time to queue a kernel.", quality="estimated"),
    _info("launch_throughput_seconds", "seconds", "Time a kernel in a long train of empty ones."),
    _info("launch_roundtrip_seconds", "seconds", "Queueing an empty kernel and waiting for it."),
    _info("graph_node_seconds", "seconds", "A node of a replayed CUDA graph of empty kernels."),
    _info("stream_overlap_ratio", "ratio", "How much of two kernels on two streams ran side by side."),
    _info("stream_active_ratio", "ratio", "A stream's share of the time both took.", ("stream",)),
    _info("stream_launch_delay_seconds", "seconds", "How much later than the first a stream began.", ("stream",)),
    _info("stream_implicit_wait_seconds", "seconds", "Time the two streams waited for each other."),
    _info("h2d_bytes_per_second", "bytes_per_second", "Copy from host to device.", ("memory",)),
    _info("copy_compute_overlap_ratio", "ratio", "Time copy and kernel shared, over the longer.", ("memory",)),
    _info("p2p_bytes_per_second", "bytes_per_second", "Reading a peer's memory.", ("path", "peer")),
    _info("allocatable_contiguous_bytes", "bytes", "Largest piece that can be had at once, headroom left alone."),
    _info("allocatable_ratio", "ratio", "That piece, over what may be taken."),
)

ABOUT: tuple[MetricInfo, ...] = (
    _info("runs_total", "", "Probes by what came of them.", ("probe", "result")),
    _info("gpu_seconds_total", "seconds", "GPU time probes have taken."),
    _info("last_success_timestamp_seconds", "seconds", "When a probe last gave numbers.", ("probe",)),
    _info("baseline_ratio", "ratio", "A number over what this GPU usually gives; > 1 is better.", ("of", "probe")),
    _info("degraded", "", "1 where a number is below its baseline, at once or for three turns.", ("of", "probe")),
)

METRICS = READINGS + ABOUT

"""Each signal that a pod can have, as series over time, and the alerts that a central Prometheus must raise of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Value = Callable[[float], float]  # of the seconds since the scene began


def steady(value: float) -> Value:
    return lambda t: value


def growing(per_second: float) -> Value:
    return lambda t: 1 + per_second * t


def falling(at_s: float, before: float, after: float) -> Value:
    return lambda t: before if t < at_s else after


@dataclass(frozen=True)
class Scene:
    """`alerts`: what must fire, and by which second at a scrape every 15 s, `for` and one evaluation included."""

    signal: str
    series: Mapping[str, Value]
    alerts: Mapping[str, int]


def training(step_s: float = 0.5) -> dict[str, Value]:
    """A rank that trains."""
    return {
        'spikewatch_trainer_phase{rank="0",phase="train"}': steady(1),
        'spikewatch_trainer_phase{rank="0",phase="eval"}': steady(0),
        'spikewatch_trainer_steps_total{rank="0"}': growing(1 / step_s),
        'spikewatch_trainer_step_seconds_total{rank="0"}': growing(1),
    }


GPU = '{gpu="GPU-1",index="0"}'
COLLAPSE_S = 480

SCENES = (
    Scene("well", {  # nothing is wrong here
        **training(),
        'spikewatch_trainer_data_wait_seconds_total{rank="0"}': growing(0.05),
        'spikewatch_trainer_sync_seconds_total{rank="0"}': growing(0.2),
        'spikewatch_trainer_input_bytes_total{rank="0"}': growing(3e8),
        'spikewatch_trainer_loss_scale{rank="0"}': steady(65536),
        'spikewatch_trainer_consecutive_overflows{rank="0"}': steady(0),
        f"spikewatch_gpu_sm_active_ratio{GPU}": steady(0.9),
        f"spikewatch_gpu_dram_active_ratio{GPU}": steady(0.6),
        f"spikewatch_gpu_memory_used_ratio{GPU}": steady(0.7),
    }, {}),
    Scene("gpu_memory_saturated", {
        f"spikewatch_gpu_memory_used_ratio{GPU}": steady(0.93),
        f"spikewatch_gpu_sm_active_ratio{GPU}": steady(0.8),
        f"spikewatch_gpu_dram_active_ratio{GPU}": steady(0.5),
    }, {"GpuMemorySaturated": 330}),
    Scene("gpu_overprovisioned", {
        f"spikewatch_gpu_memory_used_ratio{GPU}": steady(0.93),
        f"spikewatch_gpu_sm_active_ratio{GPU}": steady(0.02),
        f"spikewatch_gpu_dram_active_ratio{GPU}": steady(0.01),
    }, {"GpuHeldIdle": 345, "GpuMemorySaturated": 330}),
    Scene("idle_worker", {
        'spikewatch_worker_idle_seconds{worker="api",slot="1"}': growing(1),
        'spikewatch_worker_resident_memory_bytes{worker="api",slot="1"}': steady(60e6),
    }, {"IdleWorker": 120}),
    Scene("cold_start_slow", {
        'spikewatch_worker_cold_start_seconds{worker="api",slot="1"}': steady(1.4),
    }, {"ColdStartSlow": 30}),
    Scene("dataloader_throughput_low", {
        **training(),
        'spikewatch_trainer_data_wait_seconds_total{rank="0"}': growing(0.6),
        'spikewatch_trainer_input_bytes_total{rank="0"}': growing(2e8),
        'spikewatch_trainer_prefetch_requests_total{rank="0"}': growing(2),
        'spikewatch_trainer_prefetch_hits_total{rank="0"}': growing(1.2),
        'spikewatch_io_pressure_seconds_total{scope="container",kind="some"}': growing(0.5),
        'spikewatch_cgroup_cpu_periods_total{group="trainer"}': growing(10),
        'spikewatch_cgroup_cpu_throttled_periods_total{group="trainer"}': growing(5),
        f"spikewatch_gpu_sm_dram_lag_seconds{GPU}": steady(0.4),
    }, {
        "TrainerStarvedOfData": 120,
        "InputThroughputLow": 150,
        "PrefetchHitRateLow": 150,
        "IoBlocked": 90,
        "DataWorkersThrottled": 150,
        "SmLagsDram": 90,
    }),
    Scene("offload_bandwidth_low", {
        **training(),
        'spikewatch_offload_bytes_total{rank="0"}': growing(3e8),
        'spikewatch_storage_probe_bytes_per_second{device="nvme0n1",engine="io_uring"}': steady(3e9),
        'spikewatch_io_pressure_seconds_total{scope="node",kind="some"}': growing(0.4),
    }, {"OffloadBandwidthLow": 150, "IoBlocked": 90}),
    Scene("blind_gpu_bandwidth", {
        f"spikewatch_gpu_memory_used_ratio{GPU}": steady(0.4),
        'spikewatch_collector_up{collector="nvml"}': steady(0),
        'spikewatch_collector_status{collector="nvml",state="unavailable",reason="driver_hung"}': steady(1),
    }, {"BlindGpuBandwidth": 90, "CollectorDown": 90}),
    Scene("gpu_comm_coupling", {
        **training(),
        'spikewatch_trainer_sync_seconds_total{rank="0"}': growing(0.67),
        f"spikewatch_gpu_sm_active_ratio{GPU}": falling(COLLAPSE_S, 0.82, 0.11),
        f"spikewatch_gpu_dram_active_ratio{GPU}": steady(0.4),
        "spikewatch_nccl_downgraded_routes": steady(2),
        'spikewatch_nccl_buffers_total{aligned="true"}': growing(1),
        'spikewatch_nccl_buffers_total{aligned="false"}': growing(1),
    }, {"GpuCommCoupling": COLLAPSE_S + 240, "NcclTransportDowngraded": 60, "GradientBuffersMisaligned": 330}),
    Scene("allreduce_wait", {
        **training(),
        'spikewatch_nccl_slow_collectives_consecutive{op="AllReduce"}': steady(5),
        'spikewatch_nccl_collective_wait_seconds{rank="0",op="AllReduce"}': steady(0.2),
        'spikewatch_nccl_watchdog_timeouts_total{op="AllReduce"}': falling(60, 0, 1),
    }, {"AllReduceWait": 60, "CollectiveTimedOut": 120}),
    Scene("checkpoint_residency", {
        **training(),
        'spikewatch_trainer_device_info{rank="0",gpu="GPU-1"}': steady(1),
        f"spikewatch_gpu_memory_total_bytes{GPU}": steady(80e9),
        'spikewatch_trainer_memory_reserved_bytes{rank="0"}': steady(72e9),
        'spikewatch_trainer_memory_largest_free_bytes{rank="0"}': steady(1e9),
        'spikewatch_trainer_memory_fragmentation_ratio{rank="0"}': steady(0.8),
        'spikewatch_trainer_alloc_retries_total{rank="0"}': growing(1 / 20),
    }, {"CheckpointResidency": 90, "GpuMemoryFragmented": 240}),
    Scene("loss_scale_collapse", {
        **training(),
        'spikewatch_trainer_loss_scale{rank="0"}': steady(0.5),
        'spikewatch_trainer_consecutive_overflows{rank="0"}': steady(12),
        'spikewatch_trainer_epoch_gradient_overflows{rank="0"}': growing(0.4),
        'spikewatch_trainer_epoch_steps{rank="0"}': growing(2),
    }, {"LossScaleCollapse": 30, "GradientOverflowsFrequent": 120, "GradientOverflowsMany": 120}),
)  # fmt: skip


def named(series: str, **labels: str) -> str:
    """The series with further labels."""
    more = ",".join(f'{name}="{value}"' for name, value in labels.items())
    name, brace, rest = series.partition("{")
    return f"{name}{{{more}{',' + rest if brace else '}'}"


def expected() -> dict[str, dict[str, int]]:
    """Alert → the scenes (pods) in which it fires, and by when."""
    found: dict[str, dict[str, int]] = {}
    for scene in SCENES:
        for alert, by_s in scene.alerts.items():
            found.setdefault(alert, {})[scene.signal] = by_s
    return found

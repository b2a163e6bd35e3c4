"""`python -m probes.devicecheck`: the one command that tells on a real GPU whether the probes measure what they say.

Needs libcuda only; torch, where it is installed, is what the copy is compared with. A minute. Prints JSON, and with
--table the rows of the table in docs/probes.md. Exits 0 when every check holds, 1 when one does not, 3 without a GPU.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from probes.catalogue import catalogue
from probes.driver import Driver
from probes.runner import Sweep, sweep

STEPS, BURSTS = 60, 30
WORST_STEP_RATIO = 1.01


@dataclass(frozen=True, slots=True)
class Check:
    """One row. `ok` None: measured, nothing to hold it against."""

    name: str
    value: float | None
    unit: str
    wanted: str
    ok: bool | None


def readings(found: Sweep) -> dict[str, float]:
    """By name without prefix, labels in braces."""
    named = {}
    for outcome in found.outcomes:
        for reading in outcome.readings:
            labels = ",".join(f"{k}={v}" for k, v in sorted(reading["labels"].items()))
            named[reading["metric"].removeprefix("spikewatch_gpu_probe_") + (f"{{{labels}}}" if labels else "")] = (
                float(reading["value"])
            )
    return named


def judged(found: Sweep) -> Iterator[Check]:
    """What a sweep's numbers must be, from research on A100, H100 and H200."""
    seen = readings(found)
    rated = float(found.device.get("peak_memory_bytes_per_second", 0))

    def share(name: str, of: float, least: float) -> Check:
        value = seen.get(name)
        ratio = value / of if value is not None and of else None
        return Check(f"{name} ÷ rated", ratio, "ratio", f">= {least}", None if ratio is None else ratio >= least)

    yield share("memory_read_bytes_per_second{statistic=best}", rated, 0.80)
    yield share("memory_copy_bytes_per_second{statistic=best}", rated, 0.75)
    for stride, wanted in ((8, 0.5), (16, 0.25), (32, 0.125)):
        value = seen.get(f"memory_stride_efficiency_ratio{{stride_bytes={stride}}}")
        ok = None if value is None else abs(value - wanted) <= 0.15
        yield Check(f"stride of {stride} bytes, useful share", value, "ratio", f"{wanted} ± 0.15", ok)
    slowdown = seen.get("shared_conflict_slowdown_ratio")
    yield Check("bank conflict, slowdown", slowdown, "x", "8 to 40", None if slowdown is None else 8 <= slowdown <= 40)
    for name in (
        "launch_dispatch_seconds",
        "launch_throughput_seconds",
        "launch_roundtrip_seconds",
        "graph_node_seconds",
    ):
        value = seen.get(name)
        yield Check(
            name, None if value is None else value * 1e6, "us", "< 50", None if value is None else value < 50e-6
        )
    for name, value in seen.items():
        if name.startswith("tensor_"):
            yield Check(name, value, "FLOP/s" if "flops" in name else "ratio", "", None)
        if name.startswith(("stream_overlap", "copy_compute_overlap{memory=pinned")):
            yield Check(name, value, "ratio", ">= 0.8", value >= 0.8)
    results = {o.probe: o.result for o in found.outcomes}
    yield Check("probes that gave numbers", float(list(results.values()).count("ok")), "", f"{len(catalogue())}", None)


def beside_torch(copy: float | None) -> Check:
    """Our copy against torch's copy within the device."""
    name = "copy ÷ torch's device copy"
    if copy is None or importlib.util.find_spec("torch") is None:
        return Check(name, None, "ratio", "0.95 to 1.05", None)
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return Check(name, None, "ratio", "0.95 to 1.05", None)
    source = torch.empty(64 << 20, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    took = []
    for _ in range(10):
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        target.copy_(source)
        ended.record()
        torch.cuda.synchronize()
        took.append(began.elapsed_time(ended) / 1e3)
    theirs = 2 * source.numel() * 4 / min(took)
    return Check(name, copy / theirs, "ratio", "0.95 to 1.05", 0.95 <= copy / theirs <= 1.05)


def context_bytes(index: int) -> Check:
    """What a probe's context and kernels take of the device's memory, seen from this process."""
    driver = Driver()
    from probes.device import Device

    with Device(driver, index) as device:
        before = device.free_bytes()
        command = [sys.executable, "-c", _HOLD.format(index=index)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdin is not None
            child.stdout.readline()
            taken = before - device.free_bytes()
            child.stdin.close()
            child.wait(30)
    return Check("memory of a probe's context", taken / 2**20, "MiB", "< 1024", taken < 1 << 30)


_HOLD = """
import sys
from probes.driver import Driver
from probes.device import Device
d = Driver(); d("cuInit", 0)
with Device(d, {index}) as device:
    device.launch(device.kernel("timing", "noop"), 1, 32); device.wait()
    print("ready", flush=True); sys.stdin.read()
"""


def beside_a_step(index: int) -> Check:
    """The time of a training step alone, and with a light sweep once a second beside it: medians, alternating."""
    alone, beside = [], []
    for _ in range(3):
        alone += _steps(index)
        with subprocess.Popen([sys.executable, "-c", _BURSTS.format(index=index)], stdout=subprocess.DEVNULL) as bursts:
            beside += _steps(index)
            bursts.terminate()
            bursts.wait(30)
    ratio = statistics.median(beside) / statistics.median(alone)
    return Check(
        "step time beside a light sweep a second", ratio, "x", f"<= {WORST_STEP_RATIO}", ratio <= WORST_STEP_RATIO
    )


_BURSTS = """
import time
from probes.runner import sweep
while True:
    sweep(["light"], index={index}); time.sleep(1)
"""


def _steps(index: int) -> list[float]:
    """Stand-in for a trainer: tensor work and copies, some milliseconds a step."""
    from probes.device import Device

    driver = Driver()
    with Device(driver, index) as device, device.memory(256 << 20) as data, device.memory(1 << 24) as out:
        sms = device.facts.multiprocessors
        mma, copy = device.kernel("tensor", "mma_bf16"), device.kernel("memory", "copy_vec4")
        times = data + (200 << 20)
        work = [ctypes.c_ulonglong(out), ctypes.c_uint(8000), ctypes.c_ulonglong(times)]
        move = [ctypes.c_ulonglong(data + (96 << 20)), ctypes.c_ulonglong(data), ctypes.c_ulonglong((96 << 20) // 16)]
        took = []
        for _ in range(STEPS):
            began = time.perf_counter()
            device.launch(mma, 2 * sms, 256, work)
            device.launch(copy, 4 * sms, 512, move)
            device.wait()
            took.append(time.perf_counter() - began)
        return took[5:]


def main(arguments: list[str]) -> int:
    """See above."""
    index = 0
    found = sweep(["all"], index=index, deadline_s=120)
    if found.refused or found.fake:
        sys.stdout.write(json.dumps({"result": found.refused or "fake", "reason": found.reason}) + "\n")
        return 3
    checks = list(judged(found))
    checks.append(beside_torch(readings(found).get("memory_copy_bytes_per_second{statistic=best}")))
    checks += [context_bytes(index), beside_a_step(index)]
    if "--table" in arguments:
        for check in checks:
            value = "" if check.value is None else f"{check.value:.4g} {check.unit}"
            sys.stdout.write(f"| {check.name} | {value} | {check.wanted} | {_WORDS[check.ok]} |\n")
    else:
        report: dict[str, Any] = {
            "device": dict(found.device),
            "checks": [asdict(check) for check in checks],
            "readings": readings(found),
            "results": {o.probe: f"{o.result} {o.reason}".strip() for o in found.outcomes},
        }
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 1 if any(check.ok is False for check in checks) else 0


_WORDS = {True: "ok", False: "MISSED", None: ""}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

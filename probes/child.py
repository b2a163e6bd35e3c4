"""The short-lived process that touches the GPU: one JSON line a probe, and nothing that outlives a lost context.

    python -m probes.child DEVICE MOST_BYTES PROBE…

Exit codes: 0 everything said what it had to say, 3 no GPU can be used (the line says why).
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from probes import device as gpu
from probes.catalogue import chosen
from probes.driver import CudaError, Driver
from probes.reading import Findings, Probe, Size, Wrong

UNUSABLE = 3
_RESULTS = {2: "oom", 46: "skipped_exclusive", 100: "no_device", 214: "ecc_error", 222: "driver_too_old"}


def say(**line: Any) -> None:
    """One line, at once: what was said survives whatever comes after."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def result_of(error: CudaError) -> str:
    """The word for `spikewatch_gpu_probe_runs_total{result}`."""
    if error.sticky:
        return "context_lost"
    return _RESULTS.get(error.code, "unsupported" if error.code in (0, 500, 801) else "error")


def main(arguments: list[str]) -> int:
    """Runs the probes named on one device."""
    index, most_bytes, names = int(arguments[0]), int(arguments[1]), arguments[2:]
    os.nice(10)  # the host side of a probe must not take the trainer's core
    try:
        driver = Driver(os.environ.get("SPIKEWATCH_CUDA_LIBRARY", "libcuda.so.1"))
        if gpu.count(driver) <= index:
            say(result="no_device", reason=f"there is no device {index}")
            return UNUSABLE
        known = gpu.facts(driver, index)
        refused = _refusal(known)
        if refused:
            say(result=refused[0], reason=refused[1], device=_shown(known))
            return UNUSABLE
        if not names:
            say(device=_shown(known))  # what it is, without a context on it
            return 0
        with gpu.Device(driver, index) as device:
            _sweep(device, most_bytes, chosen(names))
    except CudaError as e:
        say(result="no_driver" if e.code == 0 and e.function.startswith("lib") else result_of(e), reason=str(e))
        return UNUSABLE
    return 0


def _refusal(known: gpu.Facts) -> tuple[str, str] | None:
    if known.compute_mode == gpu.PROHIBITED:
        return "skipped_exclusive", "compute mode is prohibited: no process may use this GPU"
    if known.compute_mode == gpu.EXCLUSIVE_PROCESS:
        return "skipped_exclusive", "compute mode is exclusive-process: a probe would take the trainer's place"
    return None


def _sweep(device: gpu.Device, most_bytes: int, probes: list[Probe]) -> None:
    shown = _shown(device.facts)
    say(device=shown, free_bytes=device.free_bytes())
    size = Size.of(device, most_bytes)
    for probe in probes:
        found = Findings()
        began = time.monotonic()
        line: dict[str, Any] = {"probe": probe.name, "result": "ok"}
        try:
            probe.measure(device, size, found)
        except Wrong as e:
            line |= {"result": "wrong", "reason": str(e)}
        except CudaError as e:
            line |= {"result": result_of(e), "reason": str(e)}
        kept = found.readings if line["result"] != "wrong" else []
        line |= {"readings": [r.as_json() for r in kept], "gpu_seconds": found.gpu_seconds}
        say(**line, seconds=time.monotonic() - began)
        if line["result"] in ("context_lost", "wrong"):
            return  # nothing after it can be believed


def _shown(known: gpu.Facts) -> dict[str, Any]:
    return {
        "name": known.name,
        "uuid": known.uuid,
        "fake": known.fake,
        "driver": known.driver_version,
        "compute": f"{known.major}.{known.minor}",
        "multiprocessors": known.multiprocessors,
        "l2_bytes": known.l2_bytes,
        "total_bytes": known.total_bytes,
        "memory_clock_khz": known.memory_clock_khz,
        "peak_memory_bytes_per_second": known.peak_memory_bytes_per_second,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

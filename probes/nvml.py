"""What NVML says of one GPU, through ctypes: idle or not, clocks limited or not, power limit, free memory.

Without NVML everything is unknown, which keeps the gates closed and nothing is learned.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

_IDLE_REASON = 0x1
"""Of the clocks-event bits the one that means: nothing to do."""
SAMPLES, APART_S = 2, 1.0
"""NVML's utilisation covers 1/6 to 1 s: two looks a second apart see any work in between."""


@dataclass(frozen=True, slots=True)
class Look:
    """None: not known."""

    busy: float | None = None  # 0..1, the larger of the looks
    clocks_limited: int | None = None  # the bits without idle; 0: nothing limits them
    power_limit_w: int | None = None
    free_bytes: int | None = None


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def look(uuid: str, library: str = "libnvidia-ml.so.1", sleep: Callable[[float], None] = time.sleep) -> Look:
    """Never raises. A call can hang in the driver: only the watched child makes it."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return Look()
    if nvml.nvmlInit_v2():
        return Look()
    try:
        handle = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
            return Look()
        return Look(
            busy=_busy(nvml, handle, sleep),
            clocks_limited=_reasons(nvml, handle),
            power_limit_w=_power_limit(nvml, handle),
            free_bytes=_free(nvml, handle),
        )
    finally:
        nvml.nvmlShutdown()


def _busy(nvml: ctypes.CDLL, handle: ctypes.c_void_p, sleep: Callable[[float], None]) -> float | None:
    seen: list[float] = []
    for n in range(SAMPLES):
        found = _Utilization()
        if nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(found)):
            return None
        seen.append(found.gpu / 100)
        if n + 1 < SAMPLES:
            sleep(APART_S)
    return max(seen)


def _reasons(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> int | None:
    bits = ctypes.c_ulonglong()
    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        function = getattr(nvml, name, None)  # renamed with release 535
        if function is not None:
            return None if function(handle, ctypes.byref(bits)) else int(bits.value) & ~_IDLE_REASON
    return None


def _power_limit(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> int | None:
    milliwatts = ctypes.c_uint()
    failed = nvml.nvmlDeviceGetPowerManagementLimit(handle, ctypes.byref(milliwatts))
    return None if failed else milliwatts.value // 1000


def _free(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> int | None:
    found = _Memory()
    return None if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(found)) else found.free

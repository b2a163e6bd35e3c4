"""GPUs for a sidecar that sees none: asked by a folder beside the socket, a rank reads NVML and writes them down.

Only the process of local rank 0 does, in a thread of its own that touches nothing of the trainer's; it reads every GPU
the driver shows. Errors are counted and end in a pause, never in the trainer.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from spikewatch.asked import AskedFolder

THREAD_NAME = "spikewatch-gpus"
FILE = "gpus.json"
LIBRARY = "libnvidia-ml.so.1"
EVERY = 1.0  # seconds between two readings; GPM needs more than a tenth
LOOK_EVERY = 5.0  # seconds between two looks whether anybody asks
PAUSE, MOST_FAILURES = 60.0, 5  # after errors of the driver; then never again in this process
MAX_GPUS = 64

GPM = (2, 3, 5, 10, 20, 21, 60, 61)  # SM, occupancy, tensor, DRAM, PCIe out and in, NVLink in and out
POWER = 186  # field value: mW at this moment
_ROOM = 1024  # the library's structure has room for every metric there is; we ask for a few and leave the rest unused

U32, U64, F64 = ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_double


class Refused(Exception):
    """A call that did not succeed; `code` is nvmlReturn_t, −1 where the library lacks the function."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(str(code))


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", U32), ("memory", U32))


class _Memory(ctypes.Structure):
    _fields_ = (("version", U32), ("total", U64), ("reserved", U64), ("free", U64), ("used", U64))


class _Field(ctypes.Structure):
    _fields_ = (
        *(("field", U32), ("scope", U32), ("at", ctypes.c_longlong), ("latency", ctypes.c_longlong)),
        *(("type", U32), ("code", ctypes.c_int), ("value", U64)),
    )


class _Metric(ctypes.Structure):
    _fields_ = (("id", U32), ("code", ctypes.c_int), ("value", F64), ("names", ctypes.c_void_p * 3))


class _Get(ctypes.Structure):
    _fields_ = (
        ("version", U32),
        ("number", U32),
        ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
        ("metrics", _Metric * _ROOM),
    )


class _Support(ctypes.Structure):
    _fields_ = (("version", U32), ("supported", U32))


class Gpu:
    """One GPU's handle, and its pair of GPM samples where it has GPM."""

    def __init__(self, driver: Driver, number: int) -> None:
        self.number, self._driver, self._handle = number, driver, ctypes.c_void_p()
        driver.call("nvmlDeviceGetHandleByIndex_v2", U32(number), ctypes.byref(self._handle))
        self.uuid, self.name = (self._text(f"nvmlDeviceGet{what}") for what in ("UUID", "Name"))
        self._samples: list[ctypes.c_void_p] = []
        self._taken = False
        self._gpm = 0  # the code with which GPM was refused

    def _text(self, name: str) -> str:
        buffer = ctypes.create_string_buffer(128)
        self._driver.call(name, self._handle, buffer, U32(len(buffer)))
        return buffer.value.decode("ascii", "replace")

    def read(self) -> dict[str, Any]:
        """In the form of the sidecar's own NVML process. What cannot be had is left out."""
        values: dict[str, float] = {}
        codes: dict[str, int] = {}
        for what, part in (("utilization", self._rates), ("memory", self._memory), ("f186", self._power)):
            try:
                values.update(part())
            except Refused as refused:
                codes[what] = refused.code
        if not self._gpm:
            try:
                values.update(self._activity())
            except Refused as refused:
                self._gpm = refused.code
        if self._gpm:
            codes["gpm"] = self._gpm
        return {"gpu": self.uuid, "index": str(self.number), "name": self.name, "values": values, "codes": codes}

    def _rates(self) -> Iterator[tuple[str, float]]:
        rates = _Rates()
        self._driver.call("nvmlDeviceGetUtilizationRates", self._handle, ctypes.byref(rates))
        return iter((("util.gpu", rates.gpu), ("util.memory", rates.memory)))

    def _memory(self) -> Iterator[tuple[str, float]]:
        memory = _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
        self._driver.call("nvmlDeviceGetMemoryInfo_v2", self._handle, ctypes.byref(memory))
        return iter((f"mem.{name}", getattr(memory, name)) for name in ("total", "used", "free", "reserved"))

    def _power(self) -> Iterator[tuple[str, float]]:
        field = _Field(field=POWER)
        self._driver.call("nvmlDeviceGetFieldValues", self._handle, ctypes.c_int(1), ctypes.byref(field))
        if field.code:
            raise Refused(field.code)
        number = field.value & 0xFFFF_FFFF if field.type == 1 else field.value  # an unsigned int fills the lower half
        return iter((("f186", number),))

    def _activity(self) -> Iterator[tuple[str, float]]:
        call = self._driver.call
        if not self._samples:
            support = _Support(version=1)
            call("nvmlGpmQueryDeviceSupport", self._handle, ctypes.byref(support))
            if not support.supported:
                raise Refused(3)
            for _ in range(2):
                sample = ctypes.c_void_p()
                call("nvmlGpmSampleAlloc", ctypes.byref(sample))
                self._samples.append(sample)
        call("nvmlGpmSampleGet", self._handle, self._samples[0])
        self._samples.reverse()
        taken, self._taken = self._taken, True
        if not taken:
            return iter(())
        get = self._driver.get
        get.version, get.number = 1, len(GPM)
        get.first, get.second = self._samples
        for place, metric in enumerate(GPM):
            get.metrics[place].id = metric
        call("nvmlGpmMetricsGet", ctypes.byref(get))
        found = [get.metrics[place] for place in range(len(GPM))]
        return iter([(f"g{m.id}", m.value) for m in found if m.code == 0 and m.value == m.value])


class Driver:
    """libnvidia-ml.so.1 by its C names, initialised once and never shut down."""

    def __init__(self, library: str) -> None:
        """Raises OSError where there is none, Refused where it does not start."""
        self._library = ctypes.CDLL(library)
        self.get = _Get()
        self.call("nvmlInitWithFlags", U32(0))
        count = U32()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self.version = self._version()
        self.gpus = [Gpu(self, number) for number in range(min(count.value, MAX_GPUS))]

    def call(self, name: str, *arguments: Any) -> None:
        """Raises Refused for any return code but success."""
        try:
            function = self._library[name]
        except AttributeError:
            raise Refused(13) from None  # as NVML itself calls it: function not found
        code = int(function(*arguments))
        if code:
            raise Refused(code)

    def _version(self) -> str:
        buffer = ctypes.create_string_buffer(96)
        self.call("nvmlSystemGetDriverVersion", buffer, U32(len(buffer)))
        return buffer.value.decode("ascii", "replace")


class GpuWatch:
    """The thread. `errors` counts what went wrong."""

    def __init__(self, folder: str, stop: threading.Event, library: str = LIBRARY, every: float = EVERY) -> None:
        """`folder`: the sidecar makes it, with a file in it that says it wants to be told."""
        self.errors = 0
        self._folder = AskedFolder(folder, FILE)
        self._stop, self._library, self._every = stop, library, every
        self._driver: Driver | None = None
        self._failures = 0

    def run(self) -> None:
        """Until `stop` is set."""
        pause = 0.0
        while not self._stop.wait(pause):
            pause = LOOK_EVERY if self._every == EVERY else self._every
            try:
                if self._folder.wanted():
                    self._tell()
                    pause = self._every
            except Exception:  # noqa: BLE001  the trainer must not see our mistakes, nor the driver's
                self.errors += 1
                self._failures += 1
                if self._failures >= MOST_FAILURES:
                    return
                pause = PAUSE if self._every == EVERY else self._every

    def _tell(self) -> None:
        if self._driver is None:
            self._driver = Driver(self._library)
        driver = self._driver
        told = {"driver": driver.version, "gpus": [gpu.read() for gpu in driver.gpus]}
        self._folder.tell(told)


def watch(
    folder: str, stop: threading.Event, local_rank: int = 0, devices: Sequence[str] = ("/dev/nvidiactl", "/dev/dxg")
) -> bool:
    """Starts the thread where there is a GPU to read and this rank is the one that does. Never raises."""
    try:
        if local_rank != 0 or not any(map(os.path.exists, devices)):
            return False
        threading.Thread(target=GpuWatch(folder, stop).run, name=THREAD_NAME, daemon=True).start()
    except Exception:  # noqa: BLE001  no thread to be had: the trainer goes on without
        return False
    return True

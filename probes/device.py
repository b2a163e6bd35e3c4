"""One GPU as the probes see it: what it is, its memory, streams, kernels. Everything is given back on the way out."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ctypes import byref
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from probes.driver import CudaError, Driver

FAKE = "FAKE GPU"
"""How the driver of the tests names its device: nothing measured on it may be taken for a GPU's."""

_ATTRIBUTES = {
    "clock_khz": 13,
    "multiprocessors": 16,
    "compute_mode": 20,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "l2_bytes": 38,
    "major": 75,
    "minor": 76,
}
BLOCKING_SYNC = 4
EXCLUSIVE_PROCESS, PROHIBITED = 3, 2
PTX = Path(__file__).parent / "ptx"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a device says of itself. Sizes in bytes, clocks in kHz."""

    index: int
    name: str
    uuid: str
    driver_version: int
    total_bytes: int
    clock_khz: int
    multiprocessors: int
    compute_mode: int
    memory_clock_khz: int
    memory_bus_bits: int
    l2_bytes: int
    major: int
    minor: int

    @property
    def fake(self) -> bool:
        """Whether this is the tests' CPU-executed device."""
        return self.name.startswith(FAKE)

    @property
    def peak_memory_bytes_per_second(self) -> float:
        """Rated: two transfers a clock over the bus's width. H200: 2 · 3201 MHz · 6144 bit = 4.92 TB/s."""
        return 2e3 * self.memory_clock_khz * self.memory_bus_bits / 8


def facts(driver: Driver, index: int) -> Facts:
    """Reads a device without making a context on it. Raises CudaError."""
    handle = ctypes.c_int()
    driver("cuDeviceGet", byref(handle), index)
    name = ctypes.create_string_buffer(100)
    driver("cuDeviceGetName", name, 100, handle)
    identity = (ctypes.c_char * 16)()
    driver("cuDeviceGetUuid_v2", byref(identity), handle)
    total = ctypes.c_size_t()
    driver("cuDeviceTotalMem_v2", byref(total), handle)
    found = {}
    for what, number in _ATTRIBUTES.items():
        value = ctypes.c_int()
        driver("cuDeviceGetAttribute", byref(value), number, handle)
        found[what] = value.value
    return Facts(
        index=index,
        name=name.value.decode(errors="replace"),
        uuid=f"GPU-{uuid.UUID(bytes=bytes(identity))}",
        driver_version=driver.version(),
        total_bytes=total.value,
        **found,
    )


def count(driver: Driver) -> int:
    """How many devices this process may see. Raises CudaError, NO_DEVICE for none."""
    driver("cuInit", 0)
    found = ctypes.c_int()
    driver("cuDeviceGetCount", byref(found))
    return found.value


class Device:
    """A device with a context current in this thread. A context manager."""

    def __init__(self, driver: Driver, index: int = 0, *, ptx: Path = PTX) -> None:
        """Raises CudaError."""
        self.driver, self.facts = driver, facts(driver, index)
        self._ptx = ptx
        self._given_back = ExitStack()
        self._modules: dict[str, ctypes.c_void_p] = {}
        self._kernels: dict[str, ctypes.c_void_p] = {}
        # a spinning host thread would take a core from the trainer
        driver("cuDevicePrimaryCtxSetFlags_v2", index, BLOCKING_SYNC)
        self.context = ctypes.c_void_p()
        driver("cuDevicePrimaryCtxRetain", byref(self.context), index)
        self._given_back.callback(driver.function("cuDevicePrimaryCtxRelease_v2"), index)
        driver("cuCtxSetCurrent", self.context)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._given_back.close()

    # --- memory ---------------------------------------------------------------------------------------------------

    def free_bytes(self) -> int:
        """What other processes and this one have left of it."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.driver("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    @contextmanager
    def memory(self, size: int) -> Iterator[int]:
        """The address of so many bytes of the device. Raises CudaError, OUT_OF_MEMORY among others."""
        address = ctypes.c_ulonglong()
        self.driver("cuMemAlloc_v2", byref(address), size)
        try:
            yield address.value
        finally:
            self.driver.function("cuMemFree_v2")(address.value)

    @contextmanager
    def pinned(self, size: int, *, mapped: bool = False) -> Iterator[int]:
        """The host address of so many bytes that the device can read by itself."""
        address = ctypes.c_void_p()
        self.driver("cuMemHostAlloc", byref(address), size, 2 if mapped else 0)
        assert address.value is not None
        try:
            yield address.value
        finally:
            self.driver.function("cuMemFreeHost")(address)

    def device_address(self, host: int) -> int:
        """Of mapped pinned memory."""
        found = ctypes.c_ulonglong()
        self.driver("cuMemHostGetDevicePointer_v2", byref(found), host, 0)
        return found.value

    def upload(self, address: int, data: bytes) -> None:
        """Copies to the device."""
        self.driver("cuMemcpyHtoD_v2", address, ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data))

    def download(self, address: int, size: int) -> bytes:
        """Copies from the device; waits for what was launched before."""
        buffer = ctypes.create_string_buffer(size)
        self.driver("cuMemcpyDtoH_v2", ctypes.cast(buffer, ctypes.c_void_p), address, size)
        return buffer.raw

    # --- kernels --------------------------------------------------------------------------------------------------

    def kernel(self, file: str, name: str) -> ctypes.c_void_p:
        """A kernel of `memory`, `shared`, … in the PTX for this device. Raises CudaError."""
        if name not in self._kernels:
            function = ctypes.c_void_p()
            self.driver("cuModuleGetFunction", byref(function), self._module(file), name.encode())
            self._kernels[name] = function
        return self._kernels[name]

    def _module(self, file: str) -> ctypes.c_void_p:
        if file not in self._modules:
            module = ctypes.c_void_p()
            self.driver("cuModuleLoadData", byref(module), self.ptx_file(file).read_bytes())
            self._given_back.callback(self.driver.function("cuModuleUnload"), module)
            self._modules[file] = module
        return self._modules[file]

    def ptx_file(self, file: str) -> Path:
        """The newest PTX this device can take. Raises CudaError where there is none."""
        compute = 10 * self.facts.major + self.facts.minor
        if compute == 90 and (self._ptx / f"{file}.90a.ptx").exists():
            return self._ptx / f"{file}.90a.ptx"
        for target in (80, 75):
            path = self._ptx / f"{file}.{target}.ptx"
            if compute >= target and path.exists():
                return path
        raise CudaError(f"kernel {file}", 0, f"nothing for compute capability {self.facts.major}.{self.facts.minor}")

    def launch(
        self,
        kernel: ctypes.c_void_p,
        grid: int,
        block: int,
        arguments: Sequence[ctypes._SimpleCData[int]] = (),
        stream: ctypes.c_void_p | None = None,
    ) -> None:
        """Queues a kernel. `arguments` as ctypes values of the kernel's types."""
        pointers = (ctypes.c_void_p * max(1, len(arguments)))(
            *[ctypes.cast(ctypes.pointer(a), ctypes.c_void_p) for a in arguments]
        )
        self.driver("cuLaunchKernel", kernel, grid, 1, 1, block, 1, 1, 0, stream, pointers, None)

    def wait(self) -> None:
        """Until all that was queued is done."""
        self.driver("cuCtxSynchronize")

    @contextmanager
    def stream(self) -> Iterator[ctypes.c_void_p]:
        """A stream that does not wait for the default one."""
        found = ctypes.c_void_p()
        self.driver("cuStreamCreate", byref(found), 1)
        try:
            yield found
        finally:
            self.driver.function("cuStreamDestroy_v2")(found)

    @contextmanager
    def event(self) -> Iterator[ctypes.c_void_p]:
        """A point in a stream, with its time."""
        found = ctypes.c_void_p()
        self.driver("cuEventCreate", byref(found), 0)
        try:
            yield found
        finally:
            self.driver.function("cuEventDestroy_v2")(found)

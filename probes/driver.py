"""The CUDA driver through ctypes: `libcuda.so.1` is all there is at run time, no toolkit and no wheel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_ulonglong, c_void_p
from typing import Any

STICKY = range(700, 720)
"""Errors after which the context is lost: everything in this process fails from then on."""

NAMES = {
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    3: "CUDA_ERROR_NOT_INITIALIZED",
    46: "CUDA_ERROR_DEVICE_UNAVAILABLE",
    100: "CUDA_ERROR_NO_DEVICE",
    101: "CUDA_ERROR_INVALID_DEVICE",
    214: "CUDA_ERROR_ECC_UNCORRECTABLE",
    217: "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
    218: "CUDA_ERROR_INVALID_PTX",
    222: "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    500: "CUDA_ERROR_NOT_FOUND",
    719: "CUDA_ERROR_LAUNCH_FAILED",
    801: "CUDA_ERROR_NOT_SUPPORTED",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
}

_P = ctypes.POINTER
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_P(c_int),),
    "cuDeviceGetCount": (_P(c_int),),
    "cuDeviceGet": (_P(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetUuid_v2": (_P(c_char * 16), c_int),
    "cuDeviceTotalMem_v2": (_P(c_size_t), c_int),
    "cuDeviceGetAttribute": (_P(c_int), c_int, c_int),
    "cuDeviceCanAccessPeer": (_P(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_P(c_void_p), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuDevicePrimaryCtxSetFlags_v2": (c_int, c_uint),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuCtxEnablePeerAccess": (c_void_p, c_uint),
    "cuMemGetInfo_v2": (_P(c_size_t), _P(c_size_t)),
    "cuMemAlloc_v2": (_P(c_ulonglong), c_size_t),
    "cuMemFree_v2": (c_ulonglong,),
    "cuMemHostAlloc": (_P(c_void_p), c_size_t, c_uint),
    "cuMemHostGetDevicePointer_v2": (_P(c_ulonglong), c_void_p, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemcpyHtoD_v2": (c_ulonglong, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_ulonglong, c_size_t),
    "cuMemcpyHtoDAsync_v2": (c_ulonglong, c_void_p, c_size_t, c_void_p),
    "cuMemsetD8_v2": (c_ulonglong, c_ubyte, c_size_t),
    "cuStreamCreate": (_P(c_void_p), c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, _P(c_void_p)),
    "cuGraphInstantiateWithFlags": (_P(c_void_p), c_void_p, c_ulonglong),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGraphDestroy": (c_void_p,),
    "cuEventCreate": (_P(c_void_p), c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (_P(c_float), c_void_p, c_void_p),
    "cuModuleLoadData": (_P(c_void_p), c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (_P(c_void_p), c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p),
}


class CudaError(Exception):
    """A driver call failed. `code` is CUDA's; 0 where the function is not in this driver."""

    def __init__(self, function: str, code: int, name: str) -> None:
        super().__init__(f"{function}: {name} ({code})" if code else f"{function}: {name}")
        self.function, self.code, self.name = function, code, name

    @property
    def sticky(self) -> bool:
        """Whether the context is lost."""
        return self.code in STICKY


class NoDriver(CudaError):
    """There is no CUDA driver on this machine, or none that this process may load."""

    def __init__(self, library: str, reason: str) -> None:
        super().__init__(library, 0, f"no CUDA driver: {reason}")


class Driver:
    """The functions of one driver library; missing ones are an error when they are called, not before."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        """Raises NoDriver."""
        try:
            self._library = ctypes.CDLL(library)
        except OSError as e:
            raise NoDriver(library, str(e)) from None
        self._functions: dict[str, Callable[..., int]] = {}

    def __call__(self, function: str, *arguments: Any) -> None:
        """Raises CudaError."""
        code = self.function(function)(*arguments)
        if code:
            raise CudaError(function, code, self._name(code))

    def function(self, name: str) -> Callable[..., int]:
        """The bare function, for loops in which a microsecond counts. Raises CudaError where the driver lacks it."""
        found = self._functions.get(name)
        if found is None:
            try:
                found = getattr(self._library, name)
            except AttributeError:
                raise CudaError(
                    name, 0, "this driver does not have it: it is older than what the probe needs"
                ) from None
            found.argtypes, found.restype = _SIGNATURES[name], c_int
            self._functions[name] = found
        return found

    def _name(self, code: int) -> str:
        text = c_char_p()
        get_name = getattr(self._library, "cuGetErrorName", None)
        if get_name is not None and not get_name(code, ctypes.byref(text)) and text.value:
            return text.value.decode()
        return NAMES.get(code, "unknown error")

    def version(self) -> int:
        """As CUDA writes it: 12020 for 12.2."""
        found = c_int()
        self("cuDriverGetVersion", ctypes.byref(found))
        return found.value

"""Return codes in words: what it is called, and the one change that would help."""

from __future__ import annotations

from sidecar.collectors.nvml import wire
from sidecar.model import Availability, Status

_U, _D, _G = Availability.UNAVAILABLE, Availability.DENIED, Availability.DEGRADED

_START = {
    wire.LIBRARY_NOT_FOUND: Status(
        _U,
        "no_library",
        "let the NVIDIA container toolkit mount the driver's library (NVIDIA_VISIBLE_DEVICES=all and"
        " NVIDIA_DRIVER_CAPABILITIES=utility on this container), or mount libnvidia-ml.so.1 and set"
        " collectors.nvml.library_path",
    ),
    wire.DRIVER_NOT_LOADED: Status(_U, "driver_not_loaded", "load the NVIDIA driver on the node"),
    wire.NO_PERMISSION: Status(
        _D,
        "driver_denied",
        "give this container access to /dev/nvidiactl and /dev/nvidia0 … (device cgroup, file mode)",
    ),
    wire.VERSION_MISMATCH: Status(
        _U,
        "driver_version_mismatch",
        "restart the pod: the node's driver was upgraded under it, its library is the old one",
    ),
    wire.UNKNOWN: Status(_U, "driver_unknown_error", "restart the container; look for Xid lines in the node's dmesg"),
    wire.UNINITIALIZED: Status(_U, "driver_uninitialized", "restart the container"),
    wire.LOST: Status(_U, "gpu_lost", "drain the node and power-cycle it: a GPU has fallen off the bus"),
    wire.RESET_REQUIRED: Status(_U, "gpu_reset_required", "drain the node and reset the GPU (nvidia-smi -r)"),
    wire.HUNG: Status(
        _U, "gpu_hung", "drain the node and reboot it: a call into the driver for this GPU does not return"
    ),
}

CGROUP_LOST = Status(
    _D,
    "device_cgroup_lost",
    "restart the container: its right to open the GPU devices was withdrawn (systemctl daemon-reload on the node does"
    " that unless containers get their devices by CDI)",
)

_FIXES = {
    (
        "gpm",
        wire.NOT_SUPPORTED,
    ): "needs Hopper or newer (on GeForce, Blackwell); before that, scrape the node's dcgm-exporter",
    ("gpm", wire.FUNCTION_NOT_FOUND): "upgrade the node's driver to 525 or newer",
    ("gpm", wire.NO_PERMISSION): "run the sidecar as root with CAP_SYS_ADMIN, or scrape the node's dcgm-exporter",
    ("xid", wire.NOT_SUPPORTED): "read Xid lines from the node's dmesg instead: this GPU has no events",
}


def whole(code: int) -> Status:
    """Why nothing can be read: at the start, or of one GPU."""
    return _START.get(code) or Status(_U, f"driver_error_{code}", "look the code up in nvml.h (nvmlReturn_t)")


def part(capability: str, code: int) -> Status:
    """Why one thing cannot be read of a GPU; available where it can."""
    if not code:
        return Status(Availability.AVAILABLE)
    fix = _FIXES.get((capability, code), "")
    if code == wire.NO_PERMISSION:
        return Status(_D, "no_permission", fix or "run the sidecar as the user the driver asks for, usually root")
    if code == wire.NOT_SUPPORTED:
        return Status(_U, "not_supported", fix)
    if code in (wire.FUNCTION_NOT_FOUND, wire.ARGUMENT_VERSION):
        return Status(_U, "not_in_this_driver", fix or "upgrade the node's driver")
    return Status(_U, f"driver_error_{code}", fix)


ZERO_WHILE_BUSY = Status(
    _G, "zero_while_busy", "restart the trainer: after some errors (Xid 31) the GPU's activity counters stay at zero"
)

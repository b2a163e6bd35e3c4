"""What passes between the collector and its child: names of raw values, return codes, settings. Standard library only.

The child is asked by one line, `r` for a report, `s4` to work four times as seldom, `u2` to try GPU 2 again, and
answers `r` with one line of JSON. Raw values have short names; `names.py` turns them into metrics:

    f138   field value 138                    gN     mean of GPM metric N since the last report
    mem.*  used, free, total, reserved        util.* gpu, memory
    clk.*  sm, mem, reasons (bits)            temp, limit, procs, procs.mem, mps
"""

from __future__ import annotations

import struct

# Return codes of NVML that mean something to us; nvml.h has them all.
UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 2, 3, 4, 6
DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 9, 10, 12, 13
LOST, RESET_REQUIRED, VERSION_MISMATCH, ARGUMENT_VERSION, UNKNOWN = 15, 16, 18, 25, 999
HUNG = -1  # ours: the call did not return

NEVER = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION})  # this GPU or driver does not have it
GONE = frozenset(
    {LOST, RESET_REQUIRED, UNINITIALIZED, DRIVER_NOT_LOADED, VERSION_MISMATCH, UNKNOWN}
)  # nor any other call
RESTART = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, VERSION_MISMATCH, UNKNOWN})  # on every GPU: begin anew

# The board: a page both processes map, in which the child says where it is before it enters the driver.
BOARD = struct.Struct("<i60s")  # GPU number or −1, name of the call
BOARD_SIZE = 4096

EXIT_DRIVER = 3  # the child's exit code when the driver gave up; its last line says why

# GPM: id → what it is. Percent, or MiB/s.
SM, OCCUPANCY, TENSOR, DRAM, PCIE_TX, PCIE_RX, NVLINK_RX, NVLINK_TX = 2, 3, 5, 10, 20, 21, 60, 61
GPM = (SM, OCCUPANCY, TENSOR, DRAM, PCIE_TX, PCIE_RX, NVLINK_RX, NVLINK_TX)

# Field values. A pair has a scope: all links of the GPU.
ALL_LINKS = 0xFFFFFFFF
TICK_FIELDS = (186, 83, 197, 198, (138, ALL_LINKS), (139, ALL_LINKS), (202, ALL_LINKS), (204, ALL_LINKS))
RARE_FIELDS = (3, 4, 31, 74, 75, 76, 82, 94, 142, 143, 144, 145, 269, 270, 271)

"""The telemetry ring's bytes: one header page, one live slot, one slow slot, 1024 record slots. Both ends read this.

Every number is little-endian. A record's payload is one float64 a field, in the order of the header's field table,
so that a reader finds a field by its name and an older reader skips what it does not know. What changes slowly or
costs time to find out has a table and a slot of its own in the header page, where an older trainer leaves zeros and
an older reader does not look.
"""

from __future__ import annotations

import struct

MAGIC = b"SPKWRING"
VERSION = 1

HEADER_SIZE = 4096
SLOT_SIZE = 256
SLOTS = 1024  # records kept; a power of two
SIZE = HEADER_SIZE + SLOTS * SLOT_SIZE

HEAD_OFFSET = 64  # u64: number of the newest record, 0 before the first
NAMES_OFFSET = 128  # the field table: names in ASCII, each ended by a zero byte
LIVE_OFFSET = 2048  # the live slot, written by the client's thread while a step or a wait is in progress

SLOW_OFFSET = 2304  # the slow fields' table: u32 how many, u32 crc32 of the names, then the names as above
SLOW_NAMES_OFFSET = SLOW_OFFSET + 8
SLOW_SLOT_OFFSET = 3584  # the slow slot, written by the client's thread about once a second
SLOW_SLOT_SIZE = 512

HEADER = struct.Struct("<8sIIIIII")  # magic, version, header size, slot size, slots, fields, crc32 of the field table
SEQUENCE = struct.Struct("<Q")  # 2·k − 1 while record k is being written, 2·k when it is whole
CHECKSUM = struct.Struct("<I")  # crc32 of the payload, begun with the record's number; last bytes of the slot
PAYLOAD_OFFSET = SEQUENCE.size
CHECKSUM_OFFSET = SLOT_SIZE - CHECKSUM.size
MAX_FIELDS = (CHECKSUM_OFFSET - PAYLOAD_OFFSET) // 8
SLOW_HEADER = struct.Struct("<II")
SLOW_CHECKSUM_OFFSET = SLOW_SLOT_SIZE - CHECKSUM.size
MAX_SLOW_FIELDS = (SLOW_CHECKSUM_OFFSET - PAYLOAD_OFFSET) // 8

FIELDS: tuple[str, ...] = (
    "written_at",  # seconds of the trainer's monotonic clock
    "steps_total",
    "step_seconds_total",
    "data_wait_seconds_total",
    "prefetch_requests_total",
    "prefetch_hits_total",
    "samples_total",
    "input_bytes_total",
    "loss",
    "grad_norm",
    "loss_scale",
    "overflows_total",
    "consecutive_overflows",
    "nonfinite_losses_total",
    "batch_size",
    "num_workers",
    "prefetch_factor",
    "phase",  # position in PHASES
    "last_step_timestamp",  # seconds since 1970
    "errors_total",
    "epoch",
)

SLOW_FIELDS: tuple[str, ...] = (
    "epoch_steps",
    "epoch_overflows",
    "loss_stddev",
    "cold_start_seconds",
    "memory_reserved_bytes",
    "memory_allocated_bytes",
    "memory_largest_free_bytes",
    "memory_fragmentation_ratio",
    "alloc_retries_total",
    "ooms_total",
    "sync_seconds_total",
    "ddp_forward_seconds",
    "ddp_backward_seconds",
    "ddp_communication_seconds",
    "ddp_overlap_ratio",
    "buffers_aligned_total",
    "buffers_misaligned_total",
    "copy_compute_overlap_ratio",
    "offload_bytes_total",
)

WORKER_FIELDS: tuple[str, ...] = (
    "written_at",
    "idle_seconds",
    "cold_start_seconds",
    "resident_bytes",
    "requests_total",
    "errors_total",
)
"""What a declared serving worker writes, into the live slot alone."""

PHASES: tuple[str, ...] = ("startup", "compile", "train", "eval", "checkpoint")
STARTUP, COMPILE, TRAIN, EVAL, CHECKPOINT = range(5)

MISSING_BITS = 0x7FF8_0000_5350_4B57
MISSING: float = struct.unpack("<d", struct.pack("<Q", MISSING_BITS))[0]
"""Not known. A quiet NaN with its own bits: a loss that really is NaN stays one."""


def is_missing(value: float) -> bool:
    """Whether a field holds `MISSING`, told from every other NaN by its bits."""
    return value != value and bits(value) == MISSING_BITS


def bits(value: float) -> int:
    """The 64 bits of a float."""
    number: int = SEQUENCE.unpack(struct.pack("<d", value))[0]
    return number


def slot_offset(number: int) -> int:
    """Where record `number` (from 1) lies."""
    return HEADER_SIZE + (number & (SLOTS - 1)) * SLOT_SIZE


def field_table(names: tuple[str, ...]) -> bytes:
    """The names as they stand in the header."""
    return b"".join(name.encode("ascii") + b"\0" for name in names)

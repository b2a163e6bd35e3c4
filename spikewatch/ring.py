"""The trainer's end of the telemetry ring: a sealed memfd written without a system call, lock or wait.

The kernel seals forbid shrinking it (a truncated mapping would kill the trainer with SIGBUS), growing it, and new
writable mappings: whoever gets the descriptor can only read.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Sequence
from struct import Struct
from zlib import crc32

from spikewatch import layout

F_SEAL_FUTURE_WRITE = 0x10  # Linux 5.1; not named in Python 3.11's fcntl
_HEAD_WORD = layout.HEAD_OFFSET // 8
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | F_SEAL_FUTURE_WRITE


class RingWriter:
    """Two writers: the training thread calls `write`, the client's thread `write_live` and `write_slow`."""

    __slots__ = ("_live", "_map", "_pack", "_pack_slow", "_put", "_put_slow", "_slow", "_words", "fd", "newest")

    def __init__(self, fields: tuple[str, ...] = layout.FIELDS, slow: tuple[str, ...] = layout.SLOW_FIELDS) -> None:
        """Raises OSError where the kernel has no memfd or no room (264 KiB, charged to the trainer's cgroup)."""
        if len(fields) > layout.MAX_FIELDS:
            raise ValueError(f"{len(fields)} fields do not fit a slot, {layout.MAX_FIELDS} do")
        if len(slow) > layout.MAX_SLOW_FIELDS:
            raise ValueError(f"{len(slow)} slow fields do not fit a slot, {layout.MAX_SLOW_FIELDS} do")
        self.fd = os.memfd_create("spikewatch-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # Allocated now: a tmpfs that is full later must not kill a training step.
            os.posix_fallocate(self.fd, 0, layout.SIZE)
            self._map = mmap.mmap(self.fd, layout.SIZE)
            self._head(fields)
            self._slow_head(slow)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
        except BaseException:
            os.close(self.fd)
            raise
        self._words = memoryview(self._map).cast("Q")
        self._pack, self._put = self._slot(len(fields), layout.SLOT_SIZE)
        self._pack_slow, self._put_slow = self._slot(len(slow), layout.SLOW_SLOT_SIZE)
        self._live = self._slow = 0
        self.newest = 0  # number of the newest record

    @staticmethod
    def _slot(fields: int, size: int) -> tuple[Callable[..., bytes], Callable[..., None]]:
        """What packs a payload, and what puts a whole slot: sequence, payload, checksum."""
        payload = Struct(f"<{fields}d")
        room = size - layout.PAYLOAD_OFFSET - payload.size - layout.CHECKSUM.size
        return payload.pack, Struct(f"<Q{payload.size}s{room}xI").pack_into

    def _head(self, fields: tuple[str, ...]) -> None:
        table = layout.field_table(fields)
        if layout.NAMES_OFFSET + len(table) > layout.LIVE_OFFSET:
            raise ValueError("the field names do not fit the header")
        self._map[layout.NAMES_OFFSET : layout.NAMES_OFFSET + len(table)] = table
        layout.HEADER.pack_into(
            self._map,
            0,
            layout.MAGIC,
            layout.VERSION,
            layout.HEADER_SIZE,
            layout.SLOT_SIZE,
            layout.SLOTS,
            len(fields),
            crc32(table),
        )

    def _slow_head(self, fields: tuple[str, ...]) -> None:
        table = layout.field_table(fields)
        if layout.SLOW_NAMES_OFFSET + len(table) > layout.SLOW_SLOT_OFFSET:
            raise ValueError("the slow fields' names do not fit the header")
        self._map[layout.SLOW_NAMES_OFFSET : layout.SLOW_NAMES_OFFSET + len(table)] = table
        layout.SLOW_HEADER.pack_into(self._map, layout.SLOW_OFFSET, len(fields), crc32(table))

    # The sequence is odd while a slot is written, even when it is whole. Python has no memory fences and ARM reorders
    # stores, so the checksum is what a reader trusts; the sequence only saves it most of the retries.

    def write(self, number: int, values: Sequence[float]) -> None:
        """Publishes record `number` (1, 2, 3 …), overwriting the one 1024 before it.

        The four calls are for a writer that has no time for all of them at once.
        """
        payload = self.packed(values)
        self.put(number, payload, self.checksum(number, payload))
        self.publish(number)

    def packed(self, values: Sequence[float]) -> bytes:
        """The payload of a record."""
        return self._pack(*values)

    def checksum(self, number: int, payload: bytes) -> int:
        """What `put` wants beside it."""
        return crc32(payload, number & 0xFFFF_FFFF)

    def put(self, number: int, payload: bytes, checksum: int) -> None:
        """Into its slot, where no reader looks for it yet."""
        self._put(self._map, layout.slot_offset(number), 2 * number - 1, payload, checksum)

    def publish(self, number: int) -> None:
        """Record `number`, which was put, is the newest now."""
        words = self._words
        words[layout.slot_offset(number) >> 3] = 2 * number
        words[_HEAD_WORD] = self.newest = number

    def write_live(self, values: Sequence[float]) -> None:
        """Replaces the live slot."""
        self._live = number = self._live + 1
        payload = self._pack(*values)
        self._put(self._map, layout.LIVE_OFFSET, 2 * number - 1, payload, crc32(payload, number & 0xFFFF_FFFF))
        self._words[layout.LIVE_OFFSET >> 3] = 2 * number

    def write_slow(self, values: Sequence[float]) -> None:
        """Replaces the slow slot."""
        self._slow = number = self._slow + 1
        payload, offset = self._pack_slow(*values), layout.SLOW_SLOT_OFFSET
        self._put_slow(self._map, offset, 2 * number - 1, payload, crc32(payload, number & 0xFFFF_FFFF))
        self._words[offset >> 3] = 2 * number

    def close(self) -> None:
        """Lets the memory go once no reader maps it. The writers must have stopped."""
        self._words.release()
        self._map.close()
        os.close(self.fd)

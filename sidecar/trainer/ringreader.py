"""Reads a trainer's telemetry ring through a descriptor that came over the socket, and believes nothing in it."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import re
import stat
import struct
import zlib
from collections.abc import Mapping

from sidecar.errors import ChannelError
from sidecar.trainer.catalogue import COUNTER_FIELDS
from spikewatch import layout

_NEEDED_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}", re.ASCII)
_TRIES = 3  # a slot that is being written is whole again within a microsecond
_STEPS_BACK = 8  # older records to fall back on when the newest cannot be had


class RingReader:
    """A read-only mapping of one ring."""

    def __init__(self, fd: int) -> None:
        """Takes `fd` over and closes it. Raises ChannelError for anything but a sealed ring of a known version.

        Without the seals the other end could shrink the file, and reading it would kill this process.
        """
        try:
            self._map = self._open(fd)
        finally:
            os.close(fd)
        try:
            self._fields = self._header()
            self._slow_fields = self._slow_header()
        except ChannelError:
            self._map.close()
            raise
        self._payload = struct.Struct(f"<{len(self._fields)}d")
        self._slow_payload = struct.Struct(f"<{len(self._slow_fields)}d")
        self._seen = 0
        self.lost = 0
        self._record: dict[str, float] = {}
        self._live: dict[str, float] = {}
        self._slow: dict[str, float] = {}

    @staticmethod
    def _open(fd: int) -> mmap.mmap:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size != layout.SIZE:
            raise ChannelError(f"the ring is no file of {layout.SIZE} bytes")
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            if seals & _NEEDED_SEALS != _NEEDED_SEALS:
                raise ChannelError("the ring is not sealed against being resized")
            return mmap.mmap(fd, layout.SIZE, prot=mmap.PROT_READ)
        except OSError as error:
            raise ChannelError(f"the ring cannot be mapped: {error.strerror}") from None

    def _header(self) -> tuple[str, ...]:
        page = bytes(self._map[: layout.HEADER_SIZE])
        magic, version, header, slot, slots, count, checksum = layout.HEADER.unpack_from(page)
        if magic != layout.MAGIC:
            raise ChannelError("not a telemetry ring")
        if (version, header, slot, slots) != (
            layout.VERSION,
            layout.HEADER_SIZE,
            layout.SLOT_SIZE,
            layout.SLOTS,
        ):
            raise ChannelError(f"a ring of version {version}, this sidecar reads {layout.VERSION}")
        if not 0 < count <= layout.MAX_FIELDS:
            raise ChannelError(f"a ring with {count} fields")
        return self._names(page[layout.NAMES_OFFSET : layout.LIVE_OFFSET], count, checksum)

    def _slow_header(self) -> tuple[str, ...]:
        """The slow fields; none of a trainer that is older than they are."""
        page = bytes(self._map[: layout.HEADER_SIZE])
        count, checksum = layout.SLOW_HEADER.unpack_from(page, layout.SLOW_OFFSET)
        if count > layout.MAX_SLOW_FIELDS:
            raise ChannelError(f"a ring with {count} slow fields")
        return self._names(page[layout.SLOW_NAMES_OFFSET : layout.SLOW_SLOT_OFFSET], count, checksum) if count else ()

    @staticmethod
    def _names(table: bytes, count: int, checksum: int) -> tuple[str, ...]:
        names = table.split(b"\0")[:count]
        fields = tuple(name.decode("ascii", "replace") for name in names)
        if zlib.crc32(b"".join(name + b"\0" for name in names)) != checksum or len(set(fields)) != count:
            raise ChannelError("the ring's field table is damaged")
        if not all(_NAME.fullmatch(name) for name in fields):
            raise ChannelError("the ring has a field with an impossible name")
        return fields

    def read(self) -> Mapping[str, float]:
        """The newest values by field; what is not known is left out.

        The live slot knows the step and the wait in progress, the newest record what the last step ended with:
        of a counter the larger is right, of a gauge the one written later.
        """
        self._record = self._newest() or self._record
        self._live = self._slot(layout.LIVE_OFFSET, None) or self._live
        slow = self._slow_slot()
        self._slow = self._slow if slow is None else slow
        record, live = self._record, self._live
        old, new = (record, live) if live.get("written_at", 0.0) >= record.get("written_at", 0.0) else (live, record)
        values = {**self._slow, **old, **new}
        for field in COUNTER_FIELDS:
            if field in old and field in new:
                values[field] = max(old[field], new[field])
        return values

    def _newest(self) -> dict[str, float] | None:
        head = int.from_bytes(self._map[layout.HEAD_OFFSET : layout.HEAD_OFFSET + 8], "little")
        if head < self._seen:
            return None  # no writer of ours goes back
        overrun = head - self._seen - layout.SLOTS
        if self._seen and overrun > 0:
            self.lost += overrun
        for number in range(head, max(head - _STEPS_BACK, 0), -1):
            values = self._slot(layout.slot_offset(number), number)
            if values is not None:
                self._seen = head
                return values
            self.lost += 1
        return None

    def _slot(self, offset: int, number: int | None) -> dict[str, float] | None:
        """The values of a whole slot; `number` None takes the one it says it has."""
        numbers = self._whole(offset, layout.SLOT_SIZE, self._payload, number)
        return None if numbers is None else self._believable(self._fields, numbers)

    def _slow_slot(self) -> dict[str, float] | None:
        if not self._slow_fields:
            return None
        numbers = self._whole(layout.SLOW_SLOT_OFFSET, layout.SLOW_SLOT_SIZE, self._slow_payload, None)
        return None if numbers is None else self._believable(self._slow_fields, numbers)

    def _whole(self, offset: int, size: int, payload: struct.Struct, number: int | None) -> tuple[float, ...] | None:
        for _ in range(_TRIES):
            slot = bytes(self._map[offset : offset + size])
            (sequence,) = layout.SEQUENCE.unpack_from(slot)
            if sequence & 1 or not sequence:
                continue
            if number is not None and sequence != 2 * number:
                return None
            content = slot[layout.PAYLOAD_OFFSET : layout.PAYLOAD_OFFSET + payload.size]
            (checksum,) = layout.CHECKSUM.unpack_from(slot, size - layout.CHECKSUM.size)
            if zlib.crc32(content, (sequence >> 1) & 0xFFFF_FFFF) == checksum:
                return payload.unpack(content)
        return None

    @staticmethod
    def _believable(fields: tuple[str, ...], numbers: tuple[float, ...]) -> dict[str, float]:
        values = {}
        for field, value in zip(fields, numbers, strict=True):
            if layout.is_missing(value):
                continue
            if field in COUNTER_FIELDS and not (math.isfinite(value) and value >= 0):
                continue
            values[field] = value
        return values

    def close(self) -> None:
        self._map.close()

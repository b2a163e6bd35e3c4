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
        except ChannelError:
            self._map.close()
            raise
        self._payload = struct.Struct(f"<{len(self._fields)}d")
        self._seen = 0
        self.lost = 0
        self._record: dict[str, float] = {}
        self._live: dict[str, float] = {}

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
        names = page[layout.NAMES_OFFSET : layout.LIVE_OFFSET].split(b"\0")[:count]
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
        record, live = self._record, self._live
        old, new = (record, live) if live.get("written_at", 0.0) >= record.get("written_at", 0.0) else (live, record)
        values = {**old, **new}
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
        for _ in range(_TRIES):
            slot = bytes(self._map[offset : offset + layout.SLOT_SIZE])
            (sequence,) = layout.SEQUENCE.unpack_from(slot)
            if sequence & 1 or not sequence:
                continue
            if number is not None and sequence != 2 * number:
                return None
            payload = slot[layout.PAYLOAD_OFFSET : layout.PAYLOAD_OFFSET + self._payload.size]
            (checksum,) = layout.CHECKSUM.unpack_from(slot, layout.CHECKSUM_OFFSET)
            if zlib.crc32(payload, (sequence >> 1) & 0xFFFF_FFFF) == checksum:
                return self._believable(self._payload.unpack(payload))
        return None

    def _believable(self, numbers: tuple[float, ...]) -> dict[str, float]:
        values = {}
        for field, value in zip(self._fields, numbers, strict=True):
            if layout.is_missing(value):
                continue
            if field in COUNTER_FIELDS and not (math.isfinite(value) and value >= 0):
                continue
            values[field] = value
        return values

    def close(self) -> None:
        self._map.close()

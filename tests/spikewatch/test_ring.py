"""The telemetry ring as its writer leaves it: sealed memory that others can read and nobody can break."""

import fcntl
import mmap
import os
import struct

import pytest

from spikewatch import layout
from spikewatch.ring import SEALS, RingWriter


@pytest.fixture
def ring():
    writer = RingWriter()
    yield writer
    writer.close()


def test_nobody_with_the_descriptor_can_resize_or_write_it(ring):
    assert fcntl.fcntl(ring.fd, fcntl.F_GET_SEALS) & SEALS == SEALS
    for size in (0, layout.SIZE * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(ring.fd, size)
    with pytest.raises(PermissionError):
        mmap.mmap(ring.fd, layout.SIZE)
    with pytest.raises(PermissionError):
        os.pwrite(ring.fd, b"x", 0)


def test_a_child_program_does_not_inherit_it(ring):
    assert not os.get_inheritable(ring.fd)


def test_the_header_says_how_to_read_it(ring):
    page = mmap.mmap(ring.fd, layout.SIZE, prot=mmap.PROT_READ)
    magic, version, header, slot, slots, count, _ = layout.HEADER.unpack_from(page)
    assert (magic, version, header, slot, slots) == (b"SPKWRING", 1, 4096, 256, 1024)
    names = page[layout.NAMES_OFFSET : layout.LIVE_OFFSET].split(b"\0")[:count]
    assert tuple(name.decode() for name in names) == layout.FIELDS


def test_the_layout_has_room_for_its_fields():
    assert len(layout.FIELDS) <= layout.MAX_FIELDS
    assert layout.NAMES_OFFSET + len(layout.field_table(layout.FIELDS)) <= layout.LIVE_OFFSET
    assert layout.LIVE_OFFSET + layout.SLOT_SIZE <= layout.HEADER_SIZE
    assert len(set(layout.FIELDS)) == len(layout.FIELDS)


def test_more_fields_than_a_slot_holds_are_refused():
    with pytest.raises(ValueError, match="do not fit a slot"):
        RingWriter(tuple(f"f{n}" for n in range(layout.MAX_FIELDS + 1)))


def test_missing_has_its_own_bits():
    assert layout.MISSING != layout.MISSING
    assert layout.is_missing(layout.MISSING)
    assert not layout.is_missing(float("nan"))
    assert not layout.is_missing(0.0)
    assert layout.is_missing(struct.unpack("<d", struct.pack("<d", layout.MISSING))[0])

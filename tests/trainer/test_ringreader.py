"""The sidecar reads a ring that anybody may have sent: torn, damaged, hostile or simply new."""

import os
import struct
import threading
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.errors import ChannelError
from sidecar.trainer.ringreader import RingReader
from spikewatch import layout
from spikewatch.layout import FIELDS, MISSING, SLOW_FIELDS
from spikewatch.ring import RingWriter


@pytest.fixture
def pair():
    writers, readers = [], []

    def make(fields=FIELDS, slow=SLOW_FIELDS):
        writers.append(RingWriter(fields, slow))
        readers.append(RingReader(os.dup(writers[-1].fd)))
        return writers[-1], readers[-1]

    yield make
    for end in (*readers, *writers):
        end.close()


def record(**values):
    return [values.get(name, MISSING) for name in FIELDS]


def test_a_ring_without_records_reads_as_nothing(pair):
    assert pair()[1].read() == {}


def test_the_newest_record_is_read_and_what_is_missing_is_left_out(pair):
    writer, reader = pair()
    for number in range(1, 3000):
        writer.write(number, record(written_at=number, steps_total=number, loss=float("inf")))
    assert reader.read() == {"written_at": 2999, "steps_total": 2999, "loss": float("inf")}


def test_of_a_counter_the_larger_of_record_and_live_counts_and_of_a_gauge_the_later(pair):
    writer, reader = pair()
    writer.write(1, record(written_at=10.0, step_seconds_total=5.0, data_wait_seconds_total=2.0, phase=2, loss=1.0))
    writer.write_live(record(written_at=12.0, step_seconds_total=7.0, data_wait_seconds_total=1.9, phase=3))
    values = reader.read()
    assert values["step_seconds_total"] == 7.0
    assert values["data_wait_seconds_total"] == 2.0
    assert (values["phase"], values["loss"]) == (3, 1.0)
    writer.write(2, record(written_at=13.0, step_seconds_total=8.0, phase=2))
    assert reader.read()["phase"] == 2


def test_fields_are_found_by_name_so_a_newer_or_older_trainer_is_read_too(pair):
    fields = ("loss", "something_new", "steps_total")
    writer, reader = pair(fields)
    writer.write(1, [0.5, 1.0, 3.0])
    assert reader.read() == {"loss": 0.5, "something_new": 1.0, "steps_total": 3.0}


def slow(**values):
    return [values.get(name, MISSING) for name in SLOW_FIELDS]


def test_the_slow_slot_is_read_beside_the_records_and_its_missing_fields_are_left_out(pair):
    writer, reader = pair()
    writer.write(1, record(written_at=1.0, steps_total=3))
    writer.write_slow(slow(memory_reserved_bytes=5.0, alloc_retries_total=0.0, loss_stddev=0.25))
    expected = {"written_at": 1.0, "steps_total": 3, "memory_reserved_bytes": 5, "alloc_retries_total": 0}
    assert reader.read() == {**expected, "loss_stddev": 0.25}
    writer.write_slow(slow(alloc_retries_total=2.0))
    assert reader.read() == {"written_at": 1.0, "steps_total": 3, "alloc_retries_total": 2}


def test_a_trainer_from_before_the_slow_slot_is_read_as_ever(pair):
    writer, reader = pair(slow=())
    writer.write(1, record(steps_total=3))
    assert reader.read() == {"steps_total": 3}


def test_a_slow_counter_that_cannot_be_is_not_believed(pair):
    writer, reader = pair()
    writer.write_slow(slow(alloc_retries_total=-1.0, sync_seconds_total=float("nan"), loss_stddev=float("inf")))
    assert reader.read() == {"loss_stddev": float("inf")}


@pytest.mark.parametrize(
    ("offset", "value", "why"),
    [
        (layout.SLOW_OFFSET, struct.pack("<I", 63), "63 slow fields"),
        (layout.SLOW_OFFSET + 4, b"\x00\x00\x00\x00", "damaged"),
        (layout.SLOW_NAMES_OFFSET, b"X", "damaged"),
    ],
)
def test_a_slow_table_that_cannot_be_is_refused(offset, value, why):
    def change(page):
        page[offset : offset + len(value)] = value

    with pytest.raises(ChannelError, match=why):
        RingReader(sealed_with(change))


def test_a_slow_slot_that_is_torn_leaves_what_was_read_before(pair):
    writer, reader = pair()
    writer.write_slow(slow(loss_stddev=1.0))
    reader.read()
    writer.write_slow(slow(loss_stddev=2.0))
    writer._map[layout.SLOW_SLOT_OFFSET + layout.PAYLOAD_OFFSET + 16] ^= 1
    assert reader.read() == {"loss_stddev": 1.0}


def test_a_counter_that_cannot_be_is_not_believed(pair):
    writer, reader = pair()
    writer.write(1, record(steps_total=-1, samples_total=float("nan"), input_bytes_total=float("inf"), loss=-1.0))
    assert reader.read() == {"loss": -1.0}


def test_records_that_were_overwritten_unread_are_counted_as_lost(pair):
    writer, reader = pair()
    writer.write(1, record(steps_total=1))
    reader.read()
    for number in range(2, 2050):
        writer.write(number, record(steps_total=number))
    reader.read()
    assert reader.lost == 2049 - 1 - layout.SLOTS


def test_a_record_that_is_being_written_is_passed_over_for_the_one_before(pair):
    writer, reader = pair()
    writer.write(1, record(steps_total=1))
    writer.write(2, record(steps_total=2))
    writer._words[layout.slot_offset(2) >> 3] = 3  # odd: a writer is in the middle of it
    assert reader.read() == {"steps_total": 1}
    assert reader.lost == 1


@settings(max_examples=200, deadline=None)
@given(st.integers(layout.PAYLOAD_OFFSET, layout.PAYLOAD_OFFSET + 8 * len(FIELDS) - 1), st.integers(0, 7))
def test_a_single_flipped_bit_is_never_read_as_a_value(byte, bit):
    writer = RingWriter()
    reader = RingReader(os.dup(writer.fd))
    writer.write(1, [1.0] * len(FIELDS))
    writer._map[layout.slot_offset(1) + byte] ^= 1 << bit
    assert reader.read() == {}
    reader.close()
    writer.close()


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=layout.SLOT_SIZE, max_size=layout.SLOT_SIZE), st.integers(0, 2**64 - 1))
def test_garbage_in_the_ring_reads_as_nothing_and_raises_nothing(garbage, head):
    writer = RingWriter()
    reader = RingReader(os.dup(writer.fd))
    writer._words[layout.HEAD_OFFSET >> 3] = head
    for offset in (layout.LIVE_OFFSET, *(layout.slot_offset(head - n) for n in range(8) if head > n)):
        writer._map[offset : offset + layout.SLOT_SIZE] = garbage
    assert reader.read() == {}
    reader.close()
    writer.close()


def test_a_writer_and_a_reader_at_once_never_give_a_torn_record(pair):
    writer, reader = pair()
    stop = threading.Event()

    def write():
        number = 0
        while not stop.is_set():
            number += 1
            writer.write(number, [float(number)] * len(FIELDS))
            writer.write_live([float(number)] * len(FIELDS))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        newest = 0.0
        for _ in range(3000):
            values = set(reader.read().values())
            if values:
                assert len(values) == 1
                assert max(values) >= newest
                newest = max(values)
        assert newest > 0
    finally:
        stop.set()
        thread.join()


def sealed_with(change):
    """A ring whose header was changed before it was sealed."""
    import fcntl
    import mmap

    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, layout.SIZE)
    good = RingWriter()
    page = bytearray(good._map[: layout.HEADER_SIZE])
    good.close()
    change(page)
    with mmap.mmap(fd, layout.SIZE) as memory:
        memory[: layout.HEADER_SIZE] = bytes(page)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def other(magic=layout.MAGIC, version=1, slots=1024, count=None, table=None):
    def change(page):
        data = layout.field_table(FIELDS) if table is None else table
        page[layout.NAMES_OFFSET : layout.NAMES_OFFSET + len(data)] = data
        layout.HEADER.pack_into(
            page, 0, magic, version, 4096, 256, slots, len(FIELDS) if count is None else count, zlib.crc32(data)
        )

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other(magic=b"NOTARING"), "not a telemetry ring"),
        (other(version=9), "version 9"),
        (other(slots=1 << 30), "version 1"),
        (other(count=0), "0 fields"),
        (other(count=4_000_000_000), "fields"),
        (other(count=1, table=b"Bad Name!\0"), "impossible name"),
        (other(count=2, table=b"twice\0twice\0"), "damaged"),
        (lambda page: struct.pack_into("<I", page, 28, 1), "damaged"),
    ],
)
def test_a_header_that_is_not_ours_is_refused_with_the_reason(change, message):
    with pytest.raises(ChannelError, match=message):
        RingReader(sealed_with(change))


def test_an_unsealed_file_is_refused_for_its_owner_could_shrink_it_under_us(tmp_path):
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, layout.SIZE)
    with pytest.raises(ChannelError, match="not sealed"):
        RingReader(fd)
    plain = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(plain, layout.SIZE)
    with pytest.raises(ChannelError, match="cannot be mapped"):
        RingReader(plain)


@pytest.mark.parametrize("kind", ["pipe", "short", "folder"])
def test_a_descriptor_of_something_else_is_refused_and_closed(kind, tmp_path):
    if kind == "pipe":
        fd, far = os.pipe()
        os.close(far)
    elif kind == "folder":
        fd = os.open(tmp_path, os.O_RDONLY)
    else:
        fd = os.memfd_create("test", os.MFD_CLOEXEC)
    with pytest.raises(ChannelError, match="no file of"):
        RingReader(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)

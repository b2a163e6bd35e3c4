"""The journal's lines go out whole or not at all, and nobody who does not read them holds up the sidecar."""

from __future__ import annotations

import fcntl
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.app.lines import MOST, Lines

SMALLEST = 4096  # a pipe of one page


@pytest.fixture
def pipe():
    ends = Pipe()
    yield ends
    ends.close()


class Pipe:
    """A pipe that holds one page; `read` takes what is there."""

    def __init__(self):
        self.out, self.into = os.pipe()
        fcntl.fcntl(self.into, fcntl.F_SETPIPE_SZ, SMALLEST)
        os.set_blocking(self.out, False)
        self.seen = b""

    def read(self):
        try:
            while chunk := os.read(self.out, 1 << 16):
                self.seen += chunk
        except BlockingIOError:
            pass
        return self.seen

    def close(self):
        for end in (self.out, self.into):
            try:
                os.close(end)
            except OSError:
                pass


def test_lines_arrive_as_they_were_written(pipe):
    fcntl.fcntl(pipe.into, fcntl.F_SETPIPE_SZ, 16 * SMALLEST)
    lines = Lines(pipe.into)
    for text in ("one", "", "zwölf"):
        lines.write(text)
    assert pipe.read().decode() == "one\n\nzwölf\n"


@pytest.mark.timeout(20)
def test_a_line_longer_than_the_pipe_does_not_wait_for_a_reader(pipe):
    lines = Lines(pipe.into)
    long = "x" * (3 * SMALLEST)
    lines.write(long)
    with pytest.raises(BlockingIOError):
        lines.write("next")
    pipe.read()
    with pytest.raises(BlockingIOError):
        lines.write("next")
    for _ in range(4):
        pipe.read()
        try:
            lines.write("next")
            break
        except BlockingIOError:
            continue
    assert pipe.read().decode() == f"{long}\nnext\n"


def test_a_line_that_cannot_begin_is_refused_whole(pipe):
    lines = Lines(pipe.into)
    os.set_blocking(pipe.into, False)
    os.write(pipe.into, b"y" * SMALLEST)
    with pytest.raises(BlockingIOError):
        lines.write("lost")
    pipe.read()
    lines.write("told")
    assert pipe.read().decode() == "y" * SMALLEST + "told\n"


def test_a_reader_that_is_gone_is_an_error_each_time_and_no_half_line_stays(pipe):
    lines = Lines(pipe.into)
    os.close(pipe.out)
    for _ in range(2):
        with pytest.raises(BrokenPipeError):
            lines.write("x")


def test_a_line_beyond_all_reason_is_refused(pipe):
    with pytest.raises(OSError, match="longer than anybody expects"):
        Lines(pipe.into).write("x" * MOST)


@given(st.lists(st.tuples(st.integers(0, 3 * SMALLEST), st.booleans()), max_size=12))
def test_what_arrives_is_whole_lines_in_order_whenever_somebody_reads(steps):
    pipe = Pipe()
    lines, taken = Lines(pipe.into), []
    try:
        for number, (length, reads) in enumerate(steps):
            line = json.dumps({"n": number, "pad": "x" * length})
            try:
                lines.write(line)
                taken.append(number)
            except BlockingIOError:
                pass
            if reads:
                pipe.read()
        for _ in range(5):  # the end of a line that has begun comes with the next ones
            pipe.read()
            try:
                lines.write(json.dumps({"n": -1}))
            except BlockingIOError:
                pass
        arrived = [json.loads(line)["n"] for line in pipe.read().decode().splitlines()]
        assert [n for n in arrived if n >= 0] == taken
    finally:
        pipe.close()

"""Following logs: nothing twice, nothing lost around a rotation, and a bounded backlog."""

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sidecar.collectors.nccl.tail import Tail

MIB = 1 << 20


@pytest.fixture
def log(tmp_path):
    return tmp_path / "nccl.log"


@pytest.fixture
def tail(tmp_path):
    made = Tail([f"{tmp_path}/*.log"], max_backlog=4 * MIB)
    yield made
    made.close()


def lines(tail, budget=64 * MIB):
    return "".join(piece.text for piece in tail.read(budget)).splitlines()


def append(path, text):
    with open(path, "a") as file:
        file.write(text)


def test_only_what_is_new_is_read(log, tail):
    append(log, "a\nb\n")
    assert lines(tail) == ["a", "b"]
    append(log, "c\n")
    assert lines(tail) == ["c"]
    assert lines(tail) == []


def test_a_line_is_read_once_it_has_its_end(log, tail):
    append(log, "half")
    assert lines(tail) == []
    append(log, " a line\n")
    assert lines(tail) == ["half a line"]


def test_a_file_that_appears_later_is_found(log, tail):
    assert lines(tail) == []
    append(log, "a\n")
    assert lines(tail) == ["a"]
    assert len(tail) == 1


def test_after_a_rotation_the_old_file_is_read_to_its_end_and_the_new_one_from_its_start(log, tail):
    append(log, "1\n")
    assert lines(tail) == ["1"]
    with open(log, "a") as writer:
        log.rename(log.with_suffix(".1"))
        writer.write("2\n")
        writer.flush()
        append(log, "3\n")
        assert lines(tail) == ["2", "3"]
        writer.write("4\n")  # it has not noticed the rotation yet
    assert lines(tail) == ["4"]
    assert (tail.counts.rotations, tail.counts.skipped_bytes) == (1, 0)


def test_a_file_rotated_under_a_name_that_matches_too_is_read_once(tmp_path):
    tail = Tail([f"{tmp_path}/nccl.log*"])
    append(tmp_path / "nccl.log", "1\n")
    assert lines(tail) == ["1"]
    (tmp_path / "nccl.log").rename(tmp_path / "nccl.log.1")
    append(tmp_path / "nccl.log", "2\n")
    assert lines(tail) == ["2"]
    tail.close()


def test_a_truncated_file_is_read_from_its_start(log, tail):
    append(log, "long line\n")
    assert lines(tail) == ["long line"]
    log.write_text("new\n")
    assert lines(tail) == ["new"]
    assert tail.counts.truncations == 1


def test_a_file_seen_under_two_names_is_read_once(log, tail):
    append(log, "a\n")
    os.link(log, log.with_name("other.log"))
    assert lines(tail) == ["a"]


def test_a_backlog_over_the_limit_is_skipped_and_counted_but_not_the_start(log, tail):
    row = "x" * 99 + "\n"
    log.write_text("start\n" + row * (10 * MIB // 100) + "end\n")
    found = lines(tail)
    assert (found[0], found[-1]) == ("start", "end")
    assert set(found) == {"start", "x" * 99, "end"}, "a skip leaves no half line"
    read = tail.counts.bytes
    assert tail.counts.gaps == 1
    assert tail.counts.skipped_bytes + read == log.stat().st_size
    assert 4 * MIB - 200 < read - MIB <= 4 * MIB + 100


def test_a_file_that_grows_too_fast_later_on_loses_its_middle(log, tail):
    append(log, "first\n")
    assert lines(tail) == ["first"]
    append(log, "y\n" * (3 * MIB) + "last\n")
    found = lines(tail)
    assert found[-1] == "last"
    assert tail.counts.gaps == 1
    assert tail.counts.skipped_bytes + tail.counts.bytes == log.stat().st_size


def test_one_read_ends_soon_after_its_budget_and_the_next_goes_on(log, tail):
    log.write_text("z" * 99 + "\n" + ("w" * 99 + "\n") * (3 * MIB // 100))
    first = lines(tail, budget=MIB)
    assert 0 < len(first) * 100 <= 2 * MIB
    assert len(first) + len(lines(tail)) == 1 + 3 * MIB // 100


def test_a_line_that_never_ends_is_cut_and_does_not_grow(log, tail):
    log.write_text("q" * (3 * MIB // 2))
    assert sum(map(len, lines(tail))) == MIB


def test_folders_pipes_and_more_files_than_allowed_are_left_alone(tmp_path):
    os.mkfifo(tmp_path / "a.log")
    (tmp_path / "b.log").mkdir()
    for name in "cde":
        append(tmp_path / f"{name}.log", f"{name}\n")
    tail = Tail([f"{tmp_path}/*.log"], max_files=2)
    assert lines(tail) == ["c", "d"]
    tail.close()


def test_bytes_that_are_no_text_do_not_stop_it(log, tail):
    log.write_bytes(b"\xff\xfe broken\nfine\n")
    assert lines(tail)[1] == "fine"


def test_closing_leaves_no_descriptor_behind(log, tail):
    before = set(os.listdir("/proc/self/fd"))
    append(log, "a\n")
    lines(tail)
    tail.close()
    assert set(os.listdir("/proc/self/fd")) <= before


class Rotating(RuleBasedStateMachine):
    """A writer that appends, rotates and reopens late, against a reader that looks now and then."""

    def __init__(self):
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "n.log")
        self.writer = open(self.path, "a")
        self.tail = Tail([self.path])
        self.written, self.seen, self.number = [], [], 0

    @rule(count=st.integers(1, 5))
    def write(self, count):
        for _ in range(count):
            self.number += 1
            self.writer.write(f"line {self.number}\n")
            self.written.append(f"line {self.number}")
        self.writer.flush()

    @rule()
    def look(self):
        self.seen += lines(self.tail)

    @precondition(lambda self: self.number)
    @rule()
    def rotate(self):
        self.seen += lines(self.tail)  # a rotation between every two looks; two at once lose a file for any reader
        os.rename(self.path, f"{self.path}.{self.number}")
        self.writer.close()
        self.writer = open(self.path, "a")

    @invariant()
    def nothing_comes_twice_or_out_of_order(self):
        assert self.seen == self.written[: len(self.seen)]

    def teardown(self):
        self.look()
        self.look()
        assert self.seen == self.written
        self.tail.close()
        self.writer.close()
        self.folder.cleanup()


TestRotating = Rotating.TestCase
TestRotating.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)

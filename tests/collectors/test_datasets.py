"""Parquet datasets, written by pyarrow: how large their files and row groups are, and what is left out of a reading."""

import os
import sys
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sidecar.clock import FakeClock
from sidecar.collectors.datasets.collector import DatasetsCollector, DatasetsSettings
from sidecar.collectors.datasets.reading import Limits, is_hidden, listing, stats
from sidecar.collectors.datasets.stores import Entry
from sidecar.collectors.runner import Runner
from sidecar.errors import CollectError
from sidecar.model import Availability
from sidecar.promql import evaluate
from sidecar.store import Store

pa = pytest.importorskip("pyarrow", reason="needs spikewatch[cluster]")
pq = pytest.importorskip("pyarrow.parquet", reason="needs spikewatch[cluster]")


def write(path, rows, groups=1):
    """A real Parquet file of `rows` rows in `groups` row groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": list(range(rows)), "text": [f"row {n}" for n in range(rows)]})
    pq.write_table(table, path, row_group_size=-(-rows // groups))
    return path.stat().st_size


@pytest.fixture
def clicks(tmp_path):
    """A dataset as Spark writes it: partitions, markers, checksums and a log beside the data."""
    root = tmp_path / "clicks"
    sizes = [
        write(root / "_date=2026-11-29/part-0.snappy.parquet", 1000, groups=4),
        write(root / "_date=2026-11-30/part-0.snappy.parquet", 3000, groups=2),
        write(root / "part-1.parq", 2000),
    ]
    write(root / "_delta_log/00010.checkpoint.parquet", 10)
    write(root / "_temporary/0/part-9.parquet", 10)
    (root / "_SUCCESS").touch()
    (root / ".part-1.parquet.crc").write_bytes(b"crc")
    (root / "notes.txt").write_text("not ours")
    (root / "part-2.parquet").touch()
    return root, sizes


def collector(*datasets, timer=None, **more):
    named = [d if isinstance(d, dict) else {"name": f"d{n}", "path": str(d)} for n, d in enumerate(datasets)]
    made = DatasetsSettings.model_validate({"enabled": True, "datasets": named, **more})
    return DatasetsCollector(made) if timer is None else DatasetsCollector(made, timer=timer)


def values(one, now_ms=0):
    declared = {info.name: set(info.labels) for info in one.metrics}
    found = {}
    for s in one.sample(now_ms):
        assert {name for name, _ in s.labels} == declared[s.metric], s.metric
        key = (s.metric.removeprefix("spikewatch_dataset_"), *(v for _, v in s.labels))
        assert key not in found, "a series came twice"
        found[key] = s.value
    return found


def test_it_is_off_unless_it_is_switched_on_and_without_a_dataset_says_what_to_name():
    assert DatasetsSettings().enabled is False
    status = collector().probe()
    assert (status.state, status.reason) == (Availability.UNAVAILABLE, "no_source")
    assert "path" in status.fix


def test_the_sizes_are_those_of_the_data_files_and_of_nothing_beside_them(clicks):
    root, sizes = clicks
    found = values(collector(root))
    assert found["files", "d0"] == 3
    assert found["bytes", "d0"] == sum(sizes)
    assert found["file_size_bytes", "d0", "mean"] == sum(sizes) / 3
    assert found["file_size_bytes", "d0", "p50"] == sorted(sizes)[1]
    assert found["file_size_bytes", "d0", "max"] == max(sizes)
    assert found["left_out", "d0", "empty_files"] == 1


def test_footers_tell_rows_and_row_groups(clicks):
    root, _ = clicks
    found = values(collector(root))
    groups = [
        pq.ParquetFile(path).metadata.row_group(n).total_byte_size
        for path in (*root.glob("_date=*/*.parquet"), root / "part-1.parq")
        for n in range(pq.ParquetFile(path).metadata.num_row_groups)
    ]
    assert len(groups) == 7
    assert found["row_group_bytes", "d0", "max"] == max(groups)
    assert found["row_group_bytes", "d0", "mean"] == pytest.approx(sum(groups) / 7)
    assert found["row_groups_per_file", "d0"] == pytest.approx(7 / 3)
    assert found["rows_per_file", "d0"] == 2000
    assert found["footers", "d0"] == 3


def test_one_file_is_a_dataset_too(tmp_path):
    size = write(tmp_path / "one.parquet", 10)
    found = values(collector(tmp_path / "one.parquet"))
    assert (found["files", "d0"], found["bytes", "d0"]) == (1, size)


def test_footers_of_no_more_files_than_asked_for_are_read(clicks):
    root, _ = clicks
    assert values(collector(root, footers=2))["footers", "d0"] == 2
    found = values(collector(root, footers=0))
    assert found["footers", "d0"] == 0
    assert not [key for key in found if key[0].startswith("row")], "unknown, not zero"


def test_files_beyond_the_limit_are_counted_and_the_collector_says_so(clicks):
    root, _ = clicks
    one = collector(root, max_files=1)
    found = values(one)
    assert found["files", "d0"] == 1
    assert found["left_out", "d0", "folders"] + found["left_out", "d0", "files"] == 2
    status = one.probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, "left_out")
    assert "max_files" in status.fix


def test_a_reading_whose_time_is_up_tells_what_it_has_seen(clicks):
    root, _ = clicks
    ticks = count(0, 40)  # each look at the time finds it 40 s later
    found = values(collector(root, timer=lambda: float(next(ticks)), timeout="1m"))
    assert (found["files", "d0"], found["left_out", "d0", "folders"]) == (1, 2)
    assert (found["footers", "d0"], found["left_out", "d0", "footers"]) == (0, 1)


def test_a_damaged_file_keeps_its_size_and_is_named(clicks):
    root, _ = clicks
    (root / "part-1.parq").write_bytes(b"PAR1 this is none PAR1")
    one = collector(root)
    found = values(one)
    assert found["files", "d0"] == 3
    assert (found["footers", "d0"], found["left_out", "d0", "unreadable_footers"]) == (2, 1)
    (line,) = one.findings()
    assert (line.status.state, line.status.reason) == (Availability.DEGRADED, "unreadable_footers")
    assert "part-1.parq" in line.detail


def test_a_dataset_is_read_again_after_its_refresh_and_not_before(clicks):
    root, _ = clicks
    one = collector(root)
    before = values(one, 0)
    write(root / "part-3.parquet", 10)
    assert values(one, 3_599_999) == before
    assert values(one, 3_600_000)["files", "d0"] == 4


def test_between_two_readings_it_is_written_in_time_to_be_found_and_after_the_clock_was_set_back_read_anew(clicks):
    root, _ = clicks
    one = collector(root)
    times = [0, 5_000, 50_000, 55_000, 100_000]
    assert [next(iter(one.sections(ms))).samples is not None for ms in times] == [True, False, True, False, True]
    write(root / "part-3.parquet", 10)
    assert values(one, -1)["files", "d0"] == 4


def test_a_reading_that_fails_loses_its_own_series_only_and_is_tried_again_after_two_minutes(clicks, tmp_path):
    root, _ = clicks
    one = collector(root, tmp_path / "late")
    found = values(one, 0)
    assert found["files", "d0"] == 3
    assert found["read_errors_total", "d1"] == 1
    assert not [key for key in found if key[1] == "d1" and key[0] != "read_errors_total"]
    status = one.probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, "not_found")
    write(tmp_path / "late/a.parquet", 10)
    assert ("files", "d1") not in values(one, 119_999)
    assert values(one, 120_000)["files", "d1"] == 1
    assert one.probe().state is Availability.AVAILABLE


def test_where_every_dataset_fails_the_collector_does(tmp_path):
    one = collector(tmp_path / "none")
    with pytest.raises(CollectError, match="no such file or folder") as caught:
        list(one.sample(0))
    assert caught.value.reason == "not_found"
    assert one.probe().state is Availability.DEGRADED, "what is unavailable would not be tried again"


def test_a_folder_without_data_has_no_sizes(tmp_path):
    (tmp_path / "empty").mkdir()
    one = collector(tmp_path / "empty")
    found = values(one)
    assert (found["files", "d0"], found["bytes", "d0"]) == (0, 0)
    assert not [key for key in found if key[0] == "file_size_bytes"]
    assert one.probe().reason == "no_files"


def test_links_to_files_count_and_links_to_folders_do_not_lead_in_circles(clicks):
    root, sizes = clicks
    (root / "again").symlink_to(root)
    (root / "linked.parquet").symlink_to(root / "part-1.parq")
    (root / "broken.parquet").symlink_to(root / "none")
    found = values(collector(root))
    assert found["files", "d0"] == 4
    assert found["bytes", "d0"] == sum(sizes) + sizes[2]


def test_without_pyarrow_sizes_are_told_and_the_remedy(clicks, monkeypatch):
    root, sizes = clicks
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    one = collector(root)
    assert values(one)["bytes", "d0"] == sum(sizes)
    status = one.probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, "no_pyarrow")
    assert "spikewatch[cluster]" in status.fix


def test_a_running_sidecar_fires_on_the_mean_size(clicks):
    root, sizes = clicks
    made = DatasetsSettings.model_validate({"enabled": True, "datasets": [{"name": "c", "path": str(root)}]})
    kept, clock = Store(), FakeClock(1_800_000_000_000)
    runner = Runner([(DatasetsCollector(made), made)], kept, clock)
    try:
        runner.tick(clock.now_ms())
        assert runner.settle(30)
        runner.tick(clock.now_ms() + 1)
        mean = evaluate(kept, 'spikewatch_dataset_file_size_bytes{stat="mean"} < 16777216', clock.now_ms() + 1)
        assert [value for _, value in mean] == [sum(sizes) / 3]
    finally:
        assert runner.close(30) == []


# --- elsewhere --------------------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(clicks):
    """The same dataset in fsspec's memory."""
    fsspec = pytest.importorskip("fsspec", reason="needs spikewatch[cluster]")
    root, sizes = clicks
    files = fsspec.filesystem("memory")
    files.put(str(root), "/bucket/clicks", recursive=True)
    yield "memory://bucket/clicks", sizes, files
    files.rm("/bucket", recursive=True)


def test_a_url_is_read_like_a_folder(bucket, clicks):
    url, _, _ = bucket
    remote, local = values(collector(url)), values(collector(clicks[0]))
    timed = {"read_seconds", "last_read_timestamp_seconds"}
    assert {k: v for k, v in remote.items() if k[0] not in timed} == {
        k: v for k, v in local.items() if k[0] not in timed
    }


@pytest.fixture
def counting():
    """A protocol of fsspec's, `counting://`, for local files in blocks; gives the sizes of the blocks it served."""
    fsspec = pytest.importorskip("fsspec", reason="needs spikewatch[cluster]")
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.registry import _registry
    from fsspec.spec import AbstractBufferedFile

    served = []

    class Served(AbstractBufferedFile):
        def _fetch_range(self, start, end):
            served.append(end - start)
            with open(self.path, "rb") as file:
                file.seek(start)
                return file.read(end - start)

    class Counting(LocalFileSystem):
        protocol = "counting"
        cachable = False

        def open(self, path, mode="rb", block_size=None, **kwargs):
            return Served(self, self._strip_protocol(path), mode, block_size=block_size, size=self.size(path))

    fsspec.register_implementation("counting", Counting, clobber=True)
    yield served
    _registry.pop("counting")


def test_only_the_ends_of_files_are_fetched(tmp_path, counting):
    for n in range(3):
        table = pa.table({"noise": [os.urandom(1 << 20) for _ in range(8)]})
        pq.write_table(table, tmp_path / f"{n}.parquet", row_group_size=1)
    found = values(collector(f"counting://{tmp_path}"))
    assert found["footers", "d0"] == 3
    assert found["row_groups_per_file", "d0"] == 8
    assert 0 < sum(counting) < 1 << 20, "of 24 MB"


def test_a_protocol_that_nobody_knows_is_told_with_its_remedy():
    pytest.importorskip("fsspec", reason="needs spikewatch[cluster]")
    one = collector("nowhere://bucket/x")
    with pytest.raises(CollectError, match="nowhere") as caught:
        list(one.sample(0))
    assert caught.value.reason == "no_protocol"


class Shelf:
    """A store over a table: folder → what is in it; an exception is raised."""

    def __init__(self, folders, root="/"):
        self.folders, self.root = folders, root

    def entries(self, folder):
        for entry in self.folders[folder]:
            if isinstance(entry, Exception):
                raise entry
            yield entry


def limits(max_files=10_000, footers=5):
    return Limits(max_files, footers, lambda: False)


def test_a_folder_that_cannot_be_listed_is_counted_and_the_rest_is_read():
    folders = {
        "/": [Entry("/a", True, 0), Entry("/b", True, 0)],
        "/a": [Entry("/a/1.parquet", False, 5), ConnectionError("reset")],
        "/b": [Entry("/b/1.parquet", False, 7)],
    }
    found = listing(Shelf(folders), limits(), "seed")
    assert list(found.sizes) == [5, 7]
    assert (found.unreadable, found.problem) == (1, "/a: ConnectionError: reset")
    with pytest.raises(ConnectionError):
        listing(Shelf({"/": [ConnectionError("reset")]}), limits(), "seed")


def test_a_store_whose_folders_lead_in_circles_is_read_once():
    folders = {"/": [Entry("/a", True, 0)], "/a": [Entry("/", True, 0), Entry("/a/1.parquet", False, 5)]}
    assert list(listing(Shelf(folders), limits(), "seed").sizes) == [5]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 1 << 40), max_size=12), min_size=1, max_size=6),
    max_files=st.integers(1, 30),
    wanted=st.integers(0, 8),
)
def test_whatever_the_limits_every_file_is_taken_or_counted_and_the_sample_is_of_those_taken(sizes, max_files, wanted):
    folders = {"/": [Entry(f"/{n}", True, 0) for n in range(len(sizes))]}
    for n, inside in enumerate(sizes):
        folders[f"/{n}"] = [Entry(f"/{n}/{m}.parquet", False, size) for m, size in enumerate(inside)]
    found = listing(Shelf(folders), limits(max_files, wanted), "seed")
    unvisited = sizes[len(sizes) - found.folders_left :] if found.folders_left else []
    taken = [size for inside in sizes[: len(sizes) - found.folders_left] for size in inside]
    assert len(found.sizes) == min(max_files, sum(1 for size in taken if size))
    assert len(found.sizes) + found.files_left + found.empty == len(taken)
    assert len(taken) + sum(map(len, unvisited)) == sum(map(len, sizes))
    assert len(found.sample) == min(wanted, len(found.sizes)) == len(set(found.sample))
    assert found.sample == listing(Shelf(folders), limits(max_files, wanted), "seed").sample


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 1 << 50), max_size=50))
def test_mean_median_and_maximum_are_in_their_order(sizes):
    found = dict(stats(sizes))
    assert bool(found) == bool(sizes)
    if sizes:
        assert min(sizes) <= found["p50"] <= found["max"] == max(sizes)
        assert found["mean"] == pytest.approx(sum(sizes) / len(sizes))


@pytest.mark.parametrize(
    ("name", "hidden"),
    [("_SUCCESS", True), (".x.parquet", True), ("_date=1", False), ("a_b.parquet", False), ("_metadata", True)],
)
def test_what_spark_and_hive_hide_is_hidden(name, hidden):
    assert is_hidden(name) is hidden


@pytest.mark.parametrize(
    ("datasets", "text"),
    [
        ([{"name": "a", "path": "data/x"}], "absolute path or a URL"),
        ([{"name": "a", "path": "/x"}, {"name": "a", "path": "/y"}], "two datasets are called a"),
        ([{"name": "", "path": "/x"}], "name"),
        ([{"name": "a", "path": "/x", "glob": "*"}], "glob"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(datasets, text):
    with pytest.raises(ValidationError, match=text):
        DatasetsSettings.model_validate({"datasets": datasets})


def test_the_labels_of_one_dataset_are_bounded(clicks):
    root = Path(clicks[0])
    for n in range(40):
        write(root / f"more/{n}/p.parquet", 5)
    assert len(values(collector(root))) < 25

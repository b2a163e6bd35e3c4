"""One reading of a dataset: sizes from the listing, row groups from a few files' footers. Bounded in every way."""

from __future__ import annotations

import random
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from sidecar.collectors.datasets.stores import Entry, Store
from sidecar.errors import CollectError

SUFFIXES = (".parquet", ".parq", ".pq")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reading may cost."""

    max_files: int
    footers: int
    late: Callable[[], bool]  # whether its time is up


@dataclass(slots=True)
class Listing:
    """Sizes of the files found, and some of their paths, each as likely as any other."""

    sizes: array[int] = field(default_factory=lambda: array("q"))
    sample: list[str] = field(default_factory=list)
    folders_left: int = 0
    files_left: int = 0
    empty: int = 0
    unreadable: int = 0  # folders that could not be listed, or not to their end
    problem: str = ""  # of the first of these


@dataclass(slots=True)
class Footers:
    """What the footers said that were read."""

    rows: list[int] = field(default_factory=list)  # of each file
    groups: list[int] = field(default_factory=list)  # bytes of each row group, before compression
    unreadable: int = 0
    left: int = 0  # not read for want of time
    problem: str = ""  # of the first that was unreadable


def is_hidden(name: str) -> bool:
    """Logs, markers and work in progress of Spark, Hive and Delta; `_date=…` is a partition."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def listing(store: Store, limits: Limits, seed: str) -> Listing:
    """Folder by folder, until one of the limits. `seed` makes the choice of files the same in each reading.

    Raises what listing the dataset's own folder raised; a folder below that cannot be listed is counted.
    """
    found, rng = Listing(), random.Random(seed)
    pending, seen = deque([store.root]), {store.root}
    while pending:
        if limits.late() or len(found.sizes) >= limits.max_files:
            found.folders_left = len(pending)
            break
        folder = pending.popleft()
        try:
            for entry in store.entries(folder):
                if is_hidden(entry.name):
                    continue
                if not entry.folder:
                    _take(found, entry, limits, rng)
                elif entry.path not in seen:
                    seen.add(entry.path)
                    pending.append(entry.path)
        # A cloud's library raises what it likes; a folder may be gone meanwhile, or another team's.
        except Exception as e:
            if folder == store.root:
                raise
            found.unreadable += 1
            found.problem = found.problem or f"{folder}: {type(e).__name__}: {e}"
    return found


def _take(found: Listing, entry: Entry, limits: Limits, rng: random.Random) -> None:
    if not entry.name.endswith(SUFFIXES):
        return
    if not entry.size:
        found.empty += 1
        return
    if len(found.sizes) >= limits.max_files:
        found.files_left += 1
        return
    found.sizes.append(entry.size)
    if len(found.sample) < limits.footers:
        found.sample.append(entry.path)
    elif (place := rng.randrange(len(found.sizes))) < limits.footers:
        found.sample[place] = entry.path


def footers(store: Store, paths: Sequence[str], limits: Limits) -> Footers:
    """Raises CollectError without pyarrow. A file that is damaged, or gone, counts as unreadable."""
    found = Footers()
    read = _reader()
    for number, path in enumerate(paths):
        if limits.late():
            found.left = len(paths) - number
            break
        try:
            with store.open(path) as file:
                rows, groups = read(file)
        # A cloud's library raises what it likes, and pyarrow several kinds for damaged files.
        except Exception as e:  # noqa: BLE001
            found.unreadable += 1
            found.problem = found.problem or f"{path}: {type(e).__name__}: {e}"
            continue
        found.rows.append(rows)
        found.groups.extend(groups)
    return found


def _reader() -> Callable[[IO[bytes]], tuple[int, list[int]]]:
    try:
        import pyarrow.parquet as pq  # 60 MB of memory that only a cluster with datasets pays for
    except ImportError:
        raise CollectError("datasets", "no_pyarrow", "install spikewatch[cluster] to read footers") from None

    def read(file: IO[bytes]) -> tuple[int, list[int]]:
        metadata = pq.read_metadata(file)
        sizes = [metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups)]
        return metadata.num_rows, sizes

    return read


def stats(values: Sequence[int]) -> Iterator[tuple[str, float]]:
    """mean, p50 and max; nothing of nothing."""
    if values:
        in_order = sorted(values)
        middle = len(in_order) // 2
        yield "mean", sum(in_order) / len(in_order)
        yield "p50", (in_order[middle] + in_order[-middle - 1]) / 2
        yield "max", float(in_order[-1])

"""The store: every series of this sidecar in memory, written through `hooks.Sink`, read by block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sidecar.hooks import Handle
from sidecar.model import Labels, labels_of
from sidecar.store import cells
from sidecar.store.block import Block

_SLACK_MS = 10_000  # an evaluation may come this late and still finds its whole window


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters since start, except `series`, `blocks` and `bytes`, which are now."""

    series: int
    blocks: int
    bytes: int
    samples: int
    rejected_out_of_order: int
    rejected_duplicate: int
    rejected_unknown: int
    refused_series: int
    reused_series: int
    crowded_out_slots: int


class Store:
    """Implements `hooks.Sink`. Not thread-safe: one loop writes and reads."""

    def __init__(
        self,
        max_series: int = 50_000,
        max_series_per_metric: int = 10_000,
        min_keep_ms: int = 900_000,
        slot_hint_ms: int = 1000,
        max_slots: int = 200_000,
    ) -> None:
        """`slot_hint_ms` is the sampling interval that `bytes_for` assumes; rings measure their own pace."""
        self._max_series, self._max_per_metric = max_series, max_series_per_metric
        self._min_keep_ms, self._slot_hint_ms, self._max_slots = min_keep_ms, slot_hint_ms, max_slots
        self._blocks: list[Block] = []
        self._by_metric: dict[str, list[Block]] = {}
        self._by_producer: dict[tuple[str, str], Block] = {}
        self._index: dict[str, dict[Labels, Handle]] = {}
        self._spans: dict[str, int] = {}
        self._series = 0
        self._samples = self._out_of_order = self._duplicates = self._unknown = 0
        self._refused = self._reused = 0
        self._newest_ms = -(1 << 62)
        self.version = 0  # counts writes of any kind
        self.layout = 0  # counts series made

    # --- writing (hooks.Sink) --------------------------------------------------------------------------------------

    def series(self, metric: str, labels: Mapping[str, str], producer: str = "") -> Handle | None:
        """The place of a series, made on first sight; None when a limit on series is hit, or a label is no text that
        UTF-8 can hold: no page could be written with it in the store.

        A series is known by its labels: asked for again, also by another producer, it has the same place. After a
        series was ended with `STALE` ask again before writing to it, for its place may since belong to another.
        """
        key = labels_of({**labels, "__name__": metric})
        known = self._index.get(metric, {})
        handle = known.get(key)
        if handle is not None:
            return handle
        try:
            "".join([value for _, value in key]).encode()
        except UnicodeEncodeError:
            self._refused += 1
            return None
        block = self._by_producer.get((metric, producer))
        if self._series >= self._max_series or len(known) >= self._max_per_metric or block is None or block.full:
            self._collect(metric)
        if self._series >= self._max_series:
            for other in list(self._by_metric):
                self._collect(other)
        if self._series >= self._max_series or len(known) >= self._max_per_metric:
            self._refused += 1
            return None
        # looked up again: its producer may have left it to another
        block = self._by_producer.get((metric, producer)) or self._new_block(metric, producer)
        handle = Handle(block.index, block.add_column(key))
        self._index.setdefault(metric, {})[key] = handle
        self._series += 1
        self.version += 1
        self.layout += 1
        return handle

    def push(self, block: int, t_ms: int, values: Mapping[int, float]) -> None:
        """One time slot of a block: column → value. What is older than the block's newest slot is refused and counted.

        A second push with the same time adds the columns not set yet.
        """
        late, duplicates, unknown = self._blocks[block].push(t_ms, values)
        self._newest_ms = max(self._newest_ms, t_ms)
        self._out_of_order += late
        self._duplicates += duplicates
        self._unknown += unknown
        self._samples += len(values) - late - duplicates - unknown
        self.version += 1

    def reserve(self, spans: Mapping[str, int]) -> None:
        """Keeps at least so many milliseconds of each metric; the name "" stands for every metric.

        Rings grow as samples come in and keep what they hold. Spans replace those reserved before.
        """
        self._spans = dict(spans)
        for block in self._blocks:
            block.keep_ms = self._keep(block.metric)

    def _keep(self, metric: str) -> int:
        return max(self._min_keep_ms, self._spans.get(metric, 0), self._spans.get("", 0)) + _SLACK_MS

    def _new_block(self, metric: str, producer: str) -> Block:
        """A block for a producer: one that its former producer left behind, or a new one."""
        for block in self._by_metric.get(metric, ()):
            if block.idle:
                del self._by_producer[metric, block.producer]
                block.producer = producer
                break
        else:
            block = Block(len(self._blocks), metric, producer, self._keep(metric), self._max_slots)
            self._blocks.append(block)
            self._by_metric.setdefault(metric, []).append(block)
        self._by_producer[metric, producer] = block
        return block

    def _collect(self, metric: str) -> None:
        for block in self._by_metric.get(metric, ()):
            for labels in block.collect(self._newest_ms):
                del self._index[metric][labels]
                self._series -= 1
                self._reused += 1

    # --- reading ---------------------------------------------------------------------------------------------------

    def metrics(self) -> list[str]:
        """The names of all metrics that have a series, in order of first sight."""
        return [name for name in self._by_metric if self._index.get(name)]

    def blocks(self, metric: str) -> list[Block]:
        """The blocks of a metric, one a producer, oldest first."""
        return self._by_metric.get(metric, [])

    def sample_times(self, metric: str, after_ms: int, until_ms: int) -> list[int]:
        """Distinct times in (after_ms, until_ms] at which any series of the metric has a sample, sorted."""
        found: set[int] = set()
        for block in self.blocks(metric):
            low, high = block.upto(after_ms), block.upto(until_ms)
            low = max(low, block.first)
            present = ~cells.absent(block.rows(low, high)).all(axis=1)
            found.update(block.times_of(low, high)[present].tolist())
        return sorted(found)

    def labels(self, metric: str) -> list[Labels]:
        """The label sets of a metric's series, with `__name__`."""
        return list(self._index.get(metric, ()))

    def bytes_for(self, span_ms: int) -> int:
        """What one series costs when its metric keeps `span_ms` at the hinted sampling interval."""
        return 8 * -(-(max(span_ms, self._min_keep_ms) + _SLACK_MS) // self._slot_hint_ms)

    def stats(self) -> Stats:
        """The counters, for the sidecar's own metrics."""
        return Stats(
            series=self._series,
            blocks=len(self._blocks),
            bytes=sum(b.data.nbytes + b.times.nbytes for b in self._blocks),
            samples=self._samples,
            rejected_out_of_order=self._out_of_order,
            rejected_duplicate=self._duplicates,
            rejected_unknown=self._unknown,
            refused_series=self._refused,
            reused_series=self._reused,
            crowded_out_slots=sum(b.crowded_out for b in self._blocks),
        )

"""The store against the simplest thing that could be right: a dictionary of lists."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sidecar.model import STALE, labels_of
from sidecar.store import Store, cells

KEEP_MS = 20_000
names = st.sampled_from("abcdefgh")
numbers = st.sampled_from([0.0, 1.5, -7.0, float("inf"), 1e300])


class StoreMachine(RuleBasedStateMachine):
    """One metric, one producer, series that come, go and come back."""

    def __init__(self):
        super().__init__()
        self.store = Store(max_series_per_metric=6, min_keep_ms=KEEP_MS - 10_000)
        self.now = 0
        self.model: dict[str, list[tuple[int, float | None]]] = {}

    def handle(self, name):
        return self.store.series("m", {"n": name})

    def write(self, name, value):
        handle = self.handle(name)
        if handle is None:
            return
        self.model.setdefault(name, [])
        if self.model[name] and self.model[name][-1][0] == self.now:
            return
        self.store.push(handle.block, self.now, {handle.column: STALE if value is None else value})
        self.model[name].append((self.now, value))

    @rule(step=st.sampled_from([1, 100, 1000, 5000, 40_000]))
    def time_passes(self, step):
        self.now += step

    @rule(name=names, value=numbers)
    def a_sample(self, name, value):
        self.write(name, value)

    @rule(chosen=st.dictionaries(names, st.none() | numbers, min_size=2))
    def a_row(self, chosen):
        row, block = {}, 0
        for name, value in chosen.items():
            known = self.model.get(name, [])
            if known and known[-1][1] is None:
                self.write(name, value)  # its place is another's as soon as a third series asks for one
                continue
            handle = self.handle(name)
            if handle is not None and not (known and known[-1][0] == self.now):
                row[handle.column], block = STALE if value is None else value, handle.block
                self.model.setdefault(name, []).append((self.now, value))
        if row:
            self.store.push(block, self.now, row)

    @rule(value=numbers)
    def every_series_at_a_new_time(self, value):
        self.now += 1
        self.a_row({name: value for name in "abcdef"})

    @rule(name=names)
    def a_series_ends(self, name):
        self.write(name, None)

    @invariant()
    def what_is_kept_is_what_was_written(self):
        for name in "abcdefgh":
            kept = [(t, v) for t, v in self.read(name) if t > self.now - KEEP_MS]
            assert kept == [(t, v) for t, v in self.model.get(name, []) if t > self.now - KEEP_MS]

    def read(self, name):
        labels = labels_of({"__name__": "m", "n": name})
        found = []
        for block in self.store.blocks("m"):
            for column, owner in enumerate(block.labels):
                if owner == labels:
                    cells_ = block.rows(block.first, block.next)[:, column].copy()
                    times = block.times_of(block.first, block.next)
                    there = ~cells.missing(cells_)
                    ends = cells.stale(cells_)
                    for i in there.nonzero()[0].tolist():
                        found.append((int(times[i]), None if ends[i] else float(cells_[i])))
        return found


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)

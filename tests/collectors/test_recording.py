"""From samples to the sink."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.model import Sample, labels_of
from sidecar.recording import Recorder


def sample(metric, value, **labels):
    return Sample(metric, labels_of(labels), value)


def test_all_series_of_a_metric_go_into_one_slot(sink_of):
    sink = sink_of()
    Recorder(sink, "p").record([sample("m", 1, gpu="a"), sample("m", 2, gpu="b"), sample("n", 3)], 1000)
    assert len(sink.pushes) == 2
    assert sink.at(1000, "m", gpu="b") == 2


def test_a_series_is_looked_up_once_while_it_lasts(sink_of):
    sink = sink_of()
    recorder = Recorder(sink, "p")
    recorder.record([sample("m", 1)], 1000)
    sink.series = None  # any further look-up would fail
    recorder.record([sample("m", 2)], 2000)
    assert sink.at(2000, "m") == 2


def test_a_series_that_vanished_is_ended_in_the_next_tick_and_only_once(sink_of):
    sink = sink_of()
    recorder = Recorder(sink, "p")
    recorder.record([sample("m", 1, gpu="a"), sample("m", 2, gpu="b")], 1000)
    recorder.record([sample("m", 3, gpu="a")], 2000)
    recorder.record([sample("m", 4, gpu="a")], 3000)
    assert sink.at(2000, "m", gpu="b") == "stale"
    assert sink.at(3000, "m", gpu="b") is None
    assert sink.at(3000, "m", gpu="a") == 4


def test_end_ends_everything_that_was_there(sink_of):
    sink = sink_of()
    recorder = Recorder(sink, "p")
    recorder.record([sample("m", 1), sample("n", 2)], 1000)
    recorder.end(2000)
    assert sink.at(2000, "m") == sink.at(2000, "n") == "stale"
    assert len(recorder) == 0


def test_what_the_sink_has_no_room_for_is_counted_and_tried_again(sink_of):
    sink = sink_of(room=1)
    recorder = Recorder(sink, "p")
    recorder.record([sample("m", 1, gpu="a"), sample("m", 2, gpu="b")], 1000)
    assert recorder.refused == 1
    sink.room = 2
    recorder.record([sample("m", 1, gpu="a"), sample("m", 3, gpu="b")], 2000)
    assert recorder.refused == 1
    assert sink.at(2000, "m", gpu="b") == 3


def test_a_series_that_comes_twice_in_a_tick_keeps_the_last_value_and_is_counted(sink_of):
    sink = sink_of()
    recorder = Recorder(sink, "p")
    recorder.record([sample("m", 1), sample("m", 2)], 1000)
    assert sink.at(1000, "m") == 2
    assert recorder.duplicates == 1


def test_two_producers_of_a_metric_do_not_end_each_others_series(sink_of):
    sink = sink_of()
    one, two = Recorder(sink, "one"), Recorder(sink, "two")
    one.record([sample("m", 1, gpu="a")], 1000)
    two.record([sample("m", 2, gpu="b")], 1500)
    one.record([sample("m", 3, gpu="a")], 2000)
    assert sink.at(2000, "m", gpu="b") is None


def test_memory_holds_the_newest_tick_only(sink_of):
    recorder = Recorder(sink_of(room=10_000), "p")
    for t in range(1000):
        recorder.record([sample("m", 1, request=str(t))], t)
    assert len(recorder) == 1


@given(st.lists(st.sets(st.sampled_from("abcdef")), min_size=1, max_size=12))
def test_whatever_comes_and_goes_a_series_shows_values_while_present_and_one_end_after(sink_of, history):
    sink = sink_of()
    recorder = Recorder(sink, "p")
    for t, names in enumerate(history):
        recorder.record([sample("m", t, s=name) for name in sorted(names)], t)
    for name in set().union(*history):
        for t, names in enumerate(history):
            ended = t > 0 and name in history[t - 1]
            assert sink.at(t, "m", s=name) == (t if name in names else "stale" if ended else None)


def test_a_tick_without_anything_ends_also_what_came_twice_before(sink_of):
    sink = sink_of()
    recorder = Recorder(sink, "p")
    recorder.record([sample("m", 1), sample("m", 2)], 1000)
    recorder.end(2000)
    assert sink.at(2000, "m") == "stale"


names = st.sampled_from(["m", "n"])
ticks = st.lists(
    st.lists(st.builds(sample, names, st.floats(0, 9), gpu=st.sampled_from(["", "a", "b"])), max_size=6), max_size=8
)


@given(ticks)
def test_what_is_written_depends_on_this_tick_and_the_one_before_however_they_are_ordered(sink_of, ticks):
    """`sorted` makes repeated orders, which are written without looking series up, as likely as others."""
    for made in (ticks, [sorted(tick, key=lambda s: (s.metric, s.labels)) for tick in ticks]):
        sink, before = sink_of(), set()
        recorder = Recorder(sink, "p")
        for t, tick in enumerate(made):
            recorder.record(tick, t)
            expected = {(s.metric, s.labels): s.value for s in tick}
            for key in before - expected.keys():
                assert sink.at(t, key[0], **dict(key[1])) == "stale"
            for (metric, labels), value in expected.items():
                assert sink.at(t, metric, **dict(labels)) == value
            before = set(expected)
            assert len(recorder) == len(before)

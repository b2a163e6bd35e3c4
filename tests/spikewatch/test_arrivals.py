"""What counts as a prefetch hit, with an iterator whose batches arrive as the test says."""

from types import SimpleNamespace

import pytest

from spikewatch.arrivals import Arrivals, watch
from spikewatch.meter import Meter


class Iterator:
    """The bookkeeping of torch's worker iterator: numbers sent, lying here, waiting in the queue."""

    def __init__(self, ahead=4):
        self.queue, self.here, self.late = [], set(), ()
        self._send_idx, self._rcvd_idx, self._tasks_outstanding = ahead, 0, ahead
        self._data_queue = SimpleNamespace(empty=lambda: not self.queue)

    def __iter__(self):
        return self

    def __next__(self):
        """As torch: reads the queue (and what comes `late`) until the wanted batch is there, then asks for one more."""
        arriving = [*self.late]
        while self._rcvd_idx not in self.here:
            self.here.add(self.queue.pop(0) if self.queue else arriving.pop(0))
            self._tasks_outstanding -= 1
        self.here.remove(self._rcvd_idx)
        self._rcvd_idx += 1
        self._send_idx += 1
        self._tasks_outstanding += 1
        return self._rcvd_idx - 1


@pytest.mark.parametrize(
    ("queue", "here", "late", "hit"),
    [
        ([0], [], [], True),
        ([0, 1, 2], [], [], True),
        ([], [0], [], True),
        ([1, 2], [0], [], True),
        ([], [], [0], False),
        ([1], [], [0], False),
        ([1, 0], [], [], False),
        ([], [], [2, 1, 0], False),
    ],
    ids=["waiting", "first of several", "lies here", "lies here, others wait", "comes later", "another waits",
         "behind another", "comes last"],
)  # fmt: skip
def test_a_hit_is_a_batch_that_lay_here_or_was_the_next_in_the_queue(queue, here, late, hit):
    iterator = Iterator()
    iterator.queue, iterator.here = queue, set(here)
    iterator._tasks_outstanding -= len(here)
    iterator.late = late
    meter = Meter()
    assert Arrivals(iterator, meter).take() == 0
    assert (meter.requests, meter.hits, meter.errors) == (1, hit, 0)


def test_an_iterator_without_workers_or_of_an_unknown_torch_is_not_judged():
    assert watch(iter([1]), Meter()) is None
    assert watch(SimpleNamespace(_send_idx=0), Meter()) is None


def test_an_iterator_that_names_its_insides_otherwise_later_still_gives_its_batches_and_we_count_our_errors():
    iterator, meter = Iterator(), Meter()
    iterator.queue = [0, 1]
    arrivals = Arrivals(iterator, meter)
    del iterator._data_queue
    assert [arrivals.take(), arrivals.take()] == [0, 1]
    assert meter.errors == 2
    assert meter.requests != meter.requests, "nobody knows whether they were hits"
    with pytest.raises(IndexError):
        arrivals.take()  # its own errors are the loop's to see

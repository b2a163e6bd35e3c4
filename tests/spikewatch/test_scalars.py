"""Numbers read from tensors without waiting for a device: a fake one, for what only a GPU would show."""

import sys
from types import SimpleNamespace

import pytest

from spikewatch import layout
from spikewatch.scalars import Scalar

pytestmark = pytest.mark.torch


class Device:
    """Stands in for torch with a device whose copies finish when told to."""

    def __init__(self):
        self.unfinished, self.waited = [], 0
        self.capturing = False
        device = self

        class Event:
            def record(self):
                device.unfinished.append(self)

            def query(self):
                return self not in device.unfinished

        class Tensor:
            def __init__(self, value=0.0):
                self.value, self.is_cpu, self.is_cuda = value, False, True

            def numel(self):
                return 1

            def detach(self):
                return self

            def reshape(self, *_):
                return self

            def item(self):
                device.waited += 1
                return self.value

            def copy_(self, other, non_blocking):
                assert non_blocking
                self.value = other.value

            def __getitem__(self, _):
                return self.value

        self.Tensor = Tensor
        self.nn = SimpleNamespace(Parameter=type("Parameter", (), {}))
        self.float64 = None
        self.empty = lambda *_, dtype, pin_memory: Tensor()
        self.cuda = SimpleNamespace(Event=Event, is_current_stream_capturing=lambda: self.capturing)

    def finish(self, copies=None):
        del self.unfinished[:copies]


@pytest.fixture
def device():
    fake = Device()
    with pytest.MonkeyPatch.context() as patch:  # of its own: put back before anything else looks for torch
        patch.setitem(sys.modules, "torch", fake)
        yield fake


def test_a_number_on_the_device_arrives_when_its_copy_has_and_nobody_waits(device):
    scalar = Scalar()
    assert scalar.offer(device.Tensor(1.0)) == []
    assert layout.is_missing(scalar.value)
    assert scalar.offer(device.Tensor(2.0)) == []
    device.finish(1)
    assert scalar.offer(device.Tensor(3.0)) == [1.0]
    device.finish()
    assert scalar.offer(None) == [2.0, 3.0]
    assert scalar.value == 3.0
    assert device.waited == 0


def test_a_device_far_behind_loses_numbers_rather_than_holding_the_loop_up(device):
    scalar = Scalar()
    for number in range(20):
        scalar.offer(device.Tensor(float(number)))
    device.finish()
    assert scalar.offer(None) == [0.0, 1.0, 2.0, 3.0]
    scalar.offer(device.Tensor(20.0))
    device.finish()
    assert scalar.offer(None) == [20.0]


def test_nothing_is_copied_while_a_graph_is_captured(device):
    scalar = Scalar()
    device.capturing = True
    scalar.offer(device.Tensor(1.0))
    assert device.unfinished == []


def test_plain_numbers_and_cpu_tensors_arrive_at_once():
    import torch

    scalar = Scalar()
    assert scalar.offer(0.5) == [0.5]
    assert scalar.offer(3) == [3.0]
    assert scalar.offer(torch.tensor(1.5)) == [1.5]
    assert scalar.offer(torch.tensor([2.5])) == [2.5]
    assert scalar.offer(torch.nn.Parameter(torch.tensor(4.0))) == [4.0]


def test_what_might_be_a_collective_or_no_number_is_not_read():
    import torch

    class Sharded(torch.Tensor):
        def item(self):
            raise AssertionError("a collective")

    scalar = Scalar()
    for thing in (torch.zeros(2), torch.empty(1, device="meta"), Sharded(), "1.0", [1.0]):
        assert scalar.offer(thing) == []
    assert layout.is_missing(scalar.value)

"""Gradient checkpointing of a script's own blocks: the same numbers, blocks computed twice, less kept in between."""

import copy
import pickle
import random

import pytest

import spikewatch
from spikewatch.recomputing import NAME, Recomputing
from spikewatch.refusal import Refused

pytestmark = pytest.mark.torch

STEPS = 9


@pytest.fixture(autouse=True)
def counters():
    """What other tests have compiled does not count."""
    from torch._dynamo.utils import counters

    counters.clear()
    yield counters
    counters.clear()


def block(width=8):
    """With dropout: what is drawn must be drawn again."""
    from torch import nn

    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.3), nn.Linear(4 * width, width))


def trained(around, random_state):
    """Three blocks trained for some steps; (weights, random state, forwards a step, bytes kept a step)."""
    import torch

    torch.manual_seed(4)
    random.seed(4)
    blocks = torch.nn.ModuleList(block() for _ in range(3))
    optimizer = torch.optim.AdamW(blocks.parameters(), 0.01)
    step, calls, kept = around(blocks, optimizer), [], []
    for linear in (blocks[0][0], blocks[2][0]):
        linear.register_forward_hook(lambda *_: calls.append(1))
    forwards, memory = [], []
    for _ in range(STEPS):
        calls.clear()
        kept.clear()

        def keep(tensor):
            kept.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = torch.randn(5, 8)
            for one in blocks:
                out = one(out)
            loss = out.pow(2).mean()
        memory.append(sum(kept))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        forwards.append(len(calls))
        step(loss)
    return [p.detach().numpy().tobytes() for p in blocks.parameters()], random_state(), forwards, memory


def test_the_run_is_bit_by_bit_the_same_while_blocks_are_computed_twice_and_keep_less(order, random_state):
    runs = []

    def attached(blocks, optimizer):
        run = spikewatch.attach(optimizer=optimizer)
        run.offer(Recomputing(*blocks))
        runs.append(run)

        def step(loss):
            orders = {3: True, 6: False}
            number = run._parts.meter.steps + 1
            if number in orders:
                change = order(run, **{NAME: orders[number]})
            run.step(loss)
            if number in orders:
                run._parts.ledger.keep(change)

        return step

    weights, state, forwards, memory = trained(attached, random_state)
    plain = trained(lambda *_: lambda loss: None, random_state)
    runs[0].close()
    assert (weights, state) == plain[:2]
    assert (plain[2], forwards) == ([2] * STEPS, [2, 2, 2, 4, 4, 4, 2, 2, 2])
    assert memory[3] < memory[2] / 3
    assert memory[:3] + memory[6:] == plain[3][:3] + plain[3][6:]
    assert runs[0]._parts is None


def test_a_change_that_nobody_confirms_is_gone_when_the_run_ends(order):
    blocks = [block(), block()]
    with spikewatch.attach() as run:
        run.offer(Recomputing(*blocks))
        order(run, **{NAME: True})
        run.step()
        assert run._parts.knobs.values()[NAME] is True
        assert all("forward" in vars(one) for one in blocks)
    assert not any("forward" in vars(one) for one in blocks)


def test_without_gradients_a_block_is_computed_once():
    import torch

    one, calls = block(), []
    one[0].register_forward_hook(lambda *_: calls.append(1))
    Recomputing(one).change({NAME: True}, 0)
    with torch.no_grad():
        one(torch.ones(2, 8))
    assert len(calls) == 1


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_of_a_model_computes_with_its_own_weights(twin):
    import torch

    one = block().eval()
    Recomputing(one).change({NAME: True}, 0)
    other = twin(one)
    with torch.no_grad():
        other[0].weight.zero_()
        other[0].bias.zero_()
    inputs = torch.ones(2, 8)
    assert torch.equal(other(inputs), other[3].bias.expand(2, 8))
    assert not torch.equal(one(inputs), other(inputs))
    assert one.state_dict().keys() == other.state_dict().keys() == block().state_dict().keys()


def test_blocks_that_would_not_come_out_the_same_are_refused_with_the_reason(counters):
    from torch import nn

    replaced = block()
    replaced.forward = lambda x: x
    for one, why in ((nn.Sequential(nn.BatchNorm1d(8)), "running statistics"), (replaced, "another tool")):
        with spikewatch.attach() as run:
            run.offer(Recomputing(one))
            assert why in run._parts.knobs.unavailable()[NAME]
            with pytest.raises(Refused, match=why):
                run._parts.knobs.check({NAME: True})
    counters["frames"]["total"] = 1
    assert Recomputing(block()).unavailable() == {NAME: "compiled code would be compiled anew"}
    inner = block()
    for blocks in ((), (inner, inner), (inner, inner[0]), ("text",)):
        with pytest.raises(ValueError, match="recomputed"):
            Recomputing(*blocks)

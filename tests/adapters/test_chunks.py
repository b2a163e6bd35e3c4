"""A batch is dealt out to smaller ones without losing, repeating or moving a sample."""

from collections import OrderedDict, UserDict, namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spikewatch.adapters.chunks import length, split
from spikewatch.adapters.microbatch import Splitting
from spikewatch.refusal import Refused

pytestmark = pytest.mark.torch

Pair = namedtuple("Pair", "x y")


def rows(n, width=2):
    import torch

    return torch.arange(n * width).reshape(n, width)


def joined(pieces):
    """The pieces put together again, for tensors, dicts and tuples of them, and lists of other things."""
    import torch

    first = pieces[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(pieces) if first.dim() else first
    if isinstance(first, dict | UserDict):
        return {key: joined([piece[key] for piece in pieces]) for key in first}
    if isinstance(first, list | tuple) and first and isinstance(first[0], torch.Tensor | dict):
        return [joined(list(parts)) for parts in zip(*pieces, strict=True)]
    return [item for piece in pieces for item in piece] if isinstance(first, list | tuple) else first


@given(n=st.integers(1, 40), size=st.integers(1, 50))
def test_every_sample_comes_once_and_in_order(n, size):
    batch = {"x": rows(n), "pair": (rows(n, 3), [rows(n, 1)]), "name": [f"s{i}" for i in range(n)], "scale": 2.0}
    pieces = split(batch, size)
    assert [count for _, count in pieces] == [size] * (n // size) + ([n % size] if n % size else [])
    together = joined([piece for piece, _ in pieces])
    assert together["x"].equal(batch["x"])
    assert together["pair"][0].equal(batch["pair"][0])
    assert together["pair"][1][0].equal(batch["pair"][1][0])
    assert (together["name"], together["scale"]) == (batch["name"], 2.0)


def test_pieces_are_of_the_batchs_own_kinds_and_share_its_memory():
    x = rows(4)
    for batch in (Pair(x, x), OrderedDict(x=x), UserDict(x=x)):
        (first, _), _ = split(batch, 2)
        assert type(first) is type(batch)
    (first, _), _ = split(Pair(x, None), 2)
    assert first.x.data_ptr() == x.data_ptr()
    assert first.y is None


def test_a_tensor_of_no_dimension_goes_into_every_piece():
    import torch

    pieces = split({"x": rows(4), "temperature": torch.tensor(0.5)}, 2)
    assert [float(piece["temperature"]) for piece, _ in pieces] == [0.5, 0.5]


def test_what_cannot_be_dealt_out_by_sample_is_not():
    class Opaque:
        pass

    assert split({"x": rows(4), "y": rows(3)}, 2) is None
    assert split({"x": rows(4), "names": ["a", "b"]}, 2) is None
    assert split({"x": rows(4), "more": Opaque()}, 2) is None
    assert split({"text": "no tensor at all"}, 2) is None
    assert length([]) is None
    deep = rows(4)
    for _ in range(10):
        deep = [deep]
    assert split(deep, 2) is None


def test_the_samples_of_a_step_stay_whatever_is_asked_for():
    knobs = Splitting(batch=8, accumulated=3)
    assert knobs.values() == {"micro_batch_size": 8, "accumulation_steps": 3}
    knobs.pieces({"x": rows(8)})
    assert knobs.unavailable() == {}
    for values in (
        {"micro_batch_size": 2},
        {"accumulation_steps": 12},
        {"micro_batch_size": 2, "accumulation_steps": 12},
    ):
        knobs.check(values)
        knobs.change(values, 0)
        assert knobs.values() == {"micro_batch_size": 2, "accumulation_steps": 12}
        knobs.change({"micro_batch_size": 8}, 0)
    for values in (
        {"micro_batch_size": 3},
        {"accumulation_steps": 5},
        {"micro_batch_size": 4, "accumulation_steps": 12},
    ):
        with pytest.raises(Refused, match="a step uses 24 samples"):
            knobs.check(values)


def test_batches_are_whole_until_a_change_and_unknown_until_one_was_seen():
    knobs = Splitting(batch=4, accumulated=1)
    assert knobs.unavailable()["micro_batch_size"] == "no batch was seen yet"
    assert knobs.pieces({"x": rows(4)}) is None
    knobs.change({"micro_batch_size": 2}, 0)
    assert [count for _, count in knobs.pieces({"x": rows(4)})] == [2, 2]
    assert knobs.pieces({"x": rows(2)}) is None  # the last of an epoch, small enough as it is
    assert knobs.pieces({"x": rows(4), "y": rows(3)}) is None
    assert knobs.pieces({"x": rows(8)}) is None
    assert "dealt out" in knobs.unavailable()["accumulation_steps"]


@pytest.mark.parametrize("count", [1, 8], ids=["packed into one row", "two rows a sample"])
def test_rows_that_are_no_samples_stay_together(count):
    knobs = Splitting(batch=4, accumulated=1)
    assert knobs.pieces({"x": rows(count)}) is None
    assert "one row a sample" in knobs.unavailable()["micro_batch_size"]

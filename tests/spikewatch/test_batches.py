"""How large a batch is, without touching its data."""

from collections import namedtuple

import pytest

from spikewatch.batches import MAX_LEAVES, BatchLengths, measure

pytestmark = pytest.mark.torch


def zeros(*shape):
    import torch

    return torch.zeros(*shape)


Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: zeros(8, 3), (8, 96)),
        (lambda: (zeros(8, 3), zeros(8)), (8, 128)),
        (lambda: {"x": zeros(8, 3), "more": [zeros(8), "text", 5]}, (8, 128)),
        (lambda: Pair(zeros(2, 2), zeros(2)), (2, 24)),
        (lambda: [zeros(8), zeros(7)], (None, 60)),
        (lambda: [zeros(8), zeros(())], (8, 36)),
        (lambda: zeros(()), (None, 4)),
        (lambda: ["a", "b"], (None, None)),
        (lambda: object(), (None, None)),
        (lambda: [zeros(1)] * (MAX_LEAVES + 1), (None, None)),
        (lambda: [[[[[[[[zeros(1)]]]]]]]], (None, None)),
    ],
)
def test_bytes_are_counted_and_the_length_where_all_tensors_agree(make, expected):
    assert measure(make()) == expected


def test_the_samples_of_torchs_own_batches_are_known_whatever_is_made_of_them():
    from torch.utils.data import DataLoader

    loader = DataLoader(range(10), batch_size=4, collate_fn=lambda items: zeros(3, len(items)))
    lengths = BatchLengths(loader)
    assert [lengths.of(n, batch) for n, batch in enumerate(loader)] == [(4, 48), (4, 48), (2, 24)]


def test_the_samples_of_other_batches_are_read_off_the_tensors():
    from torch.utils.data import DataLoader

    loader = DataLoader(range(6), batch_sampler=[[0], [1, 2, 3], [4, 5]])
    lengths = BatchLengths(loader)
    assert [lengths.of(n, batch)[0] for n, batch in enumerate(loader)] == [1, 3, 2]

"""Under Hugging Face's Trainer one callback is enough: it measures, and the knobs it offers change the run."""

import warnings

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Runs a tiny training under the Trainer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the framework's own imports
        from tiny_huggingface import train as run

    return lambda plan, **more: run(plan, tmp_path_factory.mktemp("trainer"), **more)


def test_a_trainer_that_is_observed_ends_bit_identical_and_is_described(train):
    from matrix import observed

    watched, _ = observed(train, accumulate=2)
    assert watched.about["framework"].startswith("transformers ")
    assert (watched.about["parallelism"], watched.about["precision"]) == ("none", "fp32")


def test_smaller_batches_and_more_of_them_leave_samples_order_and_gradient_as_they_were(train):
    from matrix import micro_batch_size

    micro_batch_size(train)


def test_a_storm_of_overflows_ends_when_the_trainer_goes_on_in_bf16(train):
    from matrix import storm_ends_by_precision

    storm_ends_by_precision(train)


def test_workers_change_amid_an_epoch_and_the_trainer_sees_the_same_batches(train):
    from matrix import num_workers

    num_workers(train)


def test_workers_of_two_ranks_draw_other_numbers_whatever_their_count(train):
    import functools

    import torch
    from torch.utils.data import DataLoader
    from transformers.trainer_utils import seed_worker

    from spikewatch.adapters.huggingface_seeds import follow_workers

    def draws(rank, declared, workers, followed):
        loader = DataLoader(Draws(), 1, num_workers=workers, generator=torch.Generator().manual_seed(3))
        loader.worker_init_fn = functools.partial(seed_worker, num_workers=declared, rank=rank)
        if followed:
            follow_workers(loader)
        return [int(batch) for batch in loader]

    assert draws(1, 2, 2, followed=True) == draws(1, 2, 2, followed=False)
    assert set(draws(0, 1, 2, followed=False)) & set(draws(1, 1, 2, followed=False))  # what this is about
    assert not set(draws(0, 1, 2, followed=True)) & set(draws(1, 1, 2, followed=True))


class Draws:
    """Four samples that are random numbers."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        import torch

        return torch.randint(2**40, ())

"""Under Lightning one callback is enough: it measures, and the knobs it offers change the run."""

import warnings

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step"),  # the first step of a storm is skipped
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated"),
]


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Runs a tiny training under Lightning's Trainer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the framework's own imports
        from tiny_lightning import train as run

    return lambda plan, **more: run(plan, tmp_path_factory.mktemp("trainer"), **more)


def test_a_trainer_that_is_observed_ends_bit_identical_and_is_described(train):
    from matrix import observed

    watched, _ = observed(train, accumulate=2)
    assert watched.about["framework"].startswith("lightning ")
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

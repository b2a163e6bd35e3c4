"""The long proof: 300 training runs over loaders of every kind, changed at random and restarted in the middle."""

import collections
import gc
import multiprocessing
import random
import time

import pytest
from loop_changes import KINDS

import spikewatch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.proof,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than a small machine has CPUs
]

RUNS, PASSES = 300, 2
VALUES = {
    "num_workers": (0, 1, 2, 3),
    "prefetch_factor": (1, 2, 3, 7),
    "micro_batch_size": (1, 2, 4, 8, 16),
    "accumulation_steps": (1, 2, 4, 8, 16),
}


def test_three_hundred_loader_runs(loops, no_children_left, record_proof):
    began, found = time.monotonic(), collections.Counter()
    for number in range(RUNS):
        chance = random.Random(number)
        if number % 6 == 5:
            iterable_run(chance, found)
        else:
            map_style_run(loops, chance, found)
        found["runs"] += 1
    gc.collect()
    until = time.monotonic() + 60
    while multiprocessing.active_children() and time.monotonic() < until:
        time.sleep(0.05)
    found["processes_left"] = len(multiprocessing.active_children())
    changes = {name: found.pop(f"changes of {name}") for name in VALUES}
    record_proof(
        "loader",
        {
            **found,
            "kinds": [*KINDS, "iterable"],
            "changes": changes,
            "wrong_steps": found["wrong_steps"],  # lost, repeated, moved or in another step
            "client_errors": found["client_errors"],
            "seconds": round(time.monotonic() - began),
        },
    )
    assert (found["wrong_steps"], found["client_errors"], found["processes_left"]) == (0, 0, 0)
    assert found["restarts"] > RUNS / 4
    assert found["steps_compared"] > RUNS * 8
    assert min(changes.values()) > RUNS / 4


def map_style_run(loops, chance, found):
    import torch

    kind, workers, persistent = chance.choice(KINDS), chance.choice([0, 1, 2]), chance.random() < 0.5
    expected = loops.steps_without_us(kind, workers, PASSES, persistent=persistent)
    steps = sum(map(len, expected))
    stop = chance.randrange(1, steps) if chance.random() < 0.5 else None

    def change(_):
        if chance.random() < 0.6:
            return None
        name = chance.choice(list(VALUES))
        return {name: chance.choice(VALUES[name])}

    def end(watched):
        found.update({f"changes of {name}": times for name, times in watched.applied.items()})
        found["refused"] += len(watched.refused)
        found["client_errors"] += watched.run._parts.meter.errors
        watched.close()

    loops.seeded()
    watched = loops.Watched(loops.make_loader(kind, workers, persistent=persistent))
    told = []
    while len(told) < PASSES:
        told.append(watched.one_pass(len(told), change, stop))
        if watched.number == stop:
            break
    if stop is not None:
        checkpoint, rng = watched.run.state_dict(), (torch.get_rng_state(), random.getstate())
        position = checkpoint["data"]["position"]
        if position is None:  # another library's sampler, not known yet: such a run begins its pass anew
            found["restarts_refused"] += 1
            expected = [*expected[: len(told) - 1], expected[len(told) - 1][: len(told[-1])]]
        else:
            found["restarts"] += 1
            end(watched)
            loops.seeded(99)
            watched = loops.Watched(loops.make_loader(kind, workers, persistent=persistent))
            assert watched.run.load_state_dict(checkpoint, strict=True)
            torch.set_rng_state(rng[0])
            random.setstate(rng[1])
            told[-1] += watched.one_pass(len(told) - 1, change)
            told += [watched.one_pass(number, change) for number in range(len(told), PASSES)]
    end(watched)
    found["steps_compared"] += sum(map(len, expected))
    found["samples_compared"] += sum(len(step) for steps in expected for step in steps)
    found["wrong_steps"] += sum(map(len, expected)) if told != expected else 0


def iterable_run(chance, found):
    """Shares of different lengths, so that some workers end long before the others; only the depth changes."""
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    workers = chance.choice([1, 2, 3])
    shares = [chance.randrange(0, 60) for _ in range(workers)]

    class Shards(IterableDataset):
        def __iter__(self):
            number = get_worker_info().id
            return iter(range(number * 1000, number * 1000 + shares[number]))

    settings = dict(
        batch_size=chance.choice([1, 4]),
        num_workers=workers,
        prefetch_factor=chance.choice([1, 2, 8]),
        persistent_workers=chance.random() < 0.5,
    )
    twin, expected = DataLoader(Shards(), **settings), []
    for _ in range(PASSES):
        expected.append([batch.tolist() for batch in twin])
    del twin
    run = spikewatch.attach(loader=DataLoader(Shards(), **settings))
    for passed in range(PASSES):
        seen = []
        for batch in run.loader:
            seen.append(batch.tolist())
            run.step()
            if chance.random() < 0.3:
                values = {"prefetch_factor": chance.choice(VALUES["prefetch_factor"])}
                run._parts.knobs.check(values)
                run._parts.knobs.change(values)
                found["changes of prefetch_factor"] += 1
        found["steps_compared"] += len(seen)
        found["samples_compared"] += sum(map(len, seen))
        found["wrong_steps"] += len(seen) if seen != expected[passed] else 0
    found["client_errors"] += run._parts.meter.errors
    run.close()
    run.loader = None

"""One rank of a training that accumulates, for `test_batching_training`: with us and by hand, to be the same."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import spikewatch

SAMPLES, OWN, ACCUMULATION = 72, 4, 2
CHANGES = {2: 2, 5: 1, 8: 8, 11: 4}
PASSES = 2


def model():
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    ddp = DistributedDataParallel(net)
    return ddp, torch.optim.SGD(ddp.parameters(), 0.1)


def loader():
    return DataLoader(range(SAMPLES), OWN, sampler=DistributedSampler(range(SAMPLES)), num_workers=dist.get_rank())


def learn(net, batch, weight):
    (net(batch.float()[:, None] / 100).pow(2).mean() * weight).backward()


def by_hand():
    net, optimizer = model()
    data, size, number = loader(), OWN, 0
    for epoch in range(PASSES):
        data.sampler.set_epoch(epoch)
        for group in torch.cat(list(data)).split(OWN * ACCUMULATION):
            *first, last = group.split(size)
            with net.no_sync():
                for batch in first:
                    learn(net, batch, len(batch) / len(group))
            learn(net, last, len(last) / len(group))
            optimizer.step()
            optimizer.zero_grad()
            number += 1
            size = CHANGES.get(number, size)
    return list(net.parameters())


def with_us():
    net, optimizer = model()
    run = spikewatch.attach(model=net, optimizer=optimizer, loader=loader(), accumulation_steps=ACCUMULATION)
    number = 0
    for epoch in range(PASSES):
        run.loader.sampler.set_epoch(epoch)
        for batch in run.loader:
            with run.accumulate():
                learn(net, batch, run.loss_weight)
            if run.should_step():
                optimizer.step()
                optimizer.zero_grad()
                run.step()
                number += 1
                if number in CHANGES:
                    # past the agreement of the ranks, which has its own tests: what each does at the agreed step
                    run._parts.knobs.check({"micro_batch_size": CHANGES[number]})
                    run._parts.knobs.change({"micro_batch_size": CHANGES[number]})
    assert number == PASSES * 5, number
    run.close()
    return list(net.parameters())


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mine, expected = with_us(), by_hand()
    assert all(torch.equal(one, other) for one, other in zip(mine, expected, strict=True))
    sys.stdout.write(repr([p.tolist() for p in mine]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

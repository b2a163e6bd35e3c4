"""One rank of a training that accumulates while its batches are cut anew, compared with one that knows nothing of us.

Run as `python rank_that_accumulates.py SETTINGS`, JSON of: out (folder for what each rank saw), changes (of the size of
batches, ordered at rank 0 one after the other and agreed by all), most (passes), seed.
"""

import json
import os
import random
import sys
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import spikewatch
from spikewatch import attaching
from spikewatch.agreement_leader import Pace
from spikewatch.refusal import Refused

SAMPLES, OWN, ACCUMULATION = 212, 4, 2  # of two ranks each has 13 steps of 8 samples and one of 2
SIZES = (1, 2, 4, 8)


def new_model():
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    ddp = DistributedDataParallel(net)
    return ddp, torch.optim.SGD(ddp.parameters(), 0.1)


def new_loader(workers):
    return DataLoader(range(SAMPLES), OWN, sampler=DistributedSampler(range(SAMPLES)), num_workers=workers)


def learn(net, batch, weight):
    (net(batch.float()[:, None] / 100).pow(2).mean() * weight).backward()


def checksum(net):
    sum_ = 0
    for parameter in net.parameters():
        sum_ = zlib.crc32(parameter.detach().numpy().tobytes(), sum_)
    return sum_


def by_hand(sizes, passes):
    """`sizes`: samples a batch, one entry a step. Returns the weights' checksum after each step."""
    net, optimizer = new_model()
    data, sizes, sums = new_loader(0), iter(sizes), []
    for epoch in range(passes):
        data.sampler.set_epoch(epoch)
        for group in torch.cat(list(data)).split(OWN * ACCUMULATION):
            *first, last = group.split(next(sizes))
            with net.no_sync():
                for batch in first:
                    learn(net, batch, len(batch) / len(group))
            learn(net, last, len(last) / len(group))
            optimizer.step()
            optimizer.zero_grad()
            sums.append(checksum(net))
    return sums


class Orders:
    """Rank 0's sidecar: one change of the size after the other, each kept or taken back."""

    def __init__(self, ledger, count, chance):
        self.ledger, self.left, self.chance = ledger, count, chance
        self.number, self.open, self.ends = 0, None, []

    def look(self, size):
        if self.open is None and self.left:
            try:
                self.ledger.set(f"c{self.number}", {"micro_batch_size": self.other(size)}, {}, 60_000)
            except Refused as refusal:  # ranks not together yet; followers forget a moment later
                if refusal.reason not in ("unsupported", "busy"):
                    raise
            else:
                self.open, self.asked, self.left = f"c{self.number}", "", self.left - 1
            self.number += 1
        elif self.open is not None:
            report = self.ledger.report(self.open)
            if report["state"] == "applied" and not self.asked:
                self.asked = self.chance.choice(["keep", "revert"])
                getattr(self.ledger, self.asked)(self.open)
            elif report["state"] not in ("pending", "applied"):
                self.ends.append(report["state"])
                self.open = None

    def other(self, size):
        return self.chance.choice([other for other in SIZES if other != size])


def with_us(settings, rank):
    """(size of batches, samples, checksum) of each step, passes, what became of the orders."""
    net, optimizer = new_model()
    run = spikewatch.attach(
        model=net, optimizer=optimizer, loader=new_loader(rank % 2), accumulation_steps=ACCUMULATION, job="batches"
    )
    orders = Orders(run._parts.ledger, settings["changes"] if rank == 0 else 0, random.Random(settings["seed"]))
    own = random.Random(1000 * rank + settings["seed"])
    steps, step, passes, done = [], [], 0, torch.zeros(1)
    while not done and passes < settings["most"]:
        run.loader.sampler.set_epoch(passes)
        for batch in run.loader:
            step += batch.tolist()
            with run.accumulate():
                learn(net, batch, run.loss_weight)
            if run.should_step():
                optimizer.step()
                optimizer.zero_grad()
                steps.append((run._parts.knobs.values()["micro_batch_size"], step, checksum(net)))
                step = []
                run.step()
                orders.look(steps[-1][0])
                if own.random() < 0.02:  # each rank's own business
                    run._parts.tuner.change({"num_workers": own.choice([0, 1, 2])})
        passes += 1
        done[0] = rank == 0 and not orders.left and orders.open is None
        dist.all_reduce(done)
    errors = run._parts.meter.errors
    run.close()
    return steps, passes, orders.ends, errors


def main():
    settings, rank = json.loads(sys.argv[1]), int(os.environ["RANK"])
    attaching.PACE = Pace(poll=0.05, busy=0.01, allowance=0.15, patience=10.0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    steps, passes, ends, errors = with_us(settings, rank)
    sizes, samples, sums = (list(column) for column in zip(*steps, strict=True))
    order, expected = DistributedSampler(range(SAMPLES)), []
    for epoch in range(passes):
        order.set_epoch(epoch)
        expected += order
    seen = {
        "passes": passes,
        "ends": ends,
        "errors": errors,
        "sizes": sizes,
        "sums": sums,
        "as_by_hand": sums == by_hand(sizes, passes),
        "samples_right": [index for step in samples for index in step] == expected,
    }
    (Path(settings["out"]) / f"rank{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

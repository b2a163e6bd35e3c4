"""The tiny training in a plain loop with `fully_shard`."""

import os

import torch
import torch.distributed as dist
from tiny import BATCH, Numbers, Script, Tiny, Trace
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import spikewatch


def train(plan, folder=None):
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    trace = Trace()
    model, data = Tiny(plan, trace), Numbers(plan.size)
    script = Script(plan, trace, model, data)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model.body, model.head, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    sampler = DistributedSampler(data, shuffle=True, seed=7)
    loader = DataLoader(data, BATCH, sampler=sampler, num_workers=int(os.environ["RANK"]))
    run = spikewatch.attach(model, optimizer, loader) if plan.attached else None
    for epoch in range(plan.epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            loss = model(**batch)["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            script.before_step_ends(run)
            if run is not None:
                run.step(loss)
            script.after_step(run, None)
    if run is not None:
        run.close()
    return script.finish()

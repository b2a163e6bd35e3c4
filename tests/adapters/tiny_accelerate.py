"""The tiny training in a loop of the script's own, with Accelerate."""

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from tiny import BATCH, Numbers, Script, Tiny, Trace, scaler_of
from torch.utils.data import DataLoader

from spikewatch.adapters.accelerate import attach


def train(plan, folder=None):
    trace = Trace()
    model, data = Tiny(plan, trace), Numbers(plan.size)
    script = Script(plan, trace, model, data)
    try:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=plan.accumulate)
        if plan.fp16:  # on a CPU Accelerate refuses it, though torch computes it there
            accelerator.state._mixed_precision = "fp16"
            accelerator.native_amp = True
            accelerator.scaler = scaler_of(plan)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        torch.manual_seed(7)  # what the loader shuffles by
        loader = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=plan.workers)
        prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        script.own_rate(optimizer.optimizer)
        run = attach(accelerator, prepared if plan.ranks > 1 else None) if plan.attached else None
        for _ in range(plan.epochs):
            for batch in loader:
                with accelerator.accumulate(prepared):
                    loss = prepared(**batch)["loss"]
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                if accelerator.sync_gradients:
                    script.before_step_ends(run.run if run else None)
                if run is not None:
                    run.step(loss)
                if accelerator.sync_gradients:
                    script.after_step(run.run if run else None, accelerator.scaler)
        if run is not None:
            run.close()
    finally:
        for state in (AcceleratorState, PartialState):
            state._reset_state()
        GradientState._reset_state()
    return script.finish()

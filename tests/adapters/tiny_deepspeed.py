"""The tiny training under DeepSpeed, alone or on one rank of several; run as a script it does the whole matrix."""

import json
import math
import os
import sys
import warnings

import torch
from tiny import BATCH, Numbers, Script, Tiny, Trace
from torch.utils.data import DataLoader

from spikewatch.adapters.deepspeed import EngineScaler, attach

KNOBS = (
    "num_workers",
    "prefetch_factor",
    "lr_factor",
    "loss_scale",
    "loss_scale_growth_interval",
    "overflow storm, ended by loss_scale",
)


def train(plan, folder=None, stage=1):
    import deepspeed

    trace = Trace()
    model, data = Tiny(plan, trace), Numbers(plan.size)
    script = Script(plan, trace, model, data)
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": plan.accumulate,
        "optimizer": {"type": "SGD", "params": {"lr": 0.05}},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    if plan.fp16:
        fp16 = {"initial_scale_power": int(math.log2(plan.scale)), "loss_scale_window": plan.interval, "hysteresis": 1}
        config["fp16"] = {"enabled": True, **fp16}
    engine, *_ = deepspeed.initialize(model=model, config=config)
    script.own_rate(engine.basic_optimizer)
    torch.manual_seed(7)  # what the loader shuffles by
    loader = DataLoader(data, BATCH, shuffle=True, num_workers=plan.workers)
    run = attach(engine, loader) if plan.attached else None
    scaler = EngineScaler(engine) if plan.fp16 and stage else None
    for _ in range(plan.epochs):
        for batch in loader:
            loss = engine(**batch)["loss"]
            engine.backward(loss)
            ends = engine.is_gradient_accumulation_boundary()
            engine.step()
            if ends:
                script.before_step_ends(run.run if run else None)
            if run is not None:
                run.step(loss)
            if ends:
                script.after_step(run.run if run else None, scaler)
    if run is not None:
        run.close()
    return script.finish()


def main():
    from deepspeed.accelerator import get_accelerator
    from matrix import CHECKS, observed

    warnings.simplefilter("ignore")
    get_accelerator().is_fp16_supported = lambda: True  # it asks for instructions that torch does without
    found = {}
    for stage in (0, 1, 2, 3):

        def of(plan, stage=stage):
            return train(plan, stage=stage)

        for fp16 in (False, True):
            watched, _ = observed(of, fp16=fp16, accumulate=2)
            found[f"observed, stage {stage}{', fp16' if fp16 else ''}"] = {"bit_identical": True, **watched.about}
        for knob in KNOBS if stage else KNOBS[:3]:
            CHECKS[knob](of)
            try:
                CHECKS[knob](of, neutral=True)
                noticed = False
            except AssertionError:
                noticed = True
            found[f"{knob}, stage {stage}"] = {"changes_the_run": True, "noticed_when_taken_out": noticed}
    sys.stdout.write("FOUND " + json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

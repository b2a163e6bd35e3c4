"""One file a framework: what the user adds is one to three lines, everything else is found in the framework's objects.

    spikewatch.adapters.huggingface   Trainer(…, callbacks=[SpikewatchCallback()])       also the TRL trainers
    spikewatch.adapters.lightning     Trainer(callbacks=[SpikewatchCallback()])
    spikewatch.adapters.accelerate    run = attach(accelerator); run.step(loss)
    spikewatch.adapters.deepspeed     run = attach(engine); run.step(loss)

Plain loops, DDP and `fully_shard` need none of them: `spikewatch.attach` is for those. docs/frameworks.md says which
knobs each offers, and why the others are refused.
"""

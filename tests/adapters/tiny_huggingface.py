"""The tiny training under Hugging Face's Trainer."""

from accelerate.state import AcceleratorState, GradientState, PartialState
from tiny import BATCH, Numbers, Script, Tiny, Trace, scaler_of
from transformers import Trainer, TrainerCallback, TrainingArguments

from spikewatch.adapters.huggingface import SpikewatchCallback


class Before(TrainerCallback):
    """Comes before ours in every event."""

    def __init__(self, script, ours):
        self.script, self.ours = script, ours

    def on_train_begin(self, args, state, control, optimizer=None, **_):
        self.script.own_rate(optimizer.optimizer)

    def on_step_end(self, args, state, control, **_):
        self.script.before_step_ends(self.ours.run if self.ours else None)


class After(Before):
    def on_train_begin(self, args, state, control, **_):
        pass

    def on_step_end(self, args, state, control, optimizer=None, **_):
        self.script.after_step(self.ours.run if self.ours else None, optimizer.scaler)


def half_precision(trainer, plan):
    """What fp16=True sets on a GPU; on a CPU Accelerate refuses it, though torch computes it there."""
    trainer.accelerator.state._mixed_precision = "fp16"
    trainer.accelerator.native_amp = True
    trainer.accelerator.scaler = scaler_of(plan)


def train(plan, folder, **arguments):
    trace = Trace()
    model, data = Tiny(plan, trace), Numbers(plan.size)
    script = Script(plan, trace, model, data)
    ours = SpikewatchCallback() if plan.attached else None
    callbacks = [Before(script, ours), *([ours] if ours else []), After(script, ours)]
    try:
        trainer = Trainer(
            model,
            TrainingArguments(
                str(folder),
                per_device_train_batch_size=BATCH,
                gradient_accumulation_steps=plan.accumulate,
                num_train_epochs=plan.epochs,
                learning_rate=0.05,
                optim="sgd",
                max_grad_norm=0.0,
                dataloader_num_workers=plan.workers,
                use_cpu=True,
                seed=1,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                remove_unused_columns=False,
                dataloader_pin_memory=False,
                ddp_backend="gloo" if plan.ranks > 1 else None,
                **arguments,
            ),
            train_dataset=data,
            callbacks=callbacks,
        )
        if plan.fp16:
            half_precision(trainer, plan)
        trainer.train()
        assert "training_step" not in vars(trainer)
    finally:
        for state in (AcceleratorState, PartialState):
            state._reset_state()
        GradientState._reset_state()
    return script.finish()

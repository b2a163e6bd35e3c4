"""The tiny training under Lightning."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from tiny import BATCH, Numbers, Script, Tiny, Trace, scaler_of
from torch.utils.data import DataLoader

from spikewatch.adapters.lightning import SpikewatchCallback


class Module(pl.LightningModule):
    def __init__(self, plan, trace, script):
        super().__init__()
        self.tiny = Tiny(plan, trace)
        self.script = script

    def training_step(self, batch, number):
        loss = self.tiny(**batch)["loss"]
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.05)
        self.script.own_rate(optimizer)
        rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step / 1000)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


class Before(pl.Callback):
    """Comes before ours in every event."""

    def __init__(self, script, ours):
        self.script, self.ours, self.seen = script, ours, 0

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step != self.seen:
            self.seen = trainer.global_step
            self.stepped(self.ours.run if self.ours else None, trainer)

    def stepped(self, run, trainer):
        self.script.before_step_ends(run)


class After(Before):
    def stepped(self, run, trainer):
        self.script.after_step(run, getattr(trainer.precision_plugin, "scaler", None))


def train(plan, folder, **arguments):
    trace = Trace()
    data = Numbers(plan.size)
    script = Script(plan, trace, None, data)
    module = Module(plan, trace, script)
    script.model = module.tiny
    ours = SpikewatchCallback() if plan.attached else None
    torch.manual_seed(7)  # what the loader shuffles by
    trainer = pl.Trainer(
        max_epochs=plan.epochs,
        accumulate_grad_batches=plan.accumulate,
        accelerator="cpu",
        devices=plan.ranks,
        strategy="ddp" if plan.ranks > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
        callbacks=[Before(script, ours), *([ours] if ours else []), After(script, ours)],
        plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler_of(plan))] if plan.fp16 else None,
        **arguments,
    )
    trainer.fit(module, DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=plan.workers))
    assert not {"training_step", "backward", "process_dataloader"} & set(vars(trainer.strategy))
    return script.finish()

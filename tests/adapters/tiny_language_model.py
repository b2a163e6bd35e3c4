"""A real, tiny language model of transformers under the Trainer: its loss is a mean over labels, not over samples."""

from types import SimpleNamespace

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from tiny import neutralise
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from spikewatch.adapters.accelerate import attach
from spikewatch.adapters.huggingface import SpikewatchCallback

WORDS, LENGTH = 32, 12


class Sentences(torch.utils.data.Dataset):
    """Every sentence has another number of words that count."""

    def __len__(self):
        return 48

    def __getitem__(self, i):
        words = (torch.arange(LENGTH) * 5 + i) % WORDS
        labels = words.clone()
        labels[: i % (LENGTH - 2)] = -100
        return {"input_ids": words, "labels": labels}


class Orders(TrainerCallback):
    def __init__(self, ours, orders, seen, neutral):
        self.ours, self.orders, self.seen, self.neutral = ours, orders, seen, neutral

    def give(self, step):
        if self.neutral and step == 1:
            neutralise(self.ours.run)
        if step in self.orders:
            ledger = self.ours.run._parts.ledger
            for report in ledger.reports():
                ledger.keep(report["id"])  # else the next one would have to wait
            ledger.set(f"order-{step}", self.orders[step], {}, 600_000)

    def on_step_end(self, args, state, control, model=None, **_):
        self.give(state.global_step)
        self.seen.ran.append(self.seen.blocks)
        self.seen.blocks = 0
        if self.ours.run is not None:
            self.seen.reports = self.ours.run._parts.ledger.reports()
            self.seen.knobs = self.ours.run._parts.knobs.values()


def language_model():
    """A model without chance in it, and where what happens to it is noted."""
    torch.manual_seed(3)
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config)
    seen = SimpleNamespace(blocks=0, ran=[], sizes=[], reports=[], knobs={})
    # inside the layer, whose own hooks stay outside of what is computed again; and before it runs, for computing it
    # again stops as soon as all is there
    model.transformer.h[0].attn.register_forward_pre_hook(lambda *_: setattr(seen, "blocks", seen.blocks + 1))
    return model, seen


def train(folder, orders=(), attached=True, accumulate=2, neutral=False):
    """Returns weights, how often a block ran in each step, the batch sizes of the forwards, and the reports."""
    model, seen = language_model()
    model.register_forward_pre_hook(lambda *a: seen.sizes.append(len(a[2]["input_ids"])), with_kwargs=True)
    ours = SpikewatchCallback()
    try:
        trainer = Trainer(
            model,
            TrainingArguments(
                str(folder),
                per_device_train_batch_size=4,
                gradient_accumulation_steps=accumulate,
                num_train_epochs=1,
                learning_rate=0.05,
                optim="sgd",
                use_cpu=True,
                seed=1,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                dataloader_pin_memory=False,
            ),
            train_dataset=Sentences(),
            callbacks=[Orders(ours, dict(orders), seen, neutral), *([ours] if attached else [])],
        )
        trainer.train()
    finally:
        forget_state()
    seen.weights = [p.detach().clone() for p in model.parameters()]
    return seen


def train_accelerated(orders=(), attached=True, neutral=False):
    """The same in a loop of its own with Accelerate; returns weights and how often a block ran in each step."""
    model, seen = language_model()
    try:
        accelerator = Accelerator(cpu=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Sentences(), 8))
        run = attach(accelerator, model) if attached else None
        for step, batch in enumerate(loader, 1):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if run is not None:
                Orders(run, dict(orders), seen, neutral).give(step)
                run.step(loss)
            seen.ran.append(seen.blocks)
            seen.blocks = 0
        if run is not None:
            run.close()
    finally:
        forget_state()
    seen.weights = [p.detach().clone() for p in model.parameters()]
    return seen


def forget_state():
    """Accelerate keeps the state of a process in its classes."""
    for state in (AcceleratorState, PartialState):
        state._reset_state()
    GradientState._reset_state()

"""TRL's SFTTrainer with the callback, on a real tiny model and words of its own; run as a script."""

import json
import os
import sys
import tempfile
import warnings

import torch
from datasets import Dataset
from tiny import neutralise
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer, __version__

from spikewatch.adapters.huggingface import SpikewatchCallback

WORDS = [f"w{i}" for i in range(60)]
SENTENCES = [{"text": " ".join(WORDS[(i + j * 7) % 60] for j in range(3 + i % 8))} for i in range(48)]


class Orders(TrainerCallback):
    def __init__(self, ours, orders, neutral):
        self.ours, self.orders, self.neutral, self.reports = ours, orders, neutral, []

    def on_step_end(self, args, state, control, **_):
        if self.ours.run is None:
            return
        if self.neutral and state.global_step == 1:
            neutralise(self.ours.run)
        if state.global_step in self.orders:
            self.ours.run._parts.ledger.set("order", self.orders[state.global_step], {}, 600_000)


def tokenizer():
    vocabulary = {word: i for i, word in enumerate([*WORDS, "<pad>", "<eos>", "<unk>"])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def train(folder, orders=(), attached=True, neutral=False):
    torch.manual_seed(1)
    sizes = {"vocab_size": 64, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(**sizes, **still, use_cache=False, bos_token_id=None, eos_token_id=None)
    model, forwards = GPT2LMHeadModel(config), []
    model.register_forward_pre_hook(lambda _m, _a, k: forwards.append(len(k["input_ids"])), with_kwargs=True)
    ours = SpikewatchCallback()
    arguments = SFTConfig(
        folder,
        per_device_train_batch_size=4,
        num_train_epochs=1,
        use_cpu=True,
        bf16=False,
        seed=1,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        gradient_checkpointing=False,
        optim="sgd",
        learning_rate=0.1,
        max_length=32,
    )
    callbacks = [Orders(ours, dict(orders), neutral), ours] if attached else []
    data = Dataset.from_list(SENTENCES)
    SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer(), callbacks=callbacks).train()
    return [p.detach().clone() for p in model.parameters()], forwards


def apart(one, other):
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def main(folder):
    warnings.simplefilter("ignore")
    plain, _ = train(folder, attached=False)
    found = {"version": __version__, "observed, bit-identical": apart(train(folder)[0], plain) == 0.0}
    order = {3: {"micro_batch_size": 2}}
    weights, forwards = train(folder, order)
    found["micro_batch_size"] = {
        "changes_the_run": forwards == [4] * 3 + [2] * 18,
        "noticed_when_taken_out": set(train(folder, order, neutral=True)[1]) == {4},
        "largest_difference_of_a_weight": apart(weights, plain),
    }
    order = {3: {"lr_factor": 0.5}}
    found["lr_factor"] = {
        "changes_the_run": apart(train(folder, order)[0], plain) > 1e-3,
        "noticed_when_taken_out": apart(train(folder, order, neutral=True)[0], plain) == 0.0,
    }
    sys.stdout.write("FOUND " + json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(tempfile.mkdtemp())

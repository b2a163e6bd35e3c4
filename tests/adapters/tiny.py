"""A tiny training, the same under every framework, that notes what really happened in it."""

import ctypes
import multiprocessing
import os
import time
import types
from dataclasses import dataclass, field

import torch

SIZE, BATCH = 48, 4
WIDTH = 4


@dataclass
class Plan:
    """What to train. `orders`: step → values, given as the sidecar would give them, carried out as that step ends."""

    orders: dict = field(default_factory=dict)
    attached: bool = True
    epochs: int = 2
    workers: int = 0
    accumulate: int = 1
    size: int = SIZE
    fp16: bool = False
    scale: float = 1024.0  # of the scaler at first
    interval: int = 2000
    hot: bool = False  # activations that fp16 cannot hold and bf16 can
    lr_from: tuple = ()  # (step, factor): the script itself multiplies the rate, in its own way
    ahead: tuple = ()  # (step, batches): waits there until as many batches were loaded ahead
    patience: float = 20.0  # seconds for that
    ranks: int = 1  # of the launcher's
    pause: float = 0.0  # seconds a step, so that ranks have the time to agree
    neutral: bool = False  # changes are reported as made, and not made


@dataclass
class Trace:
    """What happened. Lists are in order: per forward pass, per backward pass, per optimizer step."""

    forwards: list = field(default_factory=list)  # sample numbers
    dtypes: list = field(default_factory=list)
    gradients: list = field(default_factory=list)  # size of the raw gradient of the first weight
    scales: list = field(default_factory=list)
    storm: list = field(default_factory=list)  # overflows in a row, as measured
    weights: list = field(default_factory=list)
    per_step: list = field(default_factory=list)  # of the first weight, after each step
    fields: dict = field(default_factory=dict)
    values: dict = field(default_factory=dict)  # of the knobs, at the end
    reasons: dict = field(default_factory=dict)  # of those that cannot be changed
    about: dict = field(default_factory=dict)
    reports: list = field(default_factory=list)
    workers: list = field(default_factory=list)  # that loaded each sample, by number, at its last loading
    ahead: bool = False
    body: int = 0  # forwards of the inner layer
    run: object = None

    def order(self):
        return [number for numbers in self.forwards for number in numbers]


class Numbers(torch.utils.data.Dataset):
    """Sample i is a row that depends on i. Notes in shared memory how many workers loaded it."""

    def __init__(self, size):
        context = multiprocessing.get_context("fork")
        self.size = size
        self.workers = context.Array(ctypes.c_int, size)
        self.count = context.Value(ctypes.c_int, 0)

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        info = torch.utils.data.get_worker_info()
        self.workers[i] = info.num_workers if info else 0
        with self.count.get_lock():
            self.count.value += 1
        return {"x": torch.full((WIDTH,), (i + 1) / self.size), "number": torch.tensor(i)}


class Tiny(torch.nn.Module):
    def __init__(self, plan, trace):
        super().__init__()
        torch.manual_seed(5)
        self.body, self.head = torch.nn.Linear(WIDTH, 8), torch.nn.Linear(8, 1)
        self.hot, self.trace = plan.hot, trace
        self.body.weight.register_hook(lambda grad: trace.gradients.append(float(grad.abs().sum())))
        self.body.register_forward_hook(self._body_ran)

    def _body_ran(self, *_):
        self.trace.body += 1

    def forward(self, x, number):
        self.trace.forwards.append(number.tolist())
        hidden = self.body(x.to(self.body.weight.dtype))
        self.trace.dtypes.append(str(hidden.dtype).removeprefix("torch."))
        if self.hot:
            hidden = (hidden * 1e5) / 1e5
        return {"loss": self.head(torch.relu(hidden)).float().pow(2).mean()}


class Script:
    """What the training script itself does at each step: gives orders, waits, notes."""

    def __init__(self, plan, trace, model, dataset):
        self.plan, self.trace, self.model, self.dataset = plan, trace, model, dataset
        self.step = 0
        self.handed = 0

    def before_step_ends(self, run):
        """The optimizer has stepped; our `step` for it comes next."""
        self.step += 1
        plan, trace = self.plan, self.trace
        if run is not None and run._parts is not None:
            trace.run = run
            if self.step == 1 and plan.neutral:
                neutralise(run)
            if self.step in plan.orders and not int(os.environ.get("RANK", "0")):
                run._parts.ledger.set(f"order-{self.step}", plan.orders[self.step], {}, 600_000)
        time.sleep(plan.pause)
        if plan.ahead and self.step == plan.ahead[0]:
            self._wait(plan.ahead[1])

    def after_step(self, run, scaler):
        trace = self.trace
        trace.per_step.append(self.model.body.weight.detach().clone())
        trace.scales.append(scaler.get_scale() if scaler is not None else None)
        if run is not None and run._parts is not None:
            self.note(run)

    def note(self, run):
        from spikewatch import layout

        parts, trace = run._parts, self.trace
        trace.storm.append(parts.meter.consecutive_overflows)
        trace.fields = dict(zip(layout.FIELDS, parts.meter.record(parts.meter.now()), strict=True))
        trace.values, trace.reasons = parts.knobs.values(), parts.knobs.unavailable()
        trace.about = parts.agent.telemetry.about
        trace.reports = parts.ledger.reports()

    def _wait(self, batches):
        """Until as many batches were loaded, of all that were handed over and `batches` more."""
        want = (self.step + batches) * BATCH
        until = time.monotonic() + self.plan.patience
        while self.dataset.count.value < want and time.monotonic() < until:
            time.sleep(0.005)
        self.trace.ahead = self.dataset.count.value >= want

    def own_rate(self, optimizer):
        """The script's own way to multiply the learning rate from a step on, under whatever scheduler there is."""
        if not self.plan.lr_from:
            return
        first, factor = self.plan.lr_from
        plain = optimizer.step

        def step(_, *arguments, **named):
            rates = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] *= factor if self.step >= first else 1.0
            try:
                return plain(*arguments, **named)
            finally:
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate

        optimizer.step = types.MethodType(step, optimizer)  # schedulers want a method

    def finish(self):
        self.trace.weights = [whole(p.detach()).clone() for p in self.model.parameters()]
        self.trace.workers = list(self.dataset.workers)
        return self.trace


def whole(weight):
    """Of a sharded weight all of it."""
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def neutralise(run):
    """Every source says that it has changed, and has not: what a check must notice."""
    for source in run._parts.knobs._sources:
        told = {}

        def values(source=source, real=source.values, told=told):
            return {**real(), **{name: told[name] for name in told if name in real()}}

        source.change = lambda wanted, after, told=told: told.update(wanted)
        source.values = values


def scaler_of(plan):
    return torch.amp.GradScaler("cpu", init_scale=plan.scale, growth_interval=plan.interval) if plan.fp16 else None

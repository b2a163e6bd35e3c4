"""One rank of a real job under gloo: trains, changes what all ranks share, and compares the ranks after every step.

Run as `python agreement_job.py SETTINGS` (or `serve`), JSON of: out (folder for what each rank saw), steps, changes
(rank 0 orders that many, one after the other), seed, and optionally trouble: {rank, phase, act, seconds, at}: in that
phase of the protocol, the `at`-th time, the rank is stopped (its parent continues it), killed or slow.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
import zlib
from pathlib import Path

import torch
import torch.distributed as dist

import spikewatch
from spikewatch import attaching
from spikewatch.agreement_board import Board
from spikewatch.agreement_leader import Pace
from spikewatch.agreement_member import Member
from spikewatch.identity import identify
from spikewatch.promises import Promises
from spikewatch.refusal import Refused

PHASES = {
    "proposing": (Board, "propose"),  # of rank 0
    "hearing": (Member, "_hear"),
    "answering": (Board, "answer"),
    "deciding": (Board, "decide"),  # of rank 0, and of whoever aborts
    "learning": (Promises, "decided"),
    "carrying out": (Promises, "meet"),  # on the training thread
    "reporting": (Board, "report"),
}


class Trouble:
    """Happens to this rank around one method of the protocol, before it or after."""

    def __init__(self, settings, out):
        self.act, self.seconds, self.at, self.out = settings["act"], settings.get("seconds", 0), settings["at"], out
        self.met = 0
        phase, _, where = settings["phase"].partition(" after")
        owner, name = PHASES[phase.strip()]
        method = getattr(owner, name)

        def troubled(*args, **more):
            if where:
                result = method(*args, **more)
                self.happen()
                return result
            self.happen()
            return method(*args, **more)

        setattr(owner, name, troubled)

    def happen(self):
        self.met += 1
        if self.met != self.at or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
            return
        (self.out / "trouble").touch()
        if self.act == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.act == "slow":
            time.sleep(self.seconds)


class Training:
    """Mixed precision under DDP, a schedule, random data: everything a shared knob touches."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda epoch: 1 / (1 + epoch / 100))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=50)
        self.run = spikewatch.attach(model=self.model, optimizer=self.optimizer, scaler=self.scaler, job="agreement")
        self.data = torch.Generator().manual_seed(dist.get_rank())

    def step(self):
        """One step; returns the seconds that `run.step` took."""
        self.optimizer.zero_grad()
        with self.run.autocast("cpu", torch.float16):
            loss = self.model(torch.randn(4, 8, generator=self.data)).pow(2).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        began = time.monotonic()
        self.run.step(loss)
        return time.monotonic() - began

    def sums(self):
        """A checksum of the weights and of the momentum, and one of everything shared."""
        tensors = [*self.model.parameters(), *(s["momentum_buffer"] for s in self.optimizer.state.values())]
        weights = 0
        for tensor in tensors:
            weights = zlib.crc32(tensor.detach().numpy().tobytes(), weights)
        return weights, zlib.crc32(json.dumps(self.values(), sort_keys=True).encode())

    def values(self):
        values = self.run._parts.knobs.values()
        return {name: values[name] for name in ("lr_factor", "loss_scale", "loss_scale_growth_interval", "precision")}


class Orders:
    """Rank 0's sidecar: one random change after the other, each kept, taken back or left to its lease."""

    def __init__(self, ledger, count, seed):
        self.ledger, self.left, self.random = ledger, count, random.Random(seed)
        self.number, self.open, self.ends = 0, None, []
        self.asked = self.end = ""

    def look(self, values):
        if self.open is None:
            if self.left:
                self.order(values)
            return
        report = self.ledger.report(self.open)
        if report["state"] == "applied" and not self.asked:
            self.asked = self.end
            if self.end != "lease":
                getattr(self.ledger, self.asked)(self.open)
        elif report["state"] not in ("pending", "applied"):
            self.ends.append((report["state"], report["reason"], report["by"], report["detail"]))
            self.open = None

    def order(self, values):
        knob = self.random.choice(["lr_factor", "loss_scale", "loss_scale_growth_interval", "precision"])
        bf16 = values["precision"] == "bf16"
        if knob == "precision" or (bf16 and knob != "lr_factor"):
            change = {"precision": "fp16" if bf16 else "bf16"}
        else:
            change = {
                "lr_factor": {"lr_factor": round(self.random.uniform(0.1, 2.0), 2)},
                "loss_scale": {"loss_scale": 2.0 ** self.random.randint(0, 12)},
                "loss_scale_growth_interval": {"loss_scale_growth_interval": self.random.randint(2, 200)},
            }[knob]
        self.number += 1
        self.asked, self.end = "", self.random.choice(["keep", "keep", "revert", "lease"])
        try:
            self.ledger.set(f"c{self.number}", change, {}, 400 if self.end == "lease" else 30_000)
        except Refused as refusal:
            if refusal.reason not in ("unsupported", "busy"):  # not together yet; followers forget a moment later
                raise
            return
        self.left -= 1
        self.open = f"c{self.number}"


def train(training, orders, settings, seen):
    """Until all orders have come to an end, and some steps more; `seen` is filled on the way."""
    rank, different, after = dist.get_rank(), set(), settings["steps"]
    while after:
        seen["steps"] += 1
        seen["longest"] = max(seen["longest"], training.step())
        sums = training.sums()
        different.add(sums[1])
        seen["values"] = len(different)
        time.sleep(0.002)
        if rank == 0:
            orders.look(training.values())
        goes_on = rank == 0 and bool(orders.left or orders.open) and seen["steps"] < settings["most"]
        mine = torch.tensor([*sums, goes_on])
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        seen["unequal"] += any(bool((other[:2] != mine[:2]).any()) for other in everyone)
        after -= not everyone[0][2]


def main():
    settings = json.loads(sys.argv[1])
    out, rank = Path(settings["out"]), int(os.environ["RANK"])
    attaching.PACE = Pace(**{"poll": 0.05, "busy": 0.01, "allowance": 0.15, "patience": 3.0, **settings["pace"]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trouble = settings.get("trouble")
    met = Trouble(trouble, out) if trouble and trouble["rank"] == rank else None
    training = Training()
    orders = Orders(training.run._parts.ledger, settings["changes"], settings["seed"])
    seen = {"steps": 0, "unequal": 0, "values": 0, "longest": 0.0, "ends": orders.ends}
    try:
        train(training, orders, settings, seen)
    finally:
        seen["errors"] = training.run._parts.meter.errors
        seen["trouble"] = met.met if met else 0
        seen["restarts"] = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        seen["epoch"] = identify(None).epoch
        (out / f"rank{rank}.json").write_text(json.dumps(seen))
    training.run.close()
    dist.barrier()
    dist.destroy_process_group()


def serve():
    """Forks the ranks of one job after the other, so that torch is imported once: a line in, lines out."""
    import torch._dynamo  # noqa: F401  the first optimizer of a process does, for two seconds of a core

    for line in sys.stdin:
        told = json.loads(line)
        ranks = {}
        for rank in range(told["world"]):
            pid = os.fork()
            if pid == 0:
                os.environ.update(told["env"], RANK=str(rank), LOCAL_RANK=str(rank))
                sys.argv[1] = json.dumps(told["settings"])
                os._exit(_code())
            ranks[pid] = rank
        _say({"pids": list(ranks)})
        while ranks:
            pid, status = os.wait()
            _say({"rank": ranks.pop(pid), "code": os.waitstatus_to_exitcode(status)})


def _say(what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _code():
    try:
        main()
    except RuntimeError:  # gloo's, when a peer is gone
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve() if sys.argv[1] == "serve" else main()

"""One rank of the tiny training under a framework, for `test_proof_ranks`: prints what every rank must agree on."""

import importlib
import json
import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from tiny import Plan


def same_everywhere(weights):
    """Whether all ranks hold these very bits."""
    flat = torch.cat([w.flatten() for w in weights])
    gathered = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, flat)
    return all(torch.equal(flat, other) for other in gathered)


def main(name, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    train = importlib.import_module(f"tiny_{name}").train
    more = {"ranks": 2, "size": 192, "epochs": 3, "pause": 0.03}
    plain = train(Plan(attached=False, **more), folder)
    order = {"micro_batch_size": 2} if name in ("huggingface", "lightning") else {"lr_factor": 0.5}
    changed = train(Plan(orders={4: order}, **more), folder)
    (report,) = changed.reports
    found = {
        "rank": dist.get_rank(),
        "state": report["state"],
        "step": report["step"],
        "values": {knob: changed.values[knob] for knob in order},
        "parallelism": changed.about["parallelism"],
        "weights_equal_on_all_ranks": same_everywhere(changed.weights) and same_everywhere(plain.weights),
        "samples_as_without_us": changed.order() == plain.order(),
        "forward_sizes": sorted({len(numbers) for numbers in changed.forwards}),
        "steps": len(changed.per_step),
        "weights_close_to_without_us": all(
            torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(changed.weights, plain.weights, strict=True)
        ),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # frameworks end their process groups in ways of their own


if __name__ == "__main__":
    main(sys.argv[1], tempfile.mkdtemp())

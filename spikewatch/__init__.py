"""The client that runs in the trainer: `run = spikewatch.attach(model=…, optimizer=…, loader=…)`, `run.step(loss)`.

Standard library only; torch is looked at where the trainer has loaded it, never imported first.
"""

from spikewatch.attaching import attach
from spikewatch.run import Run
from spikewatch.serving import Worker, worker

__all__ = ["Run", "Worker", "attach", "worker"]

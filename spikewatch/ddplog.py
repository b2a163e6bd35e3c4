"""What DistributedDataParallel itself measures of a step: forward, backward, communication, overlap, buckets.

DDP times every 100th step after the first ten. It is asked for every 20th, which on CUDA means two event waits at
the begin of a forward pass; the numbers are read between steps, where no backward pass holds the reducer's lock.
"""

from __future__ import annotations

from typing import Any

from spikewatch.overlap import shared

SAMPLE_RATE, TORCH_RATE = 20, 100  # one step in so many
LOOK_EVERY = 5_000_000_000  # nanoseconds between two looks: one takes some 60 µs of the training thread
ALIGNMENT = 512  # bytes
ADDRESSES_EVERY = 60.0  # seconds; buckets are laid out once, after the first step


def of_model(model: Any, torch: Any) -> Any:
    """The DistributedDataParallel that `model` is or is compiled from; None where there is none."""
    inner = getattr(model, "_orig_mod", model)
    parallel = torch.nn.parallel.DistributedDataParallel
    return inner if isinstance(inner, parallel) and hasattr(inner, "_get_ddp_logging_data") else None


class DdpLog:
    """A chore of the training thread (`look`) and a telemetry source (the call)."""

    def __init__(self, model: Any) -> None:
        """`model` is a DistributedDataParallel."""
        self._model = model
        self.due = 0
        self._iteration = 0
        self._values: dict[str, float] = {}
        self._synced = 0.0
        self._buffers: tuple[int, int] | None = None  # (aligned, not aligned)
        self._handed = [0, 0]
        self._addresses_at = 0.0
        self._set_rate(SAMPLE_RATE)

    def _set_rate(self, rate: int) -> None:
        if hasattr(self._model, "_set_ddp_runtime_logging_sample_rate"):
            self._model._set_ddp_runtime_logging_sample_rate(rate)

    def look(self, now: int) -> None:
        """`now` in nanoseconds of the meter's clock. On the training thread, between two steps."""
        self.due = now + LOOK_EVERY
        data = self._model._get_ddp_logging_data()
        iteration = data.get("iteration", 0)
        if iteration <= self._iteration:
            return
        passed, self._iteration = iteration - self._iteration, iteration
        forward, backward, communication, both = (
            max(0, data.get(f"{name}_time", 0)) * 1e-9
            for name in ("forward_compute", "backward_compute", "backward_comm", "backward_compute_comm_overlap")
        )
        self._synced += communication * passed
        self._values = {
            "ddp_forward_seconds": forward,
            "ddp_backward_seconds": backward,
            "ddp_communication_seconds": communication,
            "ddp_overlap_ratio": shared(both, backward, communication),
            "sync_seconds_total": self._synced,
        }
        if self._buffers is not None:
            self._handed = [total + n * passed for total, n in zip(self._handed, self._buffers, strict=True)]

    def __call__(self, now: float) -> dict[str, float]:
        """On the client's thread."""
        if now >= self._addresses_at:
            found = bucket_addresses(self._model)
            if found:
                self._addresses_at = now + ADDRESSES_EVERY
                aligned = sum(address % ALIGNMENT == 0 for address in found)
                self._buffers = (aligned, len(found) - aligned)
        values = dict(self._values)
        if values and self._buffers is not None:
            values["buffers_aligned_total"], values["buffers_misaligned_total"] = self._handed
        return values

    def close(self) -> None:
        """Gives DDP its own rate back."""
        self._set_rate(TORCH_RATE)


def bucket_addresses(model: Any) -> set[int]:
    """Where the buckets begin that DDP hands to the collective; empty where gradients are no views of them.

    Inside a bucket gradients lie packed by size, aligned to nothing: only its begin matters.
    """
    if not getattr(model, "gradient_as_bucket_view", False):
        return set()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    if not gradients or any(gradient is None for gradient in gradients):
        return set()  # between zero_grad and the end of the backward pass
    return {gradient.untyped_storage().data_ptr() for gradient in gradients}

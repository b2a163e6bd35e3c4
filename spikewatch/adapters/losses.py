"""The loss of an optimizer step over the batches it accumulates."""

from __future__ import annotations

from typing import Any


class StepLoss:
    """Adds up without ever waiting for a device: tensors stay where they are."""

    __slots__ = ("_count", "_sum")

    def __init__(self) -> None:
        self._sum: Any = None
        self._count = 0

    def add(self, loss: Any) -> None:
        """One batch's loss, a number or a tensor of one element; None is left out."""
        if loss is None:
            return
        loss = loss.detach() if hasattr(loss, "detach") else loss
        self._sum = loss if self._sum is None else self._sum + loss
        self._count += 1

    def total(self) -> Any:
        """The sum since the last call, for losses that are divided by the number of batches already; None of none."""
        total, self._sum, self._count = self._sum, None, 0
        return total

    def mean(self) -> Any:
        """The mean since the last call; None of none."""
        count = self._count
        total = self.total()
        return total if count <= 1 else total / count

"""Which loaders can be changed while they run; for the others, why not."""

from __future__ import annotations

import sys
from typing import Any


def is_dataloader(loader: Any) -> bool:
    """Whether it is torch's DataLoader or a subclass. Never imports torch."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(loader, data.DataLoader)


def why_not(loader: Any) -> str:
    """Empty for a loader that the tuner can take; else the reason, for people."""
    if not is_dataloader(loader):
        return "not a torch DataLoader"
    data = sys.modules["torch.utils.data"]
    inner = sys.modules["torch.utils.data.dataloader"]
    kind = type(loader)
    if kind.__iter__ is not data.DataLoader.__iter__ or kind._get_iterator is not data.DataLoader._get_iterator:
        return f"{kind.__name__} opens its iterators itself"
    if "_get_iterator" in vars(loader):
        return "another tool has replaced the loader's _get_iterator"
    if not all(hasattr(inner, name) for name in ("_MultiProcessingDataLoaderIter", "_SingleProcessDataLoaderIter")):
        return "this torch opens its iterators in another way"
    return ""


def why_workers_stay(loader: Any) -> str:
    """Empty for a loader whose index batches can be handed from worker to worker; else the reason.

    The number of batches that workers work ahead can be changed all the same.
    """
    data = sys.modules["torch.utils.data"]
    inner = sys.modules["torch.utils.data.dataloader"]
    if isinstance(loader.dataset, (getattr(data, "MapDataPipe", ()), getattr(data, "IterDataPipe", ()))):
        return "a data pipe shards itself by worker"
    if loader._dataset_kind != inner._DatasetKind.Map or isinstance(loader.dataset, data.IterableDataset):
        return "an iterable-style dataset keeps its position in the workers"
    return ""


def why_not_recut(loader: Any) -> str:
    """Empty for a loader whose batches can be cut anew while it runs; else the reason."""
    stays = why_workers_stay(loader)
    if stays:
        return stays
    sampler = loader.batch_sampler
    if sampler is None:
        return "with batch_size=None the dataset makes the batches"
    if own_batch_size(loader) is None:
        return f"{type(sampler).__name__} has no batch_size, so nobody knows how many samples a batch should have"
    if not loader.in_order:
        return "with in_order=False nobody knows which samples were handed over"
    return ""


def why_not_reread(loader: Any, fresh: bool) -> str:
    """Empty for a loader whose workers, started anew, give what they gave before; else the reason.

    `fresh`: its workers were started for the pass under way.
    """
    data = sys.modules["torch.utils.data"]
    if isinstance(loader.dataset, (getattr(data, "MapDataPipe", ()), getattr(data, "IterDataPipe", ()))):
        return "a data pipe shards itself by worker"
    if not fresh:
        return "an iterable-style dataset in workers that live on may go on where an earlier pass has brought it"
    return ""


def own_batch_size(loader: Any) -> int | None:
    """Samples in a full batch of the loader as it was made; None where it does not say."""
    sampler = getattr(loader, "batch_sampler", None)
    size = getattr(sampler, "own_size", None) or getattr(sampler, "batch_size", None)
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None


def why_not_pinned() -> str:
    """Empty where torch can pin batches. Waits for no device."""
    if not sys.modules["torch"].accelerator.is_available():
        return "no accelerator is there to copy pinned memory to"
    return ""

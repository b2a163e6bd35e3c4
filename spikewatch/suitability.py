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
    if loader._dataset_kind != inner._DatasetKind.Map or isinstance(loader.dataset, data.IterableDataset):
        return "an iterable-style dataset keeps its position in the workers"
    if isinstance(loader.dataset, getattr(data, "MapDataPipe", ())):
        return "a data pipe shards itself by worker"
    if loader.batch_sampler is None:
        return "without a batch sampler (batch_size=None) there is no stream of batches to hand over"
    if loader.multiprocessing_context is not None:
        return "a multiprocessing context was given"
    if not all(hasattr(inner, name) for name in ("_MultiProcessingDataLoaderIter", "_SingleProcessDataLoaderIter")):
        return "this torch opens its iterators in another way"
    return ""

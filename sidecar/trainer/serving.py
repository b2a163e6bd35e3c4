"""Declared serving workers that are connected: their names, their rings, their numbers as samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.model import Sample, labels_of
from sidecar.trainer.peer import Peer
from sidecar.trainer.ringreader import RingReader
from sidecar.trainer.workercatalogue import FIELDS


@dataclass(frozen=True, slots=True)
class ServingWorker:
    """One process that declared itself a worker."""

    name: str
    slot: int
    run_id: str
    ring: RingReader


class Workers:
    """All that are connected, by connection."""

    def __init__(self) -> None:
        self._workers: dict[Peer, ServingWorker] = {}

    def __contains__(self, peer: object) -> bool:
        return peer in self._workers

    def __len__(self) -> int:
        return len(self._workers)

    def add(self, peer: Peer, message: Mapping[str, Any], fd: int) -> None:
        """`message` has passed the protocol's checks; `fd` is taken over. Raises ChannelError for a ring that is none.

        A worker that comes back has its slot again, and its older connection ends.
        """
        ring = RingReader(fd)
        name, run_id, slot = message["name"], message["run_id"], None
        for other, known in list(self._workers.items()):
            if known.run_id == run_id:
                slot = known.slot
                other.close("replaced")
        taken = {known.slot for known in self._workers.values() if known.name == name}
        if slot is None or slot in taken:
            slot = next(n for n in range(len(taken) + 1) if n not in taken)
        self._workers[peer] = ServingWorker(name, slot, run_id, ring)

    def gone(self, peer: Peer) -> None:
        """The connection has ended; does nothing for one of somebody else."""
        worker = self._workers.pop(peer, None)
        if worker is not None:
            worker.ring.close()

    def samples(self) -> Iterator[Sample]:
        """Everything known of all workers now."""
        for worker in self._workers.values():
            labels = labels_of({"worker": worker.name, "slot": str(worker.slot)})
            values = worker.ring.read()
            for field, info in FIELDS:
                if field in values:
                    yield Sample(info.name, labels, values[field])

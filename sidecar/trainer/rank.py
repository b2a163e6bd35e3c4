"""One attached rank: who it is, what it can change, and its newest numbers as samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sidecar.model import Knob, KnobValue, Sample, Scope, labels_of
from sidecar.trainer import catalogue
from sidecar.trainer.peer import Peer
from sidecar.trainer.ringreader import RingReader
from spikewatch import layout


@dataclass(slots=True)
class Rank:
    """A trainer process that said hello. `attached` orders ranks by when they did."""

    peer: Peer
    ring: RingReader
    attached: int
    job: str
    epoch: str
    run_id: str
    rank: int
    local_rank: int
    world: int
    framework: str
    backend: str
    knobs: dict[str, Knob] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_hello(cls, hello: Mapping[str, Any], peer: Peer, ring: RingReader, attached: int) -> Rank:
        """`hello` has passed the protocol's checks."""
        rank = cls(
            peer,
            ring,
            attached,
            *(
                hello[name]
                for name in ("job", "epoch", "run_id", "rank", "local_rank", "world", "framework", "backend")
            ),
        )
        rank.learn(hello)
        return rank

    def learn(self, state: Mapping[str, Any]) -> None:
        """Takes over the knobs of a hello or state message, and what it says of the run."""
        self.knobs = {
            k["name"]: Knob(k["name"], k["value"], k["minimum"], k["maximum"], k["unit"], Scope(k["scope"]))
            for k in state["knobs"]
        }
        self.unavailable = dict(state["unavailable"])
        self.about = dict(state.get("about", {}))

    def set_values(self, values: Mapping[str, KnobValue]) -> None:
        """Takes over the values a change message carries."""
        for name, value in values.items():
            knob = self.knobs.get(name)
            if knob is not None:
                self.knobs[name] = Knob(name, value, knob.minimum, knob.maximum, knob.unit, knob.scope)

    def shares(self, names: Iterable[str]) -> bool:
        """Whether any of these knobs must be the same on every rank."""
        return any(name in self.knobs and self.knobs[name].scope is Scope.ALL_RANK for name in names)

    def samples(self) -> Iterator[Sample]:
        """Everything known of this rank now."""
        number = str(self.rank)
        labels = labels_of({"rank": number})
        values = self.ring.read()
        for name, info in catalogue.FIELDS:
            if name in values:
                yield Sample(info.name, labels, values[name])
        phase = values.get("phase", math.nan)
        if phase in range(len(layout.PHASES)):
            for code, text in enumerate(layout.PHASES):
                yield Sample(
                    catalogue.PHASE.name, labels_of({"rank": number, "phase": text}), 1.0 if code == phase else 0.0
                )
        for field_name, aligned in catalogue.BUFFER_FIELDS:
            if field_name in values:
                yield Sample(
                    catalogue.BUFFERS.name, labels_of({"rank": number, "aligned": aligned}), values[field_name]
                )
        yield Sample(catalogue.RECORDS_LOST.name, labels, float(self.ring.lost))
        yield from self._in_words(number)

    def _in_words(self, number: str) -> Iterator[Sample]:
        about = self.about
        framework = about.get("framework") or self.framework  # an adapter knows it after the hello
        who = {"rank": number, "run_id": self.run_id, "framework": framework, "backend": self.backend}
        who |= {name: about.get(name) or "unknown" for name in catalogue.ENGINE}
        yield Sample(catalogue.RUN_INFO.name, labels_of(who), 1.0)
        if about.get("gpu"):
            yield Sample(catalogue.DEVICE_INFO.name, labels_of({"rank": number, "gpu": about["gpu"]}), 1.0)
        if about.get("origin_operation"):
            origin = {name: about.get(f"origin_{name}", "") or "unknown" for name in catalogue.ORIGIN_PARTS}
            yield Sample(catalogue.ORIGIN.name, labels_of({"rank": number, **origin}), 1.0)


def merge_knobs(ranks: Sequence[Rank]) -> tuple[dict[str, Knob], dict[str, str]]:
    """(knobs that all of `ranks` have at the same value, the others with the reason)."""
    knobs: dict[str, Knob] = {}
    reasons: dict[str, str] = {}
    for rank in ranks:
        reasons.update(rank.unavailable)
    for name in dict.fromkeys(name for rank in ranks for name in rank.knobs):
        all_of = [rank.knobs[name] for rank in ranks if name in rank.knobs]
        first = all_of[0]
        if len(all_of) < len(ranks):
            reasons.setdefault(name, "not every rank has it")
        elif any((k.value, k.unit, k.scope) != (first.value, first.unit, first.scope) for k in all_of):
            reasons[name] = "the ranks have different values: " + ", ".join(str(k.value) for k in all_of)
        else:
            low = max((k.minimum for k in all_of if k.minimum is not None), default=None)
            high = min((k.maximum for k in all_of if k.maximum is not None), default=None)
            knobs[name] = Knob(name, first.value, low, high, first.unit, first.scope)
    return knobs, reasons

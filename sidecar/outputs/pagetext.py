"""The text of metric pages: prometheus_client says once how a series is written, after that only values are formatted.

Writing every label of every series anew takes ten times as long, and the event loop waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from sidecar.model import Labels

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

Encoder = Callable[["Collector"], bytes]

_FORMATS = 8  # a client may ask for any version: no more than so many are remembered
_SPARE = 1000  # series that went away may stay so many before they are forgotten


@dataclass(frozen=True, slots=True)
class Family:
    """One metric of a page."""

    name: str  # of its samples
    empty: Callable[[], Metric]  # the family as prometheus_client knows it, without samples
    values: dict[Labels, float]


@dataclass(slots=True)
class _Format:
    """What is known of one content type."""

    tail: str
    heads: dict[str, str] = field(default_factory=dict)
    starts: dict[str, dict[Labels, str]] = field(default_factory=dict)


class PageText:
    """Writes pages in the formats of prometheus_client. Series are sorted by their labels."""

    def __init__(self) -> None:
        self._formats: dict[str, _Format] = {}

    def page(self, encoder: Encoder, content_type: str, families: Sequence[Family]) -> bytes:
        """The page, byte for byte as `encoder` would write it. Raises what the encoder raises."""
        form = self._formats.get(content_type)
        if form is None:
            if len(self._formats) >= _FORMATS:
                self._formats.clear()
            form = self._formats[content_type] = _Format(_encoded(encoder, ()))
        text = "".join([self._family(form, encoder, family) for family in families]) + form.tail
        gone = form.starts.keys() - {family.name for family in families}
        for name in gone:
            del form.starts[name], form.heads[name]
        return text.encode()

    def _family(self, form: _Format, encoder: Encoder, family: Family) -> str:
        from prometheus_client.utils import floatToGoString

        starts = form.starts.setdefault(family.name, {})
        missing = sorted(labels for labels in family.values if labels not in starts)
        if missing or family.name not in form.heads:
            if len(starts) > len(family.values) + _SPARE:
                starts.clear()
                missing = sorted(family.values)
            self._learn(form, encoder, family, missing)
            # in the order of the page, so that a page with the same series needs no sorting
            form.starts[family.name] = starts = {labels: starts[labels] for labels in sorted(starts)}
        values = family.values
        lines = [f"{start}{floatToGoString(values[labels])}\n" for labels, start in starts.items() if labels in values]
        return form.heads[family.name] + "".join(lines)

    def _learn(self, form: _Format, encoder: Encoder, family: Family, missing: list[Labels]) -> None:
        """Has the encoder write the family with these series, and keeps all but the values."""
        metric = family.empty()
        for labels in missing:
            metric.add_sample(family.name, dict(labels), 0.0)
        lines = _encoded(encoder, [metric]).removesuffix(form.tail).split("\n")[:-1]
        head = len(lines) - len(missing)
        form.heads[family.name] = "".join(f"{line}\n" for line in lines[:head])
        starts = form.starts[family.name]
        for labels, line in zip(missing, lines[head:], strict=True):
            starts[labels] = line.removesuffix("0.0")


class _Families:
    """What prometheus_client calls a registry."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._found = families

    def collect(self) -> Iterable[Metric]:
        return self._found


def _encoded(encoder: Encoder, families: Iterable[Metric]) -> str:
    return encoder(cast("Collector", _Families(families))).decode()

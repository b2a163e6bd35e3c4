"""The price book `prices.yaml`: what an hour of an instance type costs, where and how paid for, as of when, by whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from sidecar.errors import ConfigError, Problem
from sidecar.yamlfile import Document

CAPACITIES = ("on-demand", "spot", "reserved")
MAX_AGE: Mapping[str, timedelta] = MappingProxyType(
    # Ours. List prices change a few times a year, what one's contract says no more often; spot prices within days.
    {"on-demand": timedelta(days=90), "reserved": timedelta(days=90), "spot": timedelta(days=7)}
)
SHIPPED = Path(__file__).with_name("prices.yaml")
"""The file as it comes: a description of its format, and no price."""

PriceKey = tuple[str, str, str]
"""(instance type, region or "" for any, capacity type)"""


class Price(BaseModel):
    """One line of the book."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instance_type: str = Field(min_length=1)
    region: str = ""
    capacity: Literal["on-demand", "spot", "reserved"] = "on-demand"
    usd_per_hour: float = Field(ge=0, allow_inf_nan=False)
    as_of: date
    source: str = ""

    @property
    def key(self) -> PriceKey:
        """What there may be only one of."""
        return self.instance_type, self.region, self.capacity

    def old(self, today: date) -> bool:
        """Whether it is older than prices of its kind stay right."""
        return today - self.as_of > MAX_AGE[self.capacity]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    prices: tuple[Price, ...] = ()


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Prices by what they are of."""

    prices: Mapping[PriceKey, Price] = field(default_factory=dict)

    def find(self, instance_type: str, region: str, capacity: str) -> Price | None:
        """The region's own price, else the one for any region. None: no price is known, and none is guessed."""
        found = self.prices.get((instance_type, region, capacity))
        return found if found is not None else self.prices.get((instance_type, "", capacity))

    def with_(self, newer: Iterable[Price]) -> PriceBook:
        """The book with these in place of those of the same key."""
        return PriceBook({**self.prices, **{price.key: price for price in newer}})

    def sorted(self) -> list[Price]:
        """By instance type, region and capacity type."""
        return sorted(self.prices.values(), key=lambda price: price.key)


def load_prices(path: Path) -> PriceBook:
    """Raises ConfigError with every problem and its place."""
    document = Document.read(path)
    if document.value is not None and not isinstance(document.value, dict):
        raise ConfigError([document.problem((), "a price book is a mapping with the key `prices`")])
    listed = document.validate(_File).prices
    found: dict[PriceKey, Price] = {}
    problems: list[Problem] = []
    for number, price in enumerate(listed):
        if price.key in found:
            where = ("prices", number, "instance_type")
            problems.append(document.problem(where, f"{' '.join(filter(None, price.key))} is there twice"))
        found[price.key] = price
    if problems:
        raise ConfigError(problems)
    return PriceBook(found)


def text(book: PriceBook, before: str | None = None) -> str:
    """The file: comments at the top of `before` (None: of the shipped file), and a line for each price, with the
    comments that `before` has above and behind it.
    """
    head = []
    for line in (SHIPPED.read_text(encoding="utf-8") if before is None else before).splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        head.append(line)
    lines = [*head, "prices:" if book.prices else "prices: []"]
    comments = _comments(before or "")
    for price in book.sorted():
        above, behind = comments.get(price.key, ([], ""))
        given = price.model_dump(exclude_defaults=True) | {"capacity": price.capacity}
        ordered = {name: given[name] for name in Price.model_fields if name in given}
        written = yaml.safe_dump(ordered, default_flow_style=True, sort_keys=False, width=10**6).strip()
        lines += [*above, f"- {written}{behind and f'  {behind}'}"]
    return "\n".join([*lines, *comments.get(None, ([], ""))[0]]) + "\n"


def _comments(before: str) -> dict[PriceKey | None, tuple[list[str], str]]:
    """By price the comment lines above it and the comment behind it; None: those after the last price."""
    root, lines = yaml.compose(before, Loader=yaml.SafeLoader), before.splitlines()
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    found: dict[PriceKey | None, tuple[list[str], str]] = {}
    end = pairs[0][0].start_mark.line + 1 if pairs else len(lines)  # what is above `prices:` is the head
    for node in [node for _, listed in pairs for node in listed.value]:
        above = _whole(lines[end : node.start_mark.line])
        last = (
            max((value.end_mark for _, value in node.value), key=lambda mark: mark.index)
            if not node.flow_style
            else node.end_mark
        )
        behind = lines[last.line][last.column :].lstrip(" ,}")
        given = {name.value: value.value for name, value in node.value}
        key = given.get("instance_type", ""), given.get("region", ""), given.get("capacity", "on-demand")
        found[key] = above, behind if behind.startswith("#") else ""
        end = last.line + 1
    found[None] = _whole(lines[end:]), ""
    return found


def _whole(lines: Iterable[str]) -> list[str]:
    return [line.strip() for line in lines if line.lstrip().startswith("#")]

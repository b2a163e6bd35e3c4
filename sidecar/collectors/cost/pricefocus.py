"""Prices out of a FOCUS export: list prices of the instance types it charges for, and what was paid for spot."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from sidecar.collectors.cost.focus import FocusFile
from sidecar.collectors.cost.pricebook import Price, PriceKey
from sidecar.collectors.cost.rows import RowProblem
from sidecar.collectors.cost.values import BadValue, Values
from sidecar.errors import CollectError, ConfigError, Problem

NEEDED = ("ListUnitPrice", "BillingCurrency", "ChargePeriodStart", "ChargeCategory", "PricingQuantity", "PricingUnit")
WANTED = (
    *NEEDED, "EffectiveCost", "ChargeClass", "PricingCategory", "RegionId", "SkuMeter", "SkuId", "SkuPriceDetails",
)  # fmt: skip
MOST_PROBLEMS = 20
_TYPE = re.compile(r'"InstanceType"\s*:\s*"([^"]+)"')
_METER = re.compile(r"(?:BoxUsage|SpotUsage|DedicatedUsage|HostBoxUsage):([\w.-]+)")
_HOURS = re.compile(r"^\s*(?:1\s+)?(?:hours?|hrs?|instance[- ]hours?)\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Use:
    """Hours of an instance type: `list_price` USD per hour, `paid` USD for all of them."""

    key: PriceKey
    day: date
    hours: float
    list_price: float
    paid: float


def read(path: str) -> list[Price]:
    """Raises ConfigError: it is no such export, a value cannot be read, the currency is not USD, there is no price."""
    by_key: dict[PriceKey, dict[date, list[_Use]]] = defaultdict(lambda: defaultdict(list))
    problems: list[Problem] = []
    try:
        for found in FocusFile(path).read(NEEDED, WANTED, lambda names: _Reader(path, names).use):
            if isinstance(found, RowProblem):
                problems.append(_problem(path, found))
                if len(problems) >= MOST_PROBLEMS:
                    break
            elif found is not None:
                by_key[found.key][found.day].append(found)
    except CollectError as e:
        raise ConfigError([Problem(path, 0, 0, str(e).removeprefix(f"cost: {path}: "))]) from None
    if problems:
        raise ConfigError(problems)
    prices = [_price(key, max(days), days[max(days)], path.rpartition("/")[2]) for key, days in by_key.items()]
    if not prices:
        text = "no charge for hours of an instance type with a list price: nothing to take over"
        raise ConfigError([Problem(path, 0, 0, text)])
    return prices


def _problem(path: str, found: RowProblem) -> Problem:
    """With the line in a text, whose header is line 1; Parquet has rows only."""
    message = f"column {found.column}: {found.problem}" if found.column else found.problem
    if path.endswith(".parquet"):
        return Problem(path, 0, 0, f"row {found.row}, {message}")
    return Problem(path, found.row + 1, 1, message)


def _price(key: PriceKey, day: date, uses: Sequence[_Use], source: str) -> Price:
    """Of the newest day: the list price with most hours (it differs by operating system); of spot what was paid."""
    hours = sum(use.hours for use in uses)
    if key[2] == "spot":
        usd = sum(use.paid for use in uses) / hours
    else:
        by_price: dict[float, float] = defaultdict(float)
        for use in uses:
            by_price[use.list_price] += use.hours
        usd = max(by_price, key=lambda price: (by_price[price], price))
    kind, region, capacity = key
    given = {"instance_type": kind, "region": region, "capacity": capacity, "usd_per_hour": usd}
    return Price.model_validate(given | {"as_of": day, "source": f"FOCUS {source}"})


class _Reader(Values):
    """Of a row the hours of an instance type; None of a row that is about something else."""

    def __init__(self, path: str, names: Sequence[str]) -> None:
        super().__init__(names)
        self._path = path

    def use(self, number: int, values: Sequence[Any]) -> _Use | RowProblem | None:
        try:
            return self._use(values)
        except BadValue as e:
            return RowProblem(self._path, number, e.column, str(e))

    def _use(self, values: Sequence[Any]) -> _Use | None:
        text = self.text
        meter = text(values, "SkuMeter") or text(values, "SkuId")
        named = _TYPE.search(text(values, "SkuPriceDetails")) or _METER.search(meter)
        counted = _HOURS.match(text(values, "PricingUnit")) and text(values, "ChargeCategory") == "Usage"
        if named is None or not counted or text(values, "ChargeClass") == "Correction":
            return None
        hours = self.number(values, "PricingQuantity", 0.0)
        price = self.number(values, "ListUnitPrice", 0.0)
        if hours <= 0 or price <= 0:
            return None
        if (currency := self.currency(values)) != "USD":
            raise BadValue("BillingCurrency", f"{currency}: the price book is in USD")
        spot = text(values, "PricingCategory") == "Dynamic" or "SpotUsage" in meter
        paid = self.number(values, "EffectiveCost") if spot else 0.0
        key = (named[1], text(values, "RegionId"), "spot" if spot else "on-demand")
        return _Use(key, self.time(values, "ChargePeriodStart").date(), hours, price, max(paid, 0.0))

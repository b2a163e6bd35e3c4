"""Prices from AWS: its price list (Linux, shared tenancy) on demand, and the last day's spot prices."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from statistics import fmean
from typing import Any

from sidecar.collectors.cost.aws import ClientFactory, called
from sidecar.collectors.cost.pricebook import Price
from sidecar.errors import CollectError

LIST_REGION = "us-east-1"  # the price list of all regions is asked there
PAGES = 20
_FILTERS = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "licenseModel": "No License required",
}


def read(
    kinds: Sequence[str], regions: Sequence[str], clients: Callable[[str], ClientFactory], today: date
) -> list[Price]:
    """On-demand and spot prices of every type in every region, where AWS has one. Raises CollectError."""
    found: list[Price] = []
    for region in regions:
        for kind in kinds:
            if (usd := _listed(clients(LIST_REGION)("pricing"), kind, region)) is not None:
                found.append(_made(kind, region, "on-demand", usd, today, "AWS price list"))
        for kind, usd in _spot(clients(region)("ec2"), kinds, today).items():
            found.append(_made(kind, region, "spot", usd, today, "AWS spot price history"))
    return found


def _listed(client: Any, kind: str, region: str) -> float | None:
    """USD per hour; None where the list has none. Raises CollectError where it has several."""
    wanted = {**_FILTERS, "instanceType": kind, "regionCode": region}
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()]
    prices: set[float] = set()
    for page in _pages(client.get_products, ServiceCode="AmazonEC2", Filters=filters):
        for text in page.get("PriceList", ()):
            prices |= set(_hourly(text, kind))
    if len(prices) > 1:
        said = ", ".join(f"{price:g}" for price in sorted(prices))
        raise CollectError("cost", "aws_answer", f"AWS price list: {kind} in {region} has several prices: {said}")
    return prices.pop() if prices else None


def _hourly(text: str, kind: str) -> Iterator[float]:
    try:
        for term in json.loads(text)["terms"].get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                usd = float(dimension["pricePerUnit"].get("USD", 0))
                if dimension["unit"] == "Hrs" and usd > 0:
                    yield usd
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        raise CollectError("cost", "aws_answer", f"AWS price list: {kind}: {type(e).__name__}: {e}") from e


def _spot(client: Any, kinds: Sequence[str], today: date) -> dict[str, float]:
    """By type, the mean over the region's zones of their newest prices."""
    since = datetime.combine(today, time(), UTC) - timedelta(days=1)
    asked = {"InstanceTypes": list(kinds), "ProductDescriptions": ["Linux/UNIX"], "StartTime": since}
    newest: dict[tuple[str, str], tuple[datetime, float]] = {}
    try:
        for page in _pages(client.describe_spot_price_history, **asked):
            for entry in page.get("SpotPriceHistory", ()):
                place = entry["InstanceType"], entry["AvailabilityZone"]
                point = entry["Timestamp"], float(entry["SpotPrice"])
                newest[place] = max(newest.get(place, point), point)
    except (ValueError, LookupError, TypeError) as e:
        raise CollectError("cost", "aws_answer", f"AWS spot prices: {type(e).__name__}: {e}") from e
    zones = {kind: [usd for (of, _), (_, usd) in newest.items() if of == kind] for kind in kinds}
    return {kind: fmean(prices) for kind, prices in zones.items() if prices}


def _pages(method: Callable[..., Any], **asked: Any) -> Iterator[Any]:
    token = ""
    for _ in range(PAGES):
        page = called(method, **asked, **({"NextToken": token} if token else {}))
        yield page
        token = page.get("NextToken") or ""
        if not token:
            return
    raise CollectError("cost", "too_many_pages", f"AWS has more than {PAGES} pages of prices: name fewer types")


def _made(kind: str, region: str, capacity: str, usd: float, today: date, source: str) -> Price:
    given = {"instance_type": kind, "region": region, "capacity": capacity, "usd_per_hour": usd}
    return Price.model_validate(given | {"as_of": today, "source": source})

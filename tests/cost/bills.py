"""Bills made for the tests."""

from __future__ import annotations

import csv
import gzip
import random
from datetime import UTC, datetime, timedelta

import pytest

COLUMNS = (
    "BilledCost", "EffectiveCost", "BillingCurrency", "ChargePeriodStart", "ChargePeriodEnd", "ChargeCategory",
    "ChargeClass", "ChargeDescription", "ConsumedQuantity", "ConsumedUnit", "RegionId", "ResourceId", "ServiceCategory",
    "SkuId", "SkuMeter", "SkuPriceDetails", "SubAccountId", "Tags",
)  # fmt: skip
TODAY = datetime(2026, 11, 20, tzinfo=UTC)
VCPU = {"SkuMeter": "BoxUsage:p5.48xlarge", "ConsumedUnit": "Hours", "ServiceCategory": "Compute"}
EGRESS = {"SkuMeter": "USE1-DataTransfer-Out-Bytes", "ConsumedUnit": "GB", "ServiceCategory": "Compute"}
READS = {"SkuMeter": "USE1-Requests-Tier2", "ConsumedUnit": "Requests", "ServiceCategory": "Storage"}


def charge(day, cost, **more):
    """A row for a day, as FOCUS writes it; `cost` both billed and effective."""
    start = day if isinstance(day, str) else day.strftime("%Y-%m-%d %H:%M:%S")
    end = day if isinstance(day, str) else (day + timedelta(days=1)).strftime("%Y-%m-%d %H:%M:%S")
    row = dict.fromkeys(COLUMNS, "NULL") | {
        "BilledCost": repr(cost), "EffectiveCost": repr(cost), "BillingCurrency": "USD", "ChargePeriodStart": start,
        "ChargePeriodEnd": end, "ChargeCategory": "Usage", "ConsumedQuantity": "24",
    }  # fmt: skip
    return row | {name: str(value) for name, value in (VCPU | more).items()}


def history(days, cost, **more):
    """A charge a day, the newest on the day before TODAY; `cost` of how many days ago."""
    return [charge(TODAY - timedelta(days=n), cost(n), **more) for n in range(1, days + 1)]


@pytest.fixture
def export(tmp_path):
    """Writes rows as a FOCUS export; gives its path."""

    def write(rows, name="focus.csv", columns=COLUMNS):
        path = tmp_path / name
        opened = gzip.open(path, "wt", newline="") if name.endswith(".gz") else path.open("w", newline="")
        with opened as file:
            out = csv.DictWriter(file, columns, extrasaction="ignore")
            out.writeheader()
            out.writerows(rows)
        return path

    return write


@pytest.fixture
def chance():
    return random.Random(3)

"""AWS: Cost Explorer by day and usage type, and Budgets. Each page of Cost Explorer costs a cent."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sidecar.collectors.cost.meters import category
from sidecar.collectors.cost.rows import Category, CostRow, RowProblem
from sidecar.errors import CollectError

_MONTHLY = re.compile(r"^Tax$|\bSupport\b")  # services that charge for a month at a time

PAGES = 20
"""More than so many pages are not asked for: at a cent each, four times a day."""
_REGION = re.compile(r"^[A-Z]{2,4}\d?-")

ClientFactory = Callable[[str], Any]
"""Service name → boto3 client."""


@dataclass(frozen=True, slots=True)
class CostExplorer:
    """Unblended and amortised cost by day and usage type; credits and refunds left out."""

    clients: ClientFactory
    today: date
    days: int = 62

    def rows(self) -> Iterator[CostRow | RowProblem]:
        """Raises CollectError when AWS refuses."""
        asked = {
            "TimePeriod": {  # the end is not included
                "Start": (self.today - timedelta(days=self.days)).isoformat(),
                "End": self.today.isoformat(),
            },
            "Granularity": "DAILY",
            "Metrics": ["AmortizedCost", "UnblendedCost", "UsageQuantity"],
            "GroupBy": [{"Type": "DIMENSION", "Key": "SERVICE"}, {"Type": "DIMENSION", "Key": "USAGE_TYPE"}],
            "Filter": {"Not": {"Dimensions": {"Key": "RECORD_TYPE", "Values": ["Credit", "Refund"]}}},
        }
        token = ""
        for _ in range(PAGES):
            page = called(self.clients("ce").get_cost_and_usage, **asked, **({"NextPageToken": token} if token else {}))
            for number, result in enumerate(page.get("ResultsByTime", ()), start=1):
                for group in result.get("Groups", ()):
                    yield self._group(number, result, group)
            token = page.get("NextPageToken", "")
            if not token:
                return
        raise CollectError("cost", "too_many_pages", f"Cost Explorer has more than {PAGES} pages: narrow the accounts")

    def _group(self, number: int, result: Any, group: Any) -> CostRow | RowProblem:
        try:
            service, meter = group["Keys"]
            start = datetime.fromisoformat(result["TimePeriod"]["Start"]).replace(tzinfo=UTC)
            amounts = group["Metrics"]
            quantity, unit = float(amounts["UsageQuantity"]["Amount"]), str(amounts["UsageQuantity"]["Unit"])
            kind = category(_REGION.sub("", meter), unit, "", "")
            effective, billed = (float(amounts[name]["Amount"]) for name in ("AmortizedCost", "UnblendedCost"))
            # What is billed on the first and amortised elsewhere is a reservation's fee. No charge tells its period.
            monthly = start.day == 1 and (effective == 0 < billed or _MONTHLY.search(service))
            days = calendar.monthrange(start.year, start.month)[1] if monthly else 1
            return CostRow(
                source="aws",
                resource=service,
                category=kind,
                meter=meter,
                start=start,
                end=start + timedelta(days=days),
                effective=effective,
                billed=billed,
                currency=str(amounts["UnblendedCost"]["Unit"]),
                quantity=quantity,
                unit=unit,
                estimated=bool(result.get("Estimated", False)),
                vcpu_hours=0.0 if kind is not Category.VCPU else quantity,
            )
        except (LookupError, TypeError, ValueError) as e:
            return RowProblem("Cost Explorer", number, "", f"{type(e).__name__}: {e}")


def budget_amount(clients: ClientFactory, account: str, name: str) -> float:
    """A monthly budget's limit. Raises CollectError."""
    answer = called(clients("budgets").describe_budget, AccountId=account, BudgetName=name)
    try:
        return float(answer["Budget"]["BudgetLimit"]["Amount"])
    except (LookupError, TypeError, ValueError) as e:
        raise CollectError("cost", "aws_answer", f"AWS budget {name}: {e}") from e


def boto_clients(region: str = "us-east-1") -> ClientFactory:
    """Clients from the pod's own identity. Raises CollectError without boto3."""
    try:
        import boto3
    except ImportError:
        raise CollectError("cost", "no_boto3", "install spikewatch[aws] to read AWS") from None
    made: dict[str, Any] = {}

    def client(service: str) -> Any:
        if service not in made:
            made[service] = boto3.client(service, region_name=region)
        return made[service]

    return client


def called(function: Callable[..., Any], **arguments: Any) -> Any:
    """What a method of a boto3 client gives. Raises CollectError whatever it raises: its SDK has no end of errors."""
    try:
        return function(**arguments)
    except Exception as e:
        raise CollectError("cost", "aws_refused", f"AWS: {type(e).__name__}: {e}") from e

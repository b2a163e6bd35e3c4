"""Signals of money: a real cluster process over a generated bill, and stand-ins for OpenCost and AWS."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from signals_bill import Bill
from signals_rows import Row, Source, fired, pod_on
from signals_stage import Stage

ROWS = 1_000_000


def billed(stage: Stage, kit: object, rows: int = ROWS) -> Sequence[Row]:
    """A bill that grows while nothing more is done, read once at the start."""
    today = datetime.now(UTC).date()
    bill = Bill(today, resources=max(1, rows // (62 * 24) - 1))
    count = bill.write(stage.folder / "focus.csv")
    opencost = stage.serve(lambda path: (200, "application/json", json.dumps({"data": allocations(today)}).encode()))
    spent, elapsed = bill.so_far(), bill.last.day / _days_in(bill.last)
    # The second budget is not overspent by a fifth yet, but what it allows for the days so far is, or the forecast.
    ahead = (spent / 1.2 + max(spent / elapsed, spent + _rest(bill)) / 1.2) / 2
    cost = {
        "enabled": True, "focus": [str(stage.folder / "focus.csv")], "opencost": f"http://{opencost}",
        "deadline": "10m", "budgets": [{"name": "over", "amount": spent / 1.3}, {"name": "ahead", "amount": ahead}],
    }  # fmt: skip
    pod = pod_on(stage, "cluster", collectors={"cost": cost})
    source = Source(f"generated FOCUS export of {count:,} rows", "fake")
    use = Source(f"{source.what}, and a stand-in for OpenCost", "fake")
    at = pod.started
    return [
        fired(
            pod,
            "VcpuSpendWithoutLoad",
            at,
            use,
            "vCPU costs 35 % more a day than the week before, 20 % of it is used",
            seconds=300,
        ),
        fired(
            pod,
            "EgressCostSurge",
            at,
            source,
            "egress costs 70 % more than in the same days of last month, with as many reads",
        ),
        fired(pod, "BudgetOverrun", at, source, "the month has cost 1.3 times the budget, and nobody has approved it"),
        fired(
            pod,
            "BudgetOverrunAhead",
            at,
            source,
            "the days so far, or the forecast, exceed the budget by more than a fifth",
        ),
    ]


def allocations(today: date, used: float = 0.2, days: int = 14) -> list[dict[str, Any]]:
    """What OpenCost would answer: a pod that costs next to nothing and uses a part of the CPU that it requests."""
    steps = []
    for n in range(days, 0, -1):
        start = today - timedelta(days=n)
        window = {"start": f"{start}T00:00:00Z", "end": f"{start + timedelta(days=1)}T00:00:00Z"}
        pod = {
            "window": window, "minutes": 1440.0, "cpuCost": 0.01, "gpuCost": 0.0, "pvCost": 0.0,
            "networkInternetCost": 0.0, "cpuCoreHours": 96.0, "cpuCoreRequestAverage": 4.0,
            "cpuCoreUsageAverage": 4 * used,
        }  # fmt: skip
        steps.append({"train/pod-0": pod})
    return steps


def _days_in(day: date) -> int:
    return ((day.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)).day


def _rest(bill: Bill) -> float:
    return (bill.vcpu(bill.last) + bill.egress(bill.last)) * (_days_in(bill.last) - bill.last.day)

"""CloudWatch's GetMetricData, many series a request. Each series asked for costs $0.00001: their number is bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sidecar.collectors.cost.aws import called
from sidecar.errors import CollectError

SERIES = 500  # of one request, as AWS documents
POINTS = 100_800  # of one answer
PAGES = 50  # of one request


@dataclass(frozen=True, slots=True)
class Series:
    """A metric of one resource: its sum or mean over each period."""

    namespace: str
    metric: str
    dimension: str
    resource: str
    stat: Literal["Sum", "Average"]


Points = dict[datetime, float]
"""Start of a period → value; periods without data are absent."""


def points(
    client: Any, series: Sequence[Series], start: datetime, end: datetime, period_s: int
) -> dict[Series, Points]:
    """All series over [start, end). Raises CollectError when AWS refuses, or gives only part of it."""
    each = max(1, int((end - start).total_seconds()) // period_s)
    at_once = max(1, min(SERIES, POINTS // each))
    found: dict[Series, Points] = {}
    for first in range(0, len(series), at_once):
        for one, some in _asked(client, series[first : first + at_once], start, end, period_s):
            found.setdefault(one, {}).update(some)
    return found


def _asked(
    client: Any, series: Sequence[Series], start: datetime, end: datetime, period_s: int
) -> Iterator[tuple[Series, Points]]:
    by_id = {f"s{number}": one for number, one in enumerate(series)}
    asked = {
        "MetricDataQueries": [_query(name, one, period_s) for name, one in by_id.items()],
        "StartTime": start,
        "EndTime": end,
        "ScanBy": "TimestampAscending",
    }
    token = ""
    for _ in range(PAGES):
        page = called(client.get_metric_data, **asked, **({"NextToken": token} if token else {}))
        try:
            for result in page["MetricDataResults"]:
                if result.get("StatusCode", "Complete") not in ("Complete", "PartialData"):
                    raise CollectError("cost", "cloudwatch_answer", f"CloudWatch: {result['StatusCode']}")
                yield by_id[result["Id"]], dict(zip(result["Timestamps"], map(float, result["Values"]), strict=True))
        except (LookupError, TypeError, ValueError) as e:
            raise CollectError("cost", "cloudwatch_answer", f"CloudWatch: {type(e).__name__}: {e}") from e
        token = page.get("NextToken", "")
        if not token:
            return
    raise CollectError("cost", "too_many_pages", f"CloudWatch has more than {PAGES} pages for {len(series)} series")


def _query(name: str, one: Series, period_s: int) -> dict[str, Any]:
    metric = {
        "Namespace": one.namespace,
        "MetricName": one.metric,
        "Dimensions": [{"Name": one.dimension, "Value": one.resource}],
    }
    return {"Id": name, "MetricStat": {"Metric": metric, "Period": period_s, "Stat": one.stat}, "ReturnData": True}

"""The metrics of the cost collector."""

from __future__ import annotations

from sidecar.model import Evidence, MetricInfo

GENERATED = Evidence("fake", "2026-11-30", "generated FOCUS exports; AWS played by moto; OpenCost written by hand")


def _info(name: str, unit: str, text: str, labels: tuple[str, ...] = (), source: str = "billing") -> MetricInfo:
    kind = "counter" if name.endswith("_total") else "gauge"
    return MetricInfo(f"spikewatch_{name}", kind, unit, text, labels, source, "cluster", "exact", GENERATED)  # type: ignore[arg-type]


METRICS: tuple[MetricInfo, ...] = (
    _info("cost_daily", "", "Mean cost a day over seven final days, in the bill's currency.", ("category", "window")),
    _info("cost_cpu_utilization_ratio", "ratio", "CPU used over CPU requested, of the last seven final days."),
    _info("cost_month_to_date", "", "Cost of a month so far, or of the same days before.", ("category", "month")),
    _info("cost_forecast", "", "This month's bill, the mean of the last week for the days to come."),
    _info(
        "cost_idle_days",
        "",
        "Of the last seven days those on which a resource was idle: little CPU, hardly a byte over the network.",
        ("resource",),
        "CloudWatch, OpenCost",
    ),
    _info("object_store_reads", "", "Read requests of a month so far, or of the same days before.", ("month",)),
    _info(
        "volume_iops",
        "",
        "IOPS paid for, and the 95th percentile of those used.",
        ("volume", "stat"),
        "FOCUS, CloudWatch",
    ),
    _info("budget_amount", "", "A budget's monthly amount.", ("budget",), "configuration, AWS Budgets"),
    _info("budget_elapsed_ratio", "ratio", "Share of the month that is over.", ("budget",)),
    _info("budget_approved", "", "1 while more than the budget is approved.", ("budget",), "approvals file"),
    _info("cost_rows_total", "", "Charges read.", ("source",)),
    _info("cost_rows_skipped_total", "", "Charges that could not be read.", ("source",)),
    _info("cost_last_read_timestamp_seconds", "seconds", "When the source was last read.", ("source",)),
    _info("cost_newest_day_timestamp_seconds", "seconds", "Midnight of the newest day the source has.", ("source",)),
)

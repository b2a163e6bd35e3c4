"""The functions of Prometheus 3.5 that need no feature flag, with what they return, and one of Prometheus 2."""

from __future__ import annotations

from sidecar.promql.plan import Kind

RANGE_FUNCTIONS = frozenset(
    "avg_over_time changes count_over_time delta deriv idelta increase irate last_over_time max_over_time "
    "min_over_time predict_linear present_over_time quantile_over_time rate resets stddev_over_time "
    "stdvar_over_time sum_over_time absent_over_time holt_winters".split()
)
MATHS = frozenset(
    "abs acos acosh asin asinh atan atanh ceil cos cosh deg exp floor ln log10 log2 rad sgn sin sinh sqrt tan "
    "tanh".split()
)
CALENDAR = frozenset("day_of_month day_of_week day_of_year days_in_month hour minute month year".split())
NATIVE_HISTOGRAM = frozenset(
    "histogram_avg histogram_count histogram_stddev histogram_stdvar histogram_sum".split()
)  # nothing for float samples
_OTHERS = frozenset(
    "absent clamp clamp_max clamp_min histogram_fraction histogram_quantile label_join label_replace round sort "
    "sort_desc timestamp vector".split()
)
FUNCTIONS: dict[str, Kind] = {
    **dict.fromkeys(sorted(RANGE_FUNCTIONS | MATHS | CALENDAR | NATIVE_HISTOGRAM | _OTHERS), "vector"),
    "pi": "scalar",
    "scalar": "scalar",
    "time": "scalar",
}

RENAMED = {"holt_winters": "double_exponential_smoothing"}
"""Of Prometheus 2: under its new name experimental in Prometheus 3, so a rule with it does not load there."""

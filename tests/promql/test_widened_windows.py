"""Windows are made longer in the text, and nothing else of it changes."""

import pytest

from sidecar.errors import QueryError
from sidecar.promql import compile
from sidecar.promql.plan import Range, Subquery, walk
from sidecar.promql.widen import widened


@pytest.mark.parametrize(
    ("expr", "expected", "was"),
    [
        ("rate(x[30s])", "rate(x[1m])", (30_000,)),
        ("rate(x[1m])", "rate(x[1m])", ()),
        ("rate(x[ 59s ])", "rate(x[ 1m ])", (59_000,)),
        ("rate(x[30])", "rate(x[1m])", (30_000,)),
        ("rate(x[1e1])", "rate(x[1m])", (10_000,)),
        ("rate(x[0x1e])", "rate(x[1m])", (30_000,)),
        ("rate(x[1m30s])", "rate(x[1m30s])", ()),
        ("avg_over_time(rate(x[5s])[30s:10s])", "avg_over_time(rate(x[1m])[1m:10s])", (5_000, 30_000)),
        ("avg_over_time(x[10m:1s])", "avg_over_time(x[10m:1s])", ()),
        ("avg_over_time(x[30s:])", "avg_over_time(x[1m:])", (30_000,)),
        ("rate(x[5s] offset 5s)", "rate(x[1m] offset 5s)", (5_000,)),
        ("rate(x[5s] @ 5)", "rate(x[1m] @ 5)", (5_000,)),
        ("rate(x{a='[5s]',b=`[1s]`}[5s])  # [5s]\n > 5", "rate(x{a='[5s]',b=`[1s]`}[1m])  # [5s]\n > 5", (5_000,)),
    ],
)
def test_a_window_that_is_too_short_becomes_the_least(expr, expected, was):
    found = widened(expr, 60_000)
    assert (found.expr, found.was_ms) == (expected, was)
    lengths = [node.range_ms for node in walk(compile([expected]).node(expected)) if isinstance(node, Range | Subquery)]
    assert min(lengths) >= 60_000


def test_functions_that_grow_with_their_window_are_named_where_it_grew():
    expr = "increase(x[5s]) + increase(y[9s]) + rate(x[5s]) + changes(x[1h]) + count_over_time(x[5s:1s])"
    assert widened(expr, 60_000).growing == ("increase", "count_over_time")
    assert widened(expr, 1_000).growing == ()


def test_what_is_no_expression_is_refused():
    with pytest.raises(QueryError):
        widened("rate(x[5s)", 60_000)

"""Hand-written evaluations of selectors, look-back and windows over time; part of `handwritten`."""

from __future__ import annotations

from math import inf, nan

from scenes import Scene

WINDOWS = (
    Scene(
        "instant selectors",
        """
        m{a="1"} 1 2 3 4 _ _ _
        m{a="2"} 10 20 30 stale _ 60 70
        other{a="1",b="x"} 5 5 5 5 5 5 5
        """,
        (
            ("m", 20, {'m{a="1"}': 3, 'm{a="2"}': 30}),
            ("m", 25, {'m{a="1"}': 3, 'm{a="2"}': 30}),
            ("m", 30, {'m{a="1"}': 4}),
            ("m", 40, {'m{a="1"}': 4}),
            ("m", 60, {'m{a="1"}': 4, 'm{a="2"}': 70}),
            ('m{a="2"}', 50, {'m{a="2"}': 60}),
            ('m{a!="2"}', 60, {'m{a="1"}': 4}),
            ('m{a=~"1|3"}', 60, {'m{a="1"}': 4}),
            ('m{a=~""}', 60, {}),
            ('m{a!~"1"}', 60, {'m{a="2"}': 70}),
            ('{a="1"}', 60, {'m{a="1"}': 4, 'other{a="1",b="x"}': 5}),
            ('{__name__=~"m|other",b=""}', 60, {'m{a="1"}': 4, 'm{a="2"}': 70}),
            ('{__name__="other",b!=""}', 0, {'other{a="1",b="x"}': 5}),
            ("m offset 30s", 50, {'m{a="1"}': 3, 'm{a="2"}': 30}),
            ("m @ 10", 60, {'m{a="1"}': 2, 'm{a="2"}': 20}),
            ("m @ 20 offset 20s", 60, {'m{a="1"}': 1, 'm{a="2"}': 10}),
            ("m @ end()", 10, {'m{a="1"}': 2, 'm{a="2"}': 20}),
            ("nothing", 10, {}),
            ("sum(nothing)", 10, {}),
        ),
    ),
    Scene(
        "the look-back is five minutes and left-open",
        "m 7",
        (
            ("m", 0, {"m": 7}),
            ("m", 299, {"m": 7}),
            ("m", 300, {}),
            ("timestamp(m)", 299, {"{}": 0}),
        ),
    ),
    Scene(
        "windows are left-open",
        "m 1 2 3 4 5 6",
        (
            ("count_over_time(m[20s])", 50, {"{}": 2}),
            ("count_over_time(m[21s])", 50, {"{}": 3}),
            ("sum_over_time(m[20s] offset 10s)", 50, {"{}": 9}),
            ("count_over_time(m[10s])", 0, {"{}": 1}),
            ("last_over_time(m[1m])", 50, {"m": 6}),
            ("sum_over_time(m[10s] @ 20)", 50, {"{}": 3}),
        ),
    ),
    Scene(
        "counters",
        """
        c{i="steady"} 0+10x30
        c{i="reset"} 0 10 20 30 5 15 25 35
        c{i="born"} _ _ _ _ _ 3 13
        """,
        (
            ('rate(c{i="steady"}[1m])', 300, {'{i="steady"}': 1}),
            ('increase(c{i="steady"}[1m])', 300, {'{i="steady"}': 60}),
            ('increase(c{i="steady"}[35s])', 300, {'{i="steady"}': 35}),
            ('irate(c{i="steady"}[1m])', 300, {'{i="steady"}': 1}),
            ('resets(c{i="reset"}[2m])', 70, {'{i="reset"}': 1}),
            ('changes(c{i="reset"}[2m])', 70, {'{i="reset"}': 7}),
            ('irate(c{i="reset"}[20s])', 40, {'{i="reset"}': 0.5}),
            ('idelta(c{i="reset"}[20s])', 40, {'{i="reset"}': -25}),
            ('delta(c{i="reset"}[20s])', 40, {'{i="reset"}': -50}),
            ('increase(c{i="reset"}[20s])', 45, {'{i="reset"}': 10}),
            # a counter is not taken below zero: 3 s before the first sample it was at 0 at most
            ('increase(c{i="born"}[1m])', 60, {'{i="born"}': 13}),
            ('rate(c{i="born"}[10s])', 60, {}),
            ("rate(c[1m]) > 0.9", 300, {'{i="steady"}': 1}),
        ),
    ),
    Scene(
        "over time",
        """
        g{i="a"} 1 5 2 8 4
        g{i="nan"} NaN 1 NaN 3 NaN
        g{i="inf"} 1 Inf 1 1 1
        g{i="both"} Inf -Inf 1 1 1
        g{i="gaps"} 1 _ 5 _ 9
        """,
        (
            ('avg_over_time(g{i="a"}[1m])', 40, {'{i="a"}': 4}),
            ('min_over_time(g{i="a"}[1m])', 40, {'{i="a"}': 1}),
            ('max_over_time(g{i="a"}[1m])', 40, {'{i="a"}': 8}),
            ('sum_over_time(g{i="a"}[1m])', 40, {'{i="a"}': 20}),
            ('stdvar_over_time(g{i="a"}[1m])', 40, {'{i="a"}': 6}),
            ('stddev_over_time(g{i="gaps"}[1m])', 40, {'{i="gaps"}': 3.265986323710904}),
            ('quantile_over_time(0.5, g{i="a"}[1m])', 40, {'{i="a"}': 4}),
            ('quantile_over_time(0.25, g{i="gaps"}[1m])', 40, {'{i="gaps"}': 3}),
            ('quantile_over_time(0, g{i="inf"}[20s])', 10, {'{i="inf"}': nan}),
            ('quantile_over_time(-0.1, g{i="a"}[1m])', 40, {'{i="a"}': -inf}),
            ('quantile_over_time(1.1, g{i="a"}[1m])', 40, {'{i="a"}': inf}),
            ('quantile_over_time(0.5, g{i="nan"}[1m])', 40, {'{i="nan"}': nan}),
            ('quantile_over_time(1, g{i="nan"}[1m])', 40, {'{i="nan"}': 3}),
            ('count_over_time(g{i="gaps"}[1m])', 40, {'{i="gaps"}': 3}),
            ('present_over_time(g{i="gaps"}[1m])', 40, {'{i="gaps"}': 1}),
            ('max_over_time(g{i="nan"}[1m])', 40, {'{i="nan"}': 3}),
            ('max_over_time(g{i="nan"}[10s])', 40, {'{i="nan"}': nan}),
            ('sum_over_time(g{i="inf"}[1m])', 40, {'{i="inf"}': inf}),
            ('avg_over_time(g{i="inf"}[1m])', 40, {'{i="inf"}': inf}),
            ('sum_over_time(g{i="both"}[1m])', 40, {'{i="both"}': nan}),
            ('stddev_over_time(g{i="inf"}[1m])', 40, {'{i="inf"}': nan}),
            ('stddev_over_time(g{i="inf"}[30s])', 40, {'{i="inf"}': 0}),
            ('changes(g{i="nan"}[1m])', 40, {'{i="nan"}': 4}),
            ('deriv(g{i="gaps"}[1m])', 40, {'{i="gaps"}': 0.2}),
            ('deriv(g{i="gaps"}[10s])', 40, {}),
            ('predict_linear(g{i="gaps"}[1m], 60)', 40, {'{i="gaps"}': 21}),
            ('deriv(g{i="inf"}[30s])', 40, {'{i="inf"}': 0}),
            ('absent_over_time(g{i="gaps"}[1m])', 40, {}),
            ('absent_over_time(g{i="none"}[1m])', 40, {'{i="none"}': 1}),
            ('absent_over_time(g{i="gaps"}[5s])', 39, {'{i="gaps"}': 1}),
        ),
    ),
    Scene(
        "overflow is met as Prometheus meets it",
        """
        big{i="same"} 1.7e308 1.7e308 1.7e308
        big{i="back"} 1e308 1e308 -1e308 -1e308
        big{i="lost"} 1 1e100 1 -1e100
        """,
        (
            ('sum_over_time(big{i="same"}[1m])', 30, {'{i="same"}': inf}),
            ('avg_over_time(big{i="same"}[1m])', 30, {'{i="same"}': 1.7e308}),
            ('sum_over_time(big{i="lost"}[1m])', 30, {'{i="lost"}': 2}),
            ('avg_over_time(big{i="lost"}[1m])', 30, {'{i="lost"}': 0.5}),
            ('sum(big{i="same"}) + sum(big{i="same"})', 0, {"{}": inf}),
        ),
    ),
)

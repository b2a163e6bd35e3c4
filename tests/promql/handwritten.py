"""Hand-written evaluations: what each construct of the language must give. Both faces and promtool run them all.

A scene is some series at one pace and questions about them. An answer maps series in PromQL notation to values; a
string is (part of) the error.
"""

from __future__ import annotations

from math import inf, nan

from handwritten_windows import WINDOWS
from scenes import Scene

SCENES = (
    *WINDOWS,
    Scene(
        "arithmetic",
        """
        l{a="1",x="p"} 6
        l{a="2",x="p"} -7
        r{a="1",y="q"} 4
        r{a="3",y="q"} 9
        zero 0
        """,
        (
            ("l + on(a) r", 0, {'{a="1"}': 10}),
            ("l - on(a) r", 0, {'{a="1"}': 2}),
            ("l * on(a) r", 0, {'{a="1"}': 24}),
            ("l / on(a) r", 0, {'{a="1"}': 1.5}),
            ("l % on(a) r", 0, {'{a="1"}': 2}),
            ("l ^ on(a) r", 0, {'{a="1"}': 1296}),
            ("l atan2 on(a) r", 0, {'{a="1"}': 0.982793723247329}),
            ("l + ignoring(x, y) r", 0, {'{a="1"}': 10}),
            ("l + r", 0, {}),
            ("l % 4", 0, {'{a="1",x="p"}': 2, '{a="2",x="p"}': -3}),
            ("2 ^ 3 ^ 2", 0, {"{}": 512}),
            ("-2 ^ 2", 0, {"{}": -4}),
            ("2 - 3 - 4", 0, {"{}": -5}),
            ("1 + 2 * 3", 0, {"{}": 7}),
            ("-l", 0, {'{a="1",x="p"}': -6, '{a="2",x="p"}': 7}),
            ("1 / zero", 0, {"{}": inf}),
            ("-1 / zero", 0, {"{}": -inf}),
            ("zero / zero", 0, {"{}": nan}),
            ("1 % zero", 0, {"{}": nan}),
            ("5 % -3", 0, {"{}": 2}),
            ("-5 % 3", 0, {"{}": -2}),
            ("1 == bool 1", 0, {"{}": 1}),
            ("NaN == bool NaN", 0, {"{}": 0}),
            ("NaN != bool NaN", 0, {"{}": 1}),
            ("1 atan2 0", 0, {"{}": 1.5707963267948966}),
            ("time() * 2", 30, {"{}": 60}),
        ),
    ),
    Scene(
        "comparisons",
        """
        l{a="1"} 1
        l{a="2"} 5
        r{a="1"} 1
        r{a="2"} 3
        bad NaN
        """,
        (
            ("l > 2", 0, {'l{a="2"}': 5}),
            ("2 < l", 0, {'l{a="2"}': 5}),
            ("l > bool 2", 0, {'{a="1"}': 0, '{a="2"}': 1}),
            ("l == r", 0, {'l{a="1"}': 1}),
            ("l >= r", 0, {'l{a="1"}': 1, 'l{a="2"}': 5}),
            ("l != bool r", 0, {'{a="1"}': 0, '{a="2"}': 1}),
            ("l > on(a) r", 0, {'{a="2"}': 5}),
            ("bad == bad", 0, {}),
            ("bad != bad", 0, {"bad": nan}),
            ("l > 100", 0, {}),
            ("l < 100 > 2", 0, {'l{a="2"}': 5}),
        ),
    ),
    Scene(
        "one side with many elements",
        """
        errors{code="500",path="/a"} 4
        errors{code="404",path="/a"} 6
        errors{code="500",path="/b"} 1
        requests{path="/a",zone="z1"} 20
        requests{path="/b",zone="z2"} 4
        info{path="/a",team="red"} 1
        """,
        (
            (
                "errors / on(path) group_left requests",
                0,
                {
                    '{code="500",path="/a"}': 0.2,
                    '{code="404",path="/a"}': 0.3,
                    '{code="500",path="/b"}': 0.25,
                },
            ),
            (
                "errors * on(path) group_left(team) info",
                0,
                {'{code="500",path="/a",team="red"}': 4, '{code="404",path="/a",team="red"}': 6},
            ),
            ("info * on(path) group_right(zone) requests", 0, {'{path="/a"}': 20}),
            (
                "requests > on(path) group_right errors",
                0,
                {
                    'errors{code="500",path="/a"}': 20,
                    'errors{code="404",path="/a"}': 20,
                    'errors{code="500",path="/b"}': 4,
                },
            ),
            ("errors / ignoring(code) group_left(zone) requests", 0, {}),
            ("errors / on(path) requests", 0, "many-to-one matching must be explicit"),
            ("requests / on(path) errors", 0, "found duplicate series for the match group"),
            ("errors * on() group_left requests", 0, "many-to-many matching not allowed"),
            ("nothing * on() group_left requests", 0, {}),
            ("errors > on(path) requests", 0, {}),
            ("requests == ignoring(zone) group_left(code) nothing", 0, {}),
            ("sum by(path)(errors) * on(path) group_left(code) errors", 0, "found duplicate series"),
        ),
    ),
    Scene(
        "set operators",
        """
        a{x="1"} 1
        a{x="2"} 2
        b{x="2",y="p"} 20
        b{x="3",y="p"} 30
        """,
        (
            ("a and on(x) b", 0, {'a{x="2"}': 2}),
            ("a unless on(x) b", 0, {'a{x="1"}': 1}),
            ("a or on(x) b", 0, {'a{x="1"}': 1, 'a{x="2"}': 2, 'b{x="3",y="p"}': 30}),
            ("a and b", 0, {}),
            ("a and on() b", 0, {'a{x="1"}': 1, 'a{x="2"}': 2}),
            ("a and on() (b > 100)", 0, {}),
            ("a and ignoring(y) b", 0, {'a{x="2"}': 2}),
            ("a or ignoring(x, y) b", 0, {'a{x="1"}': 1, 'a{x="2"}': 2}),
            ("(a > 5) or on(x) b", 0, {'b{x="2",y="p"}': 20, 'b{x="3",y="p"}': 30}),
            ("a unless nothing", 0, {'a{x="1"}': 1, 'a{x="2"}': 2}),
            ("nothing or a", 0, {'a{x="1"}': 1, 'a{x="2"}': 2}),
            (
                "a or b or vector(9)",
                0,
                {'a{x="1"}': 1, 'a{x="2"}': 2, 'b{x="2",y="p"}': 20, 'b{x="3",y="p"}': 30, "{}": 9},
            ),
            ("a > 1 and on(x) b < 25", 0, {'a{x="2"}': 2}),
        ),
    ),
    Scene(
        "aggregations",
        """
        m{g="a",i="1"} 1
        m{g="a",i="2"} 3
        m{g="b",i="1"} 5
        m{g="b",i="2"} NaN
        m{i="3"} 7
        """,
        (
            ("sum by(g)(m)", 0, {'{g="a"}': 4, '{g="b"}': nan, "{}": 7}),
            ("sum without(i)(m)", 0, {'{g="a"}': 4, '{g="b"}': nan, "{}": 7}),
            ("count(m)", 0, {"{}": 5}),
            ("count by(i)(m)", 0, {'{i="1"}': 2, '{i="2"}': 2, '{i="3"}': 1}),
            ("group by(g)(m)", 0, {'{g="a"}': 1, '{g="b"}': 1, "{}": 1}),
            ("max by(g)(m)", 0, {'{g="a"}': 3, '{g="b"}': 5, "{}": 7}),
            ("min by(g)(m)", 0, {'{g="a"}': 1, '{g="b"}': 5, "{}": 7}),
            ('avg(m{g="a"})', 0, {"{}": 2}),
            ('stddev(m{g="a"})', 0, {"{}": 1}),
            ('stdvar by(g)(m{g!="b"})', 0, {'{g="a"}': 1, "{}": 0}),
            ('quantile(0.5, m{g="a"})', 0, {"{}": 2}),
            ("quantile by(g)(2, m)", 0, {'{g="a"}': inf, '{g="b"}': inf, "{}": inf}),
            ("topk(2, m)", 0, {'m{i="3"}': 7, 'm{g="b",i="1"}': 5}),
            ("bottomk(1, m)", 0, {'m{g="a",i="1"}': 1}),
            ("topk by(g)(1, m)", 0, {'m{g="a",i="2"}': 3, 'm{g="b",i="1"}': 5, 'm{i="3"}': 7}),
            ("topk(0, m)", 0, {}),
            ("topk(-1, m)", 0, {}),
            ('topk(9, m{g="b"})', 0, {'m{g="b",i="1"}': 5, 'm{g="b",i="2"}': nan}),
            ('count_values("v", m)', 0, {'{v="1"}': 1, '{v="3"}': 1, '{v="5"}': 1, '{v="7"}': 1, '{v="NaN"}': 1}),
            ('count_values by(g)("v", m > 2)', 0, {'{g="a",v="3"}': 1, '{g="b",v="5"}': 1, '{v="7"}': 1}),
            ("sum by(nothing)(m > 2)", 0, {"{}": 15}),
            ("sum by(__name__, i)(m > 6)", 0, {'m{i="3"}': 7}),
        ),
    ),
    Scene(
        "functions of values",
        """
        v{i="a"} -1.5
        v{i="b"} 2.5
        t 1e9
        """,
        (
            ("abs(v)", 0, {'{i="a"}': 1.5, '{i="b"}': 2.5}),
            ("ceil(v)", 0, {'{i="a"}': -1, '{i="b"}': 3}),
            ("floor(v)", 0, {'{i="a"}': -2, '{i="b"}': 2}),
            ("round(v)", 0, {'{i="a"}': -1, '{i="b"}': 3}),
            ("round(v, 2)", 0, {'{i="a"}': -2, '{i="b"}': 2}),
            ("sgn(v)", 0, {'{i="a"}': -1, '{i="b"}': 1}),
            ("sqrt(v)", 0, {'{i="a"}': nan, '{i="b"}': 1.5811388300841898}),
            ("clamp(v, 0, 2)", 0, {'{i="a"}': 0, '{i="b"}': 2}),
            ("clamp(v, 2, 0)", 0, {}),
            ("clamp(v, NaN, 2)", 0, {'{i="a"}': nan, '{i="b"}': nan}),
            ("clamp_min(v, 0)", 0, {'{i="a"}': 0, '{i="b"}': 2.5}),
            ("clamp_max(v, 0)", 0, {'{i="a"}': -1.5, '{i="b"}': 0}),
            ("ln(v * 0)", 0, {'{i="a"}': -inf, '{i="b"}': -inf}),
            ("deg(vector(pi()))", 0, {"{}": 180}),
            ("rad(vector(180))", 0, {"{}": 3.141592653589793}),
            ("scalar(t) + 1", 0, {"{}": 1000000001}),
            ("scalar(v)", 0, {"{}": nan}),
            ("scalar(nothing)", 0, {"{}": nan}),
            ("vector(1)", 0, {"{}": 1}),
            ("year(t)", 0, {"{}": 2001}),
            ("month(t)", 0, {"{}": 9}),
            ("day_of_month(t)", 0, {"{}": 9}),
            ("day_of_week(t)", 0, {"{}": 0}),
            ("day_of_year(t)", 0, {"{}": 252}),
            ("days_in_month(t)", 0, {"{}": 30}),
            ("hour(t)", 0, {"{}": 1}),
            ("minute(t)", 0, {"{}": 46}),
            ("minute()", 120, {"{}": 2}),
            ("year(vector(NaN))", 0, {"{}": 292277026596}),
            ("days_in_month(vector(951782400))", 0, {"{}": 29}),
            ("timestamp(v)", 0, {'{i="a"}': 0, '{i="b"}': 0}),
            ("timestamp(v + 1)", 100, {'{i="a"}': 100, '{i="b"}': 100}),
            ("timestamp(v)", 100, {'{i="a"}': 0, '{i="b"}': 0}),
            ("absent(v)", 0, {}),
            ('absent(v{i="c",j="d",k=~"x"})', 0, {'{i="c",j="d"}': 1}),
            ('absent(v{i="c",i!="d"})', 0, {"{}": 1}),
            ("absent(sum(nothing))", 0, {"{}": 1}),
            ("histogram_sum(v)", 0, {}),
        ),
    ),
    Scene(
        "labels made of labels",
        """
        m{host="node-7:9100",dc="east"} 1
        m{host="node-8:9100",dc="west"} 2
        """,
        (
            (
                'label_replace(m, "node", "$1", "host", "(.*):.*")',
                0,
                {
                    'm{dc="east",host="node-7:9100",node="node-7"}': 1,
                    'm{dc="west",host="node-8:9100",node="node-8"}': 2,
                },
            ),
            (
                'label_replace(m, "host", "${n}!", "host", "node-(?P<n>[0-9]).*")',
                0,
                {'m{dc="east",host="7!"}': 1, 'm{dc="west",host="8!"}': 2},
            ),
            ('label_replace(m, "dc", "", "dc", ".*")', 0, {'m{host="node-7:9100"}': 1, 'm{host="node-8:9100"}': 2}),
            (
                'label_replace(m, "x", "y", "host", "node")',
                0,
                {'m{dc="east",host="node-7:9100"}': 1, 'm{dc="west",host="node-8:9100"}': 2},
            ),
            ('label_replace(label_replace(m, "host", "", "host", ".*"), "dc", "", "dc", ".*")', 0, "same labelset"),
            ('label_replace(m, "x", "$1", "dc", "(")', 0, "invalid regular expression in label_replace(): ("),
            ('label_replace(m, "", "$1", "dc", ".*")', 0, "invalid destination label name"),
            (
                'label_join(m, "where", "/", "dc", "none", "host")',
                0,
                {
                    'm{dc="east",host="node-7:9100",where="east//node-7:9100"}': 1,
                    'm{dc="west",host="node-8:9100",where="west//node-8:9100"}': 2,
                },
            ),
            ('label_join(m, "dc", "-")', 0, {'m{host="node-7:9100"}': 1, 'm{host="node-8:9100"}': 2}),
        ),
    ),
    Scene(
        "classic histograms",
        """
        b{le="1"} 0+10x20
        b{le="2"} 0+20x20
        b{le="4"} 0+20x20
        b{le="+Inf"} 0+25x20
        odd{le="1"} 5
        odd{le="2"} 3
        odd{le="+Inf"} 10
        open{le="1"} 5
        open{le="2"} 8
        low{le="-1"} 4
        low{le="+Inf"} 8
        none{le="1"} 0
        none{le="+Inf"} 0
        """,
        (
            ("histogram_quantile(0.5, b)", 100, {"{}": 1.25}),
            ("histogram_quantile(0.4, rate(b[1m]))", 100, {"{}": 1}),
            ("histogram_quantile(0.99, b)", 100, {"{}": 4}),
            ("histogram_quantile(0, b)", 100, {"{}": 0}),
            ("histogram_quantile(-1, b)", 100, {"{}": -inf}),
            ("histogram_quantile(2, b)", 100, {"{}": inf}),
            ("histogram_quantile(NaN, b)", 100, {"{}": nan}),
            ("histogram_quantile(0.5, odd)", 0, {"{}": 1}),
            ("histogram_quantile(0.5, open)", 0, {"{}": nan}),
            ("histogram_quantile(0.3, low)", 0, {"{}": -1}),
            ("histogram_quantile(0.5, none)", 0, {"{}": nan}),
            ('histogram_quantile(0.5, b{le="+Inf"})', 100, {"{}": nan}),
            ('histogram_quantile(0.5, label_replace(odd, "le", "x", "le", "2"))', 0, {"{}": 1}),
            ("histogram_fraction(1, 2, b)", 100, {"{}": 0.4}),
            ("histogram_fraction(1, 1.5, b)", 100, {"{}": 0.2}),
            ("histogram_fraction(2, +Inf, b)", 100, {"{}": 0.2}),
            ("histogram_fraction(2, 1, b)", 100, {"{}": 0}),
            ("histogram_fraction(0, 2, b)", 100, {"{}": nan}),
            ("histogram_fraction(1, 2, none)", 0, {"{}": nan}),
        ),
    ),
    Scene(
        "subqueries",
        """
        m 0+1x60
        flip 0 1 0 1 0 1 0 1 0 1 0 1
        """,
        (
            ("max_over_time(m[1m:10s])", 100, {"{}": 10}),
            ("min_over_time(m[1m:10s])", 100, {"{}": 5}),
            ("count_over_time(m[1m:10s])", 100, {"{}": 6}),
            ("count_over_time(m[1m:10s])", 105, {"{}": 6}),
            ("count_over_time(m[1m:25s])", 110, {"{}": 2}),
            ("sum_over_time((m * 2)[30s:10s])", 100, {"{}": 54}),
            ("max_over_time(rate(m[20s])[1m:10s])", 100, {"{}": 0.1}),
            ("max_over_time(m[1m:10s] offset 30s)", 100, {"{}": 7}),
            ("max_over_time(m[1m:10s] @ 60)", 100, {"{}": 6}),
            ("changes((flip > bool 0)[1m:10s])", 100, {"{}": 5}),
            ("last_over_time(m[1m:10s])", 100, {"m": 10}),
            ("sum_over_time(max_over_time(m[20s:10s])[30s:10s])", 100, {"{}": 27}),
            ("count_over_time(m[1m:])", 100, {"{}": 6}),
            ("absent_over_time(nothing[1m:10s])", 100, {"{}": 1}),
        ),
    ),
    Scene(
        "names",
        """
        m{x="1"} 1 2
        n{x="1"} 3 4
        """,
        (
            ("m + 0", 0, {'{x="1"}': 1}),
            ("m > 0", 0, {'m{x="1"}': 1}),
            ("last_over_time(m[1m])", 10, {'m{x="1"}': 2}),
            ("max_over_time(m[1m])", 10, {'{x="1"}': 2}),
            ('-{x="1"}', 0, "vector cannot contain metrics with the same labelset"),
            ('rate({x="1"}[1m])', 10, "vector cannot contain metrics with the same labelset"),
            ('last_over_time({x="1"}[1m])', 10, {'m{x="1"}': 2, 'n{x="1"}': 4}),
            ("m and n", 0, {'m{x="1"}': 1}),
            ("m == n - 2", 0, {'m{x="1"}': 1}),
            ('sum by(__name__)({x="1"})', 0, {"m": 1, "n": 3}),
            ("m * on(x, __name__) m", 0, {'{x="1"}': 1}),
        ),
    ),
    Scene(
        "strings and numbers",
        "m 1",
        (
            ("0x1F", 0, {"{}": 31}),
            ("1e3", 0, {"{}": 1000}),
            (".5", 0, {"{}": 0.5}),
            ("5m", 0, {"{}": 300}),
            ("1h30m", 0, {"{}": 5400}),
            ("Inf", 0, {"{}": inf}),
            ("-inf", 0, {"{}": -inf}),
            ("NaN", 0, {"{}": nan}),
            ("pi()", 0, {"{}": 3.141592653589793}),
            ('label_replace(m, "x", `\\$1`, "y", ``)', 0, {'m{x="\\\\"}': 1}),
            ("m # a comment", 0, {"m": 1}),
            ("m{nolabel=``}", 0, {"m": 1}),
        ),
    ),
)

"""What is accepted as PromQL and what is refused, and where in the text the trouble is."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sidecar import promql
from sidecar.errors import QueryError
from sidecar.promql.functions import FUNCTIONS
from sidecar.promql.parse import parse
from sidecar.promql.plan import Binary, Call, Matcher, Negate, Number, Op, Range, Selector, Subquery, Text
from sidecar.promql.spelling import respelled
from sidecar.promql.text import tokens

ACCEPTED = [
    "up",
    "up{}",
    'up{a="b",}',
    "{__name__=~'a.+'}",
    '{"quoted.name", a="b"}',
    "x:y:z",
    "sum(x) by (a)",
    "sum by (a,) (x)",
    "sum{a='b'}",
    "-x ^ 2",
    "+x",
    "rate(x[5m] offset -3m @ 100)",
    "x @ start() offset 1h",
    "rate(x[5m:])",
    "max_over_time(sum(x)[1h:5m] @ end())",
    "a + on(x, y) group_left(z,) b",
    "a > bool on() b",
    "a and ignoring() b",
    "topk by (a) (3, x)",
    'count_values("v", x)',
    "1 == bool 2",
    "0x1f + 1e-3 + .5 + 5. + Inf + NaN",
    "x[500]",
    "x offset 1.5",
    "x # comment\n + y",
    "(((x)))",
    "sort_desc(x) or vector(time())",
    "histogram_quantile(0.9, sum by (le) (rate(b_bucket[5m])))",
    "label_replace(x, 'a', '$1', 'b', `(\\d+)`)",
    "label_join(x, 'a', '-')",
    "day_of_week()",
    'x{a=~`\\d+\\.\\w"`}',
    "x offset 0s",
    "x offset -0m + y offset 0",
    "x offset --5m",
    "rate(x[+5m])",
    "sum by (a:b, c) (x) / on (a:b) y",
    "+x + +1",
]
"""Expressions that Prometheus 3.5 accepts."""

REFUSED = [
    ("", "no expression", 0),
    ("1 +", "unexpected end", 3),
    ("a b", "unexpected 'b'", 2),
    ("a + * b", "unexpected '*'", 4),
    ("a = b", "unexpected '='", 2),
    ("sum(x", "unclosed", 3),
    ("x)", "unexpected right parenthesis", 1),
    ('"abc', "unterminated", 0),
    ('x{a="b', "unterminated", 4),
    ("x{a='b'", "unexpected end", 1),
    ("fooo(x)", "unknown function", 0),
    ("1 + sum(fooo(x))", "unknown function", 8),
    ("rate(x)", "expected type matrix", 0),
    ("rate(x[5m], 1)", "argument", 0),
    ("round(x, 1, 2)", "at most 2", 0),
    ('sum("a")', "expected type vector", -1),
    ("1 == 1", "BOOL", 2),
    ("a and 1", "set operator", 2),
    ("a or bool b", "bool modifier", -1),
    ("a + on(b) group_left(b) c", "must not occur in ON and GROUP", 7),
    ("a and on(x) group_left b", "no grouping allowed", 2),
    ('{a=""}', "non-empty matcher", 0),
    ('x{__name__="y"}', "metric name must not be set twice", 0),
    ('x{a="1" or b="2"}', "`or`", 8),
    ("x{a=~'['}", "regex", 6),
    ("x{a=~'a**'}", "bad regular expression", -1),
    ("x{a=~'(?<=b)c'}", "regex", 6),
    ("x{a='\\z'}", "escape sequence", 5),
    ("x[0s]", "greater than 0", -1),
    ("x[0]", "greater than 0", -1),
    ("x[0:1m]", "greater than 0", -1),
    ("x[5m:0]", "greater than 0", -1),
    ("x[5m:0s]", "greater than 0", -1),
    ("x[300y]", "out of range", -1),
    ("x offset 1e15", "out of range", -1),
    ("x @ 1e30", "out of bounds", -1),
    ("1e400", "out of range", 0),
    ("x[5m][5m:]", "subquery", 1),
    ("1[5m:1m]", "subquery", 1),
    ("-x[5m]", "unary", -1),
    ("limitk(1, x)", "experimental", 0),
    ("mad_over_time(x[1m])", "experimental", 0),
    ("sort_by_label(x)", "experimental", 0),
    ("info(x)", "experimental", 0),
    ("double_exponential_smoothing(x[1m], 0.1, 0.2)", "experimental", 0),
    ("first_over_time(x[1m])", "first_over_time", 0),
    ("end()", "end", 0),
    ("rate(+x[1m])", "unary", -1),
    ("+'text'", "unary", -1),
    ("x offset y", "unexpected", 2),
    ("x + fill(1) y", "fill", 4),
    ("x[step()]", "unexpected character", 2),
    ("x[1m+1m]", "unexpected character", 4),
]
"""Expressions that Prometheus 3.5 refuses: what we say, and where, -1 for nowhere in particular."""


@pytest.mark.parametrize("expr", ACCEPTED)
def test_prometheus_takes_it_and_so_do_we(expr):
    promql.compile([expr])


@pytest.mark.parametrize(("expr", "message", "offset"), REFUSED)
def test_prometheus_refuses_it_and_so_do_we(expr, message, offset):
    with pytest.raises(QueryError, match=re.escape(message)) as caught:
        promql.compile([expr])
    assert caught.value.expr == expr
    assert caught.value.offset == offset


@pytest.mark.peers
def test_promtool_gives_the_same_verdicts(promtool, tmp_path):
    exprs = ACCEPTED + [expr for expr, _, _ in REFUSED if expr]
    groups = [{"name": str(i), "rules": [{"record": "r", "expr": expr}]} for i, expr in enumerate(exprs)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": groups}))
    run = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    refused = {int(i) for i in re.findall(r'group "(\d+)"[^\n]*could not parse expression', run.stdout + run.stderr)}
    assert refused == set(range(len(ACCEPTED), len(exprs)))


def test_the_plan_says_what_the_text_says():
    assert parse('m{b!="2",a=~"x"}[5m] offset 1m @ 3') == Range(
        Selector("m", (Matcher("a", Op.MATCH, "x"), Matcher("b", Op.NOT_EQUAL, "2")), 60_000, 3000), 300_000
    )
    assert parse("m @ -0.5") == Selector("m", (), 0, -500)
    assert parse("sum(m @ 1)[1h:5m] @ -200.25").at == -200_250
    assert parse("sum(m)[1h:5m]") == Subquery(parse("sum(m)"), 3_600_000, 300_000)
    assert parse("-m") == Negate(Selector("m", ()))
    assert parse("'text'") == Text("text")
    assert isinstance(parse("a > bool b"), Binary)
    assert parse("time()") == Call("time", (), "scalar")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("m{a='1',b='2'}", 'm{b="2",a="1"}'),
        ("(m)", "m"),
        ("m[60]", "m[1m]"),
        ("sum by (a, b) (m)", "sum(m) by (b, a)"),
        ("a + on(x, y) b", "a + on(y, x) b"),
        ('{__name__="m"}', "m"),
        ("1h", "3600"),
        ("x{a=`b`}", 'x{a="b"}'),
        ("NaN", "nan"),
    ],
)
def test_the_same_meaning_is_the_same_plan(one, other):
    assert parse(one) == parse(other)
    assert hash(parse(one)) == hash(parse(other))


def test_zero_and_minus_zero_are_two_numbers():
    assert Number.of(0.0) != Number.of(-0.0)


@pytest.mark.parametrize("expr", ["(" * 5000 + "x" + ")" * 5000, "x" + "+x" * 5000, "-" * 5000 + "x", "x" * 70_000])
def test_monsters_are_refused_before_the_parser_sees_them(expr):
    with pytest.raises(QueryError, match="nested|longer"):
        promql.compile([expr])


def test_two_hundred_alternatives_are_no_monster():
    promql.compile([" or ".join(f"m{i}" for i in range(200))])


@given(st.text(alphabet="ab(){}[]'\"`\\ +-*/=~!#\n\t1.5me_:@,é", max_size=60))
def test_the_pieces_of_a_text_make_the_text(text):
    assert "".join(t.text for t in tokens(text)) == text
    assert [t.offset for t in tokens(text)] == sorted(t.offset for t in tokens(text))


@given(st.text(alphabet="ab\\\"'{}\n\t$(d+)é", max_size=30).filter(lambda s: "`" not in s))
def test_a_raw_string_means_exactly_its_characters(text):
    node = parse(respelled(f"`{text}`"))
    assert node == Text(text)


def test_quotes_and_comments_hide_backquotes():
    expr = "x{a='`'} # `not raw`\n + y{b=`c`}"
    assert respelled(expr) == "x{a='`'} # `not raw`\n + y{b=\"c\"}"


ALPHABET = st.sampled_from(
    "x y sum rate ( ) [ ] { } 5m : , + - * / ^ == != =~ !~ = ! < > and or unless on ignoring group_left by without "
    "offset @ start() \"a\" 'b' `c` 1 0x NaN bool \\ # \n é topk 1e400 end ~ | & $ %".split(" ")
)


def refusal(expr):
    """The error that an expression is refused with, None when it is not."""
    try:
        promql.compile([expr])
    except QueryError as e:
        return e
    return None


@given(st.lists(ALPHABET, max_size=25).map(" ".join))
def test_nonsense_is_refused_in_good_order(expr):
    """Whatever the words, the answer is a program or a QueryError that points into the text."""
    error = refusal(expr)
    assert error is None or (str(error) and -1 <= error.offset <= len(expr))


def test_every_function_of_prometheus_is_there():
    assert len(FUNCTIONS) == 73, "those of 3.5 without a flag, and holt_winters"
    assert {"rate", "absent_over_time", "histogram_fraction", "label_join", "pi"} <= set(FUNCTIONS)

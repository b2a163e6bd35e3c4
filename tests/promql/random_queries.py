"""Random series and random expressions over them, mostly valid, for differential and property tests."""

from __future__ import annotations

from random import Random

METRICS = ("a", "b", "c_total", "h_bucket")
_NUMBERS = ("0", "1", "2", "0.5", "-1", "3.7", "NaN", "Inf", "-Inf", "1e10", "100")
_LABELS = ("x", "y", "z", "le")
_RANGE_FUNCTIONS = (
    "rate increase delta irate idelta sum_over_time avg_over_time min_over_time max_over_time count_over_time "
    "last_over_time present_over_time absent_over_time stddev_over_time stdvar_over_time changes resets deriv"
).split()
_MATHS = (
    "abs ceil floor exp ln log2 log10 sqrt sgn round sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh deg "
    "rad minute hour day_of_month day_of_week day_of_year days_in_month month year timestamp absent sort sort_desc"
).split()
_AGGREGATIONS = "sum avg min max count group stddev stdvar".split()


class Queries:
    """Makes series and expressions from one seed."""

    def __init__(self, seed: int, large: bool = True) -> None:
        """Without `large`, no numbers so large that Prometheus's own sums lose digits."""
        self._random, self._large = Random(seed), large

    def series(self, samples: int = 40) -> list[tuple[str, str]]:
        """(series, values) in promtool's notation."""
        r = self._random
        out = []
        for metric in METRICS:
            combinations = [(x, y) for x in ("1", "2", "3") for y in ("p", "q")]
            for x, y in r.sample(combinations, r.randint(1, 5)):
                if metric == "h_bucket":
                    total = 0.0
                    for le in ("0.1", "1", "5", "+Inf"):
                        total += r.choice((0, 1, 2, 5))
                        out.append((f'h_bucket{{x="{x}",y="{y}",le="{le}"}}', self._counter(samples, total)))
                else:
                    z = r.choice(("", ',z="k"', ',z="m"'))
                    values = self._counter(samples, 1.0) if metric == "c_total" else self._gauge(samples)
                    out.append((f'{metric}{{x="{x}",y="{y}"{z}}}', values))
        return out

    def _counter(self, samples: int, step: float) -> str:
        r, value, out = self._random, 0.0, []
        for _ in range(samples):
            value = 0.0 if r.random() < 0.03 else value + step * r.randint(0, 4)
            out.append(self._odd(f"{value:g}"))
        return " ".join(out)

    def _gauge(self, samples: int) -> str:
        r = self._random
        style = r.choice(("walk", "noise", "constant", "large" if self._large else "walk"))
        value = r.choice((0.0, 1.0, -5.0, 1234.5))
        out = []
        for _ in range(samples):
            if style == "walk":
                value += r.choice((-1.0, 0.0, 0.25, 1.0))
            elif style == "noise":
                value = round(r.gauss(0, 10), 3)
            elif style == "large":
                value = 1e9 + r.randint(0, 5)
            text = f"{value:.12g}"
            out.append(self._odd(r.choice(("NaN", "Inf", "-Inf")) if r.random() < 0.01 else text))
        return " ".join(out)

    def _odd(self, text: str) -> str:
        luck = self._random.random()
        return "_" if luck < 0.06 else "stale" if luck < 0.08 else text

    def expression(self, depth: int = 3) -> str:
        """An expression whose result is a vector or a scalar."""
        return self._vector(depth) if self._random.random() < 0.93 else self._scalar(depth)

    def _selector(self) -> str:
        r = self._random
        matchers = []
        if r.random() < 0.4:
            op, value = r.choice(
                (("=", "1"), ("!=", "2"), ("=~", "1|3"), ("!~", "2.*"), ("=~", ".+"), ("=", ""), ("=~", "p|"))
            )
            matchers.append(f'{r.choice(("x", "y", "z"))}{op}"{value}"')
        return r.choice(METRICS) + ("{" + ",".join(matchers) + "}" if matchers else "")

    def _modifiers(self) -> str:
        r = self._random
        out = ""
        if r.random() < 0.15:
            out += f" offset {r.choice(('10s', '1m', '-20s', '35s'))}"
        if r.random() < 0.06:
            out += f" @ {r.choice(('100', '200.5', '0', 'start()', 'end()'))}"
        return out

    def _range(self, depth: int) -> str:
        r = self._random
        if depth > 0 and r.random() < 0.2:
            step = r.choice(("", "10s", "25s", "1m"))
            return f"({self._vector(depth - 1)})[{r.choice(('1m', '95s', '3m'))}:{step}]{self._modifiers()}"
        length = r.choice(("10s", "30s", "45s", "1m", "2m", "5m"))
        return f"{self._selector()}[{length}]{self._modifiers()}"

    def _scalar(self, depth: int) -> str:
        r = self._random
        kind = r.random()
        if depth <= 0 or kind < 0.6:
            return r.choice(_NUMBERS)
        if kind < 0.7:
            return r.choice(("time()", "pi()"))
        if kind < 0.8:
            return f"scalar({self._vector(depth - 1)})"
        op = r.choice(("+", "-", "*", "/", "%", "^", "== bool", "> bool", "<= bool", "atan2"))
        return f"({self._scalar(depth - 1)} {op} {self._scalar(depth - 1)})"

    def _vector(self, depth: int) -> str:
        r = self._random
        if depth <= 0:
            return self._selector() + self._modifiers()
        makers = (
            (16, lambda: self._selector() + self._modifiers()),
            (24, lambda: self._over_range(depth)),
            (14, lambda: self._aggregate(depth)),
            (16, lambda: self._binary(depth)),
            (12, lambda: self._with_scalar(depth)),
            (8, lambda: f"{r.choice(_MATHS)}({self._vector(depth - 1)})"),
            (6, lambda: self._set(depth)),
            (2, lambda: f"-{self._vector(depth - 1)}"),
            (8, lambda: self._special(depth)),
        )
        return r.choices([m for _, m in makers], [w for w, _ in makers])[0]()

    def _over_range(self, depth: int) -> str:
        r = self._random
        luck = r.random()
        if luck < 0.08:
            phi = r.choice(("0.5", "0.9", "0", "1", "-1", "2", "NaN"))
            return f"quantile_over_time({phi}, {self._range(depth)})"
        if luck < 0.14:
            return f"predict_linear({self._range(depth)}, {r.choice(('60', '-30', '3600'))})"
        return f"{r.choice(_RANGE_FUNCTIONS)}({self._range(depth)})"

    def _grouping(self) -> str:
        r = self._random
        if r.random() < 0.3:
            return ""
        return f" {r.choice(('by', 'without'))} ({', '.join(r.sample(_LABELS, r.randint(0, 2)))})"

    def _aggregate(self, depth: int) -> str:
        r, inner = self._random, self._vector(depth - 1)
        luck = r.random()
        if luck < 0.1:
            return f"quantile{self._grouping()} ({r.choice(('0.5', '0.95', '0', '1', '-3'))}, {inner})"
        if luck < 0.2:
            return f"{r.choice(('topk', 'bottomk'))}{self._grouping()} ({r.choice(('1', '2', '0', '10'))}, {inner})"
        if luck < 0.25:
            return f'count_values{self._grouping()} ("v", {inner})'
        return f"{r.choice(_AGGREGATIONS)}{self._grouping()} ({inner})"

    def _match(self, group: bool) -> str:
        r = self._random
        luck = r.random()
        if luck < 0.35:
            return ""
        words = f" {r.choice(('on', 'ignoring'))} ({', '.join(r.sample(_LABELS, r.randint(0, 3)))})"
        if group and r.random() < 0.35:
            words += f" {r.choice(('group_left', 'group_right'))} ({r.choice(('', 'z', 'y'))})"
        return words

    def _binary(self, depth: int) -> str:
        r = self._random
        op = r.choice(("+", "-", "*", "/", "%", "^", "atan2", "==", "!=", ">", "<", ">=", "<="))
        if op in ("==", "!=", ">", "<", ">=", "<=") and r.random() < 0.3:
            op += " bool"
        return f"({self._vector(depth - 1)} {op}{self._match(group=True)} {self._vector(depth - 1)})"

    def _with_scalar(self, depth: int) -> str:
        r = self._random
        op = r.choice(("+", "-", "*", "/", "%", "^", "==", "!=", ">", "<", ">=", "<=", "> bool", "== bool"))
        sides = [self._vector(depth - 1), self._scalar(depth - 1)]
        r.shuffle(sides)
        return f"({sides[0]} {op} {sides[1]})"

    def _set(self, depth: int) -> str:
        op = self._random.choice(("and", "or", "unless"))
        return f"({self._vector(depth - 1)} {op}{self._match(group=False)} {self._vector(depth - 1)})"

    def _special(self, depth: int) -> str:
        r, inner = self._random, self._vector(depth - 1)
        target = r.choice(("x", "new"))
        return r.choice(
            (
                f"clamp({inner}, {self._scalar(1)}, {self._scalar(1)})",
                f"clamp_min({inner}, {self._scalar(1)})",
                f"clamp_max({inner}, {self._scalar(1)})",
                f"round({inner}, {r.choice(('0.1', '5', '3'))})",
                f"vector({self._scalar(depth - 1)})",
                f'label_replace({inner}, "{target}", "$1-${{n}}", "y", "(?P<n>p|q)(.*)")',
                f'label_join({inner}, "{target}", "-", "y", "z")',
                f"histogram_quantile({r.choice(('0.5', '0.99', '0', '1'))}, {inner})",
                f"histogram_fraction({r.choice(('0.1', '1'))}, {r.choice(('5', '+Inf'))}, {inner})",
                "minute()",
                f"absent({self._selector()})",
            )
        )

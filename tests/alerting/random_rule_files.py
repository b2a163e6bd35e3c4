"""Rule files as nobody would write them: random fields, texts and templates, and then a few characters changed."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

EXPRS = (
    "up", "up == 0", "sum by (job) (rate(x_total[5m])) > 1", "absent(up)", "x[5m]", "1", "'text'", "up and", "",
    "rate(x)", "x{a=~'(}", "histogram_quantile(0.9, sum by (le) (rate(b[1m]))) > 1", "{}", "up offset 5m", "~", "1e999",
)  # fmt: skip
DURATIONS = (
    "1m",
    "0",
    "0s",
    "5",
    "1h30m",
    "-1m",
    "1.5m",
    "",
    "1d1h",
    "30m1h",
    "9999999y",
    "1ms",
    "x",
    "~",
    "[1m]",
    "1e3s",
)
NAMES = ("A", "B", "a:b", "1a", "", "ä", "a b", "record", "instance:up", "null", "__name__", "le")
LABELS = ("severity", "a", "__name__", "1x", "", "ä", "a-b", "alertname", "on", "le", "null")
TEMPLATES = (
    "plain", "{{ $value }}", "{{ $labels.job }}", "{{ $labels.a-b }}", "{{ .Value | humanize }}", "{{ printf `%d` 3 }}",
    "{{ if $value }}x{{ end }}", "{{ if }}", "{{ end }}", "{{ nope 1 }}", "{{ $new := 2 }}{{ $new }}", "{{ $new = 2 }}",
    "{{ range query `up` }}{{ .Value }}{{ end }}", "{{", "}}", "{{ /* note */ }}", "{{- $value -}}",
    "{{ template `x` }}", "{{ with $x := 1 }}{{ $x }}{{ else }}{{ $x }}{{ end }}",
    "{{ $externalLabels.c }}", "{{ first 1 2 }}", "{{ 'c' }}",
    "{{ define `x` }}y{{ end }}", "{{ .Nope }}", "{{ 1 | 2 }}", "{{ (1) }}", "{{ 0x1F }}", "{{ $ }}", "{{ nil }}", "",
)  # fmt: skip
OTHERS = (
    "null",
    "~",
    "[]",
    "{}",
    "[1]",
    "{a: b}",
    "true",
    "0x10",
    "1e3",
    "2026-01-01",
    "!!str 5",
    "&a x",
    "*a",
    "|",
    "? x",
)
NOISE = " \t\n:-[]{},#&*!|>'\"%@`~?\\0a\u00e4\u2028\x00\x7f"


def rule_files(seed: int) -> Iterator[str]:
    """Without end."""
    made = _Files(Random(seed))
    while True:
        yield made.file()


class _Files:
    def __init__(self, random: Random) -> None:
        self._random = random

    def file(self) -> str:
        r = self._random
        if r.random() < 0.03:
            return "".join(r.choices(NOISE + "groups", k=r.randint(0, 40)))
        groups = "".join(self._group() for _ in range(r.choice((0, 1, 1, 1, 2))))
        text = f"groups:\n{groups}" if r.random() < 0.97 else f"{self._other()}: 1\ngroups:\n{groups}"
        for _ in range(r.choice((0, 0, 0, 1, 1, 2, 3))):
            at = r.randrange(len(text) + 1)
            text = text[:at] + r.choice((r.choice(NOISE), "", text[at : at + 9] * 2)) + text[at + r.randint(0, 2) :]
        return text

    def _group(self) -> str:
        r = self._random
        name = r.choice(("g", "g", "h", '"g"', "", "5", "~")) if r.random() < 0.4 else f"g{r.randint(0, 99)}"
        lines = [f"- name: {name}\n"] if r.random() < 0.97 else ["- rules: []\n"]
        for key, values in (
            ("interval", DURATIONS),
            ("query_offset", DURATIONS),
            ("limit", ("0", "5", "-1", "x", "1.5")),
        ):
            if r.random() < 0.1:
                lines.append(f"  {key}: {r.choice(values) if r.random() < 0.9 else self._other()}\n")
        if r.random() < 0.1:
            lines.append(f"  labels: {self._texts(LABELS, TEMPLATES)}\n")
        rules = [self._rule() for _ in range(r.choice((0, 1, 1, 2, 3)))]
        return "".join([*lines, "  rules:\n", *rules])

    def _rule(self) -> str:
        r = self._random
        kind = r.choice(("alert", "alert", "alert", "record", "record", "both", "none", "recrod"))
        name = r.choice(NAMES[:3]) if r.random() < 0.8 else r.choice(NAMES)
        fields = {"both": [f"alert: {name}", f"record: {name}"], "none": []}.get(kind, [f"{kind}: {name}"])
        expr = r.choice(EXPRS[:4]) if r.random() < 0.75 else r.choice((*EXPRS, self._other()))
        if r.random() < 0.95:
            fields.append(f"expr: {self._quoted(expr)}")
        for key in ("for", "keep_firing_for"):
            if r.random() < (0.3 if kind == "alert" else 0.03):
                fields.append(f"{key}: {r.choice(DURATIONS) if r.random() < 0.5 else '1m'}")
        if r.random() < 0.4:
            fields.append(f"labels: {self._texts(LABELS[:2] if r.random() < 0.7 else LABELS, TEMPLATES)}")
        if r.random() < (0.4 if kind == "alert" else 0.03):
            fields.append(f"annotations: {self._texts(('summary', 'b', *LABELS), TEMPLATES)}")
        if r.random() < 0.03:
            fields.append(f"{r.choice(('fro', 'expr', 'alert', 'labels'))}: {self._other()}")
        r.shuffle(fields)
        return "  - " + "\n    ".join(fields or ["{}"]) + "\n"

    def _texts(self, names: tuple[str, ...], values: tuple[str, ...]) -> str:
        r = self._random
        if r.random() < 0.05:
            return self._other()
        pairs = (f"{self._quoted(r.choice(names))}: {self._value(values)}" for _ in range(r.randint(0, 3)))
        return "{" + ", ".join(pairs) + "}"

    def _value(self, values: tuple[str, ...]) -> str:
        r = self._random
        return self._quoted("".join(r.choices(values, k=r.choice((1, 1, 2))))) if r.random() < 0.93 else self._other()

    def _quoted(self, text: str) -> str:
        escaped = text.replace("'", "''")
        return f"'{escaped}'"

    def _other(self) -> str:
        return self._random.choice(OTHERS)

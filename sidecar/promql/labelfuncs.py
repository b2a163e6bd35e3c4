"""label_replace and label_join: new labels from old ones, worked out once per set of series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import re2

from sidecar.errors import QueryError
from sidecar.model import Labels
from sidecar.promql.frame import Frame, Vec
from sidecar.promql.operator import Context, Operator, Value, checked, vector
from sidecar.promql.regex import compiled

_LONGEST = 1 << 20  # characters of a label value: nested calls that double one each time would fill any memory


Change = Callable[[Labels], Labels]


class Relabelled(Operator):
    """Each element with other labels. `make` is called at the first evaluation: its error is that of the query."""

    def __init__(self, context: Context, child: Operator, make: Callable[[], Change]) -> None:
        super().__init__(context, (child,))
        self._make = make
        self._change: Change | None = None
        self._seen: tuple[Frame, Frame] | None = None

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        vec = vector(inputs[0])
        change = self._change = self._change or self._make()
        if self._seen is None or self._seen[0] is not vec.frame:
            self._seen = (vec.frame, Frame(tuple(change(labels) for labels in vec.frame.labels)))
        return checked(Vec(self._seen[1], vec.values, vec.mask, vec.order))


def replacer(target: str, replacement: str, source: str, pattern: str) -> Change:
    """label_replace(v, target, replacement, source, pattern). Raises QueryError for a bad pattern."""
    try:
        regex = compiled(pattern)
    except re2.error:
        raise QueryError(f"invalid regular expression in label_replace(): {pattern}") from None
    if not target:
        raise QueryError("invalid destination label name in label_replace(): ")

    def change(labels: Labels) -> Labels:
        values = dict(labels)
        text = values.get(source, "")
        match = regex.search(text)
        if match is None:
            return labels
        _check_length("label_replace", len(replacement) + replacement.count("$") * len(text))
        values[target] = expanded(replacement, match, regex.groupindex)
        return tuple(sorted((name, value) for name, value in values.items() if value))

    return change


def _check_length(function: str, length: int) -> None:
    if length > _LONGEST:
        raise QueryError(f"{function}() would make a label value longer than {_LONGEST} characters")


def expanded(template: str, match: Any, names: dict[str, int]) -> str:
    """The template with `$1`, `${1}`, `$name` and `${name}` filled in; `$$` is a dollar; unknown groups are empty."""
    out: list[str] = []
    at = 0
    while at < len(template):
        dollar = template.find("$", at)
        if dollar < 0 or dollar + 1 == len(template):
            out.append(template[at:])
            break
        out.append(template[at:dollar])
        if template[dollar + 1] == "$":
            out.append("$")
            at = dollar + 2
            continue
        name, at = _group_name(template, dollar + 1)
        if name is None:
            out.append("$")
        elif name.isdecimal():
            out.append((match.group(int(name)) or "") if int(name) <= match.re.groups else "")
        else:
            out.append((match.group(name) or "") if name in names else "")
    return "".join(out)


def _group_name(template: str, at: int) -> tuple[str | None, int]:
    """The group name that starts at `at` and where it ends; None where there is none."""
    if template[at] == "{":
        end = template.find("}", at)
        inside = template[at + 1 : end] if end > 0 else ""
        ok = bool(inside) and all(c.isalnum() or c == "_" for c in inside)
        return (inside, end + 1) if ok else (None, at)
    end = at
    while end < len(template) and (template[end].isalnum() or template[end] == "_"):
        end += 1
    return (template[at:end], end) if end > at else (None, at)


def joiner(target: str, separator: str, sources: tuple[str, ...]) -> Change:
    """label_join(v, target, separator, sources…)."""
    if not target or any(not source for source in sources):
        raise QueryError("invalid label name in label_join()")

    def change(labels: Labels) -> Labels:
        values = dict(labels)
        parts = [values.get(source, "") for source in sources]
        _check_length("label_join", sum(len(part) + len(separator) for part in parts))
        values[target] = separator.join(parts)
        return tuple(sorted((name, value) for name, value in values.items() if value))

    return change

"""What is wrong with a value that a person wrote, in that person's words: pydantic's own speak of inputs and tuples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sidecar import durations

_MUST_BE = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "date_from_datetime_inexact": "a date like 2026-01-31",
    "date_from_datetime_parsing": "a date like 2026-01-31",
    "date_parsing": "a date like 2026-01-31",
    "date_type": "a date like 2026-01-31",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "frozen_set_type": "a list",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "int_type": "a whole number",
    "list_type": "a list",
    "mapping_type": "a mapping",
    "model_attributes_type": "a mapping",
    "model_type": "a mapping",
    "path_type": "the path of a file",
    "set_type": "a list",
    "string_type": "text: write it in quotes",
    "tuple_type": "a list",
}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def plain(finding: Mapping[str, Any], written: str | None = None) -> str:
    """One of `ValidationError.errors()` as what must be there instead. `written` is the value as it stands in the file:
    where that is a duration, bounds are given as durations, too."""
    kind, context = str(finding["type"]), finding.get("ctx", {})
    if kind == "missing":
        return "is missing"
    if kind in _MUST_BE:
        return f"must be {_MUST_BE[kind]}"
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        return f"must be {words} {_bound(context[name], written)}"
    if kind in ("literal_error", "enum"):
        return f"must be {context['expected']}"
    if kind in ("string_too_short", "too_short"):
        least = context["min_length"]
        return "must not be empty" if least == 1 else f"is too short: at least {least}"
    if kind in ("string_too_long", "too_long"):
        return f"is too long: at most {context['max_length']}"
    if kind == "string_pattern_mismatch":
        return f"must match {context['pattern']}"
    message = str(finding["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return message.replace("Input should be", "must be", 1)


def _bound(number: float, written: str | None) -> str:
    if written is None or written.isdigit():
        return f"{number:g}"
    try:
        durations.parse(written)
    except ValueError:
        return f"{number:g}"
    return durations.text(int(number))

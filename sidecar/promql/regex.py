"""Label regexes: RE2, so that no pattern takes more than linear time, anchored at both ends as in Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import re2

from sidecar.promql.plan import Matcher, Op


def compiled(pattern: str) -> Any:
    """The anchored pattern; `.` also matches a newline. Raises re2.error."""
    options = re2.Options()
    options.log_errors = False
    return re2.compile(f"^(?s:{pattern})$", options)


def check(pattern: str) -> str:
    """What is wrong with a pattern, empty when nothing is."""
    try:
        compiled(pattern)
    except re2.error as e:
        reason = e.args[0] if e.args else "bad pattern"
        return f"bad regular expression: {reason.decode() if isinstance(reason, bytes) else reason}"
    return ""


def predicate(matcher: Matcher) -> Callable[[str], bool]:
    """The matcher as a function of the label's value."""
    value = matcher.value
    if matcher.op is Op.EQUAL:
        return lambda text: text == value
    if matcher.op is Op.NOT_EQUAL:
        return lambda text: text != value
    search = compiled(value).search
    if matcher.op is Op.MATCH:
        return lambda text: search(text) is not None
    return lambda text: search(text) is None

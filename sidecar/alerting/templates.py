"""Label and annotation templates: parsed once at load, expanded only where somebody looks.

What rules nearly always write (`{{ $labels.x }}`, `{{ $value | humanize }}`, `{{ printf "%.2f" $value }}`) is split
once into text and small functions; anything else goes to a full Go template engine behind `Template`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sidecar.alerting.gotext import HUMANIZERS, shortest, special
from sidecar.errors import TemplateError
from sidecar.model import Labels

Query = Callable[[str], Iterable[tuple[Labels, float]]]
"""The template function `query`, bound to the instant of the evaluation."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every template of a sidecar can see beside its sample."""

    external_labels: Labels = ()
    external_url: str = ""


@dataclass(frozen=True, slots=True)
class Scope:
    """What one expansion can see. `labels` are those of the sample, `__name__` included."""

    labels: Labels
    value: float
    around: Surroundings = field(default_factory=Surroundings)
    query: Query | None = None


Part = str | Callable[[Scope], str]


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template. Equal when the source is."""

    source: str
    parts: tuple[Part, ...] = field(compare=False, repr=False)

    @classmethod
    def plain(cls, text: str) -> Template:
        """Text that is not to be parsed: a recording rule's label value."""
        return cls(text, (text,))

    @property
    def text(self) -> str | None:
        """The text of a template without any action, else None."""
        if not self.parts:
            return ""
        return self.parts[0] if len(self.parts) == 1 and isinstance(self.parts[0], str) else None

    def render(self, scope: Scope) -> str:
        """The expanded text. Raises TemplateError."""
        return "".join([part if isinstance(part, str) else part(scope) for part in self.parts])

    def expand(self, scope: Scope) -> str:
        """The expanded text, or `<error expanding template: …>`: a broken template never loses an alert."""
        try:
            return self.render(scope)
        except TemplateError as e:
            return f"<error expanding template: {e}>"


Engine = Callable[[str], Callable[[Scope], str]]
"""Parses a whole Go template. Raises TemplateError."""


class TemplateParser:
    """Parses templates; the full engine is loaded the first time a template needs it."""

    def __init__(self, engine: Engine | None = None) -> None:
        self._engine = engine

    def parse(self, source: str) -> Template:
        """Raises TemplateError for bad syntax, an undefined function or an undefined variable."""
        if "{{" not in source:
            return Template(source, (source,) if source else ())
        parts = _fast(source)
        return Template(source, (self._full(source),) if parts is None else parts)

    def _full(self, source: str) -> Callable[[Scope], str]:
        if self._engine is None:
            from sidecar.alerting.gotemplates import GoTemplates  # 80 ms to import, and most rules never need it

            self._engine = GoTemplates().parse
        return self._engine(source)


# --- the fast path ----------------------------------------------------------------------------------------------------

_ACTION = re.compile(r"\{\{(?P<body>(?:[^\"`{}]|\"[^\"\\{}\n]*\")*)\}\}")
_LABEL = re.compile(r"(?:\$l|\.L)abels\.([A-Za-z_][A-Za-z0-9_]*)$", re.ASCII)
_EXTERNAL = re.compile(r"(?:\$e|\.E)xternalLabels\.([A-Za-z_][A-Za-z0-9_]*)$", re.ASCII)
_PRINTF = re.compile(r'printf\s+"(?P<format>[^"]*)"(?:\s+(?P<atom>\S+))?$')
_VERB = re.compile(r"%(?P<precision>\.\d{1,2})?(?P<verb>[fegvs%])")
_TEXT_FUNCTIONS: dict[str, Callable[[str], str]] = {"toUpper": str.upper, "toLower": str.lower}

Value = str | float
Get = Callable[[Scope], Value]


def _fast(source: str) -> tuple[Part, ...] | None:
    """The parts of a template made of known actions only, else None."""
    parts: list[Part] = []
    position = 0
    while (start := source.find("{{", position)) >= 0:
        match = _ACTION.match(source, start)
        if match is None or (get := _pipeline(match["body"])) is None:
            return None
        if start > position:
            parts.append(source[position:start])
        parts.append(_printed(get))
        position = match.end()
    if position < len(source):
        parts.append(source[position:])
    return tuple(parts)


def _printed(get: Get) -> Callable[[Scope], str]:
    def part(scope: Scope) -> str:
        value = get(scope)
        return value if isinstance(value, str) else shortest(value)

    return part


def _pipeline(body: str) -> Get | None:
    if body.startswith("-") or body.endswith("-"):
        return None  # a trim marker, or the start of a number
    first, *rest = _split(body)
    get = _atom(first) or _call(first)
    for stage in rest:
        get = None if get is None else _applied(stage, get)
    return get


def _split(body: str) -> list[str]:
    """At the bars outside of strings."""
    return [piece.strip() for piece in re.split(r'\|(?=(?:[^"]*"[^"]*")*[^"]*$)', body)]


def _atom(text: str) -> Get | None:
    if text in ("$value", ".Value"):
        return lambda scope: scope.value
    if text in ("$labels", ".Labels"):
        return lambda scope: "map[" + " ".join([f"{name}:{value}" for name, value in scope.labels]) + "]"
    if text in ("$externalURL", ".ExternalURL"):
        return lambda scope: scope.around.external_url
    if match := _LABEL.match(text):
        name = match[1]
        return lambda scope: _lookup(scope.labels, name)
    if match := _EXTERNAL.match(text):
        name = match[1]
        return lambda scope: _lookup(scope.around.external_labels, name)
    return None


def _lookup(labels: Labels, name: str) -> str:
    for key, value in labels:
        if key == name:
            return value
    return ""


def _call(text: str) -> Get | None:
    """`humanize $value`, `printf "%.2f" $value`."""
    if match := _PRINTF.match(text):
        get = _atom(match["atom"] or "")
        return None if get is None or match["atom"].endswith("abels") else _format(match["format"], get)
    function, _, argument = text.partition(" ")
    get = _atom(argument.strip())
    return None if get is None or argument.strip().endswith("abels") else _applied(function, get)


def _applied(stage: str, get: Get) -> Get | None:
    if humanizer := HUMANIZERS.get(stage):
        return lambda scope: humanizer(get(scope))
    if function := _TEXT_FUNCTIONS.get(stage):
        return lambda scope: function(_text(get(scope), stage))
    if (match := _PRINTF.match(stage)) and not match["atom"]:
        return _format(match["format"], get)
    return None


def _text(value: Value, function: str) -> str:
    if not isinstance(value, str):
        raise TemplateError(f"wrong type for value: {function} expects text, got a number")
    return value


def _format(layout: str, get: Get) -> Get | None:
    """Go's Sprintf with exactly one operand and nothing but plain verbs; None where it takes the full engine."""
    if "\\" in layout:
        return None
    pieces: list[str | tuple[str, str]] = []
    position = 0
    for match in _VERB.finditer(layout):
        pieces.append(layout[position : match.start()])
        position = match.end()
        if match["verb"] == "%":
            if match["precision"]:
                return None
            pieces.append("%")
        else:
            pieces.append((match["verb"], match["precision"] or ""))
    pieces.append(layout[position:])
    operands = [p for p in pieces if isinstance(p, tuple)]
    if len(operands) != 1 or any(isinstance(p, str) and p != "%" and "%" in p for p in pieces):
        return None
    verb, precision = operands[0]
    if verb in "vs" and precision:
        return None

    def formatted(scope: Scope) -> str:
        value = get(scope)
        return "".join([p if isinstance(p, str) else _operand(value, verb, precision) for p in pieces])

    return formatted


def _operand(value: Value, verb: str, precision: str) -> str:
    if isinstance(value, str):
        kept = value[: int(precision[1:])] if precision else value
        return value if verb in "vs" else f"%!{verb}(string={kept})"
    if verb == "s":
        return f"%!s(float64={shortest(value)})"
    if verb == "v" or (verb == "g" and not precision):
        return shortest(value)
    return special(value) or format(value, (precision or ".6") + verb)

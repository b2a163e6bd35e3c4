"""Parameters that use the alert: `{{ $labels.x }}` and `{{ $value }}` in a response's `with:`, typed after rendering.

A template sees what an annotation's template sees, except queries: a plan is a pure function of the alert and the
trainer. A label that the alert does not have is an error and never an empty text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from sidecar.alerting.templates import Scope, Template, TemplateParser
from sidecar.errors import ResponseError, TemplateError
from sidecar.model import Alert, labels_of
from sidecar.wording import plain

Place = tuple[str | int, ...]

_LABEL = re.compile(r"(?:\$l|\.L)abels\.([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
_QUERIES = re.compile(r"\{\{[^}]*\b(?:query|first|externalLabels|ExternalLabels|externalURL|ExternalURL)\b")


@dataclass(frozen=True, slots=True)
class Templated:
    """`with:` as written, its schema, and the templates in it by place."""

    raw: Mapping[str, Any]
    model: type[BaseModel]
    templates: Mapping[Place, Template]

    def render(self, alert: Alert) -> BaseModel:
        """The parameters for an alert. Raises ResponseError that names the parameter and what is wrong with it."""
        labels = {**dict(alert.labels), "alertname": alert.name}
        scope = Scope(labels_of(labels), alert.value)
        texts = {place: self._rendered(place, template, labels, scope) for place, template in self.templates.items()}
        try:
            params = self.model.model_validate(_with(self.raw, texts))
        except ValidationError as e:
            first = e.errors(include_url=False)[0]
            where, given = ".".join(str(p) for p in first["loc"]) or "with", first["input"]
            raise ResponseError(f"{where}: {plain(first)} (it is {given!r})") from None
        for place, value in _leaves(params.model_dump()):
            if isinstance(value, float) and not math.isfinite(value):
                raise ResponseError(f"{_name(place)}: must be a finite number (it is {value!r})")
        return params

    @staticmethod
    def _rendered(place: Place, template: Template, labels: Mapping[str, str], scope: Scope) -> str:
        for name in _LABEL.findall(template.source):
            if name not in labels:
                raise ResponseError(f"{_name(place)}: the alert has no label {name!r}")
        try:
            return template.render(scope)
        except TemplateError as e:
            raise ResponseError(f"{_name(place)}: {e}") from None


def templates_in(raw: Mapping[str, Any], parser: TemplateParser) -> dict[Place, Template]:
    """Every text with a template in it, parsed. Raises TemplateError; its `args` are the message and the place."""
    found: dict[Place, Template] = {}
    for place, value in _leaves(raw):
        if isinstance(value, str) and "{{" in value:
            if _QUERIES.search(value):
                raise TemplateError(f"{_name(place)}: a parameter sees $labels and $value of the alert, nothing else")
            try:
                found[place] = parser.parse(value)
            except TemplateError as e:
                raise TemplateError(f"{_name(place)}: {e}", e.offset) from None
    return found


def _leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, (*place, key))
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from _leaves(inner, (*place, i))
    else:
        yield place, value


def _with(value: Any, texts: Mapping[Place, str], place: Place = ()) -> Any:
    if isinstance(value, Mapping):
        return {key: _with(inner, texts, (*place, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with(inner, texts, (*place, i)) for i, inner in enumerate(value)]
    return texts.get(place, value)


def _name(place: Place) -> str:
    return ".".join(str(p) for p in place) or "with"

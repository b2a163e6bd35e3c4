"""The full Go template engine with Prometheus's template functions: what the fast path of `templates` cannot do.

Known to differ from Go: `gt` and `ge` with NaN (Go calls it greater), `%05.1f` of a negative number (padded first).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote_plus, urlsplit

import re2
from gotime import Time
from gotpl import (
    ExecutionBudget,
    SandboxPolicy,
    Template,
    TemplateExecutionError,
    TypedMap,
)
from gotpl import TemplateError as EngineError
from gotpl import TemplateSyntaxError as EngineSyntaxError

from sidecar import durations
from sidecar.alerting import gotext
from sidecar.alerting.templates import Scope
from sidecar.errors import TemplateError

_PREFIX = (
    "{{$labels := .Labels}}{{$externalLabels := .ExternalLabels}}{{$externalURL := .ExternalURL}}{{$value := .Value}}"
)
# Go parses an assignment to a variable that does not exist as if it declared one, and fails when it gets there.
_ASSIGNMENT = re.compile(r"\$\w+(?:\s*,\s*\$\w+)?\s*(?P<sign>=)(?!=)")
_UNDECLARED = "undeclared"
_FAILING = f":= {_UNDECLARED} "

# A rule file is configuration, not code: no template may run away with the tick.
_BUDGET = ExecutionBudget(
    max_output_chars=65_536, max_iterations=10_000, max_template_depth=50, max_function_calls=10_000
)


class _Struct:
    """A Go struct: its fields and nothing else; asking for another is an error, as in Go."""

    __slots__ = ("_fields", "_type")

    def __init__(self, type_name: str, fields: Mapping[str, object]) -> None:
        self._type, self._fields = type_name, fields

    def __gotemplate_lookup__(self, name: str) -> object:
        if name not in self._fields:
            raise TemplateExecutionError(f"can't evaluate field {name} in type {self._type}")
        return self._fields[name]


class GoTemplates:
    """Parses Go templates against Prometheus's functions. One expansion at a time (not for use from two threads)."""

    def __init__(self) -> None:
        self._scope: Scope | None = None
        self._functions = self._prometheus()

    def parse(self, source: str) -> Callable[[Scope], str]:
        """Raises TemplateError with the offset in `source` where the engine tells it."""
        written, added = _PREFIX + source, list[int]()
        while True:
            try:
                template = self._template(
                    written, {**self._functions, _UNDECLARED: _undeclared} if added else self._functions
                )
            except EngineSyntaxError as e:
                offset = len(written.encode()[: e.position].decode(errors="replace"))
                if assignment := _ASSIGNMENT.match(written, offset):
                    written = written[: assignment.start("sign")] + _FAILING + written[assignment.end("sign") :]
                    added.append(assignment.start("sign"))
                    continue
                offset -= len(_PREFIX) + (len(_FAILING) - 1) * sum(at < offset for at in added)
                raise TemplateError(str(e).partition(": ")[2], max(offset, 0)) from None
            except EngineError as e:
                raise TemplateError(str(e)) from None
            return lambda scope: self._render(template, scope)

    def _template(self, written: str, functions: dict[str, Callable[..., Any]]) -> Template:
        sandbox = SandboxPolicy(allow_functions=functions, allow_custom_lookup=True, default_budget=_BUDGET)
        return Template(written, name="template", functions=functions, missing_key="zero", sandbox=sandbox)

    def _render(self, template: Template, scope: Scope) -> str:
        data = _Struct(
            "struct",
            {
                "Labels": TypedMap(dict(scope.labels), "", "string", "string"),
                "ExternalLabels": TypedMap(dict(scope.around.external_labels), "", "string", "string"),
                "ExternalURL": scope.around.external_url,
                "Value": scope.value,
            },
        )
        outer, self._scope = self._scope, scope
        try:
            return template.render(data)
        except TemplateError:
            raise
        except Exception as e:
            raise TemplateError(f"error executing template: {e}") from e
        finally:
            self._scope = outer

    def _prometheus(self) -> dict[str, Callable[..., Any]]:
        return {
            **gotext.HUMANIZERS,
            "query": self._query,
            "first": _first,
            "label": lambda name, sample: _field(sample, "Labels").get(name, ""),
            "value": lambda sample: _field(sample, "Value"),
            "strvalue": lambda sample: _field(sample, "Labels").get("__value__", ""),
            "sortByLabel": lambda name, result: sorted(result, key=lambda s: _field(s, "Labels").get(name, "")),
            "args": lambda *values: {f"arg{n}": value for n, value in enumerate(values)},
            "toTime": _to_time,
            "parseDuration": _parse_duration,
            "match": lambda pattern, text: _regex(pattern).search(_string(text)) is not None,
            "reReplaceAll": _replace_all,
            "title": lambda text: re.sub(r"(?<![\w'’])\w", lambda m: m[0].upper(), _string(text)),
            "toUpper": lambda text: _string(text).upper(),
            "toLower": lambda text: _string(text).lower(),
            "safeHtml": _string,
            "stripPort": lambda text: _host_port(_string(text))[0],
            "stripDomain": _strip_domain,
            "graphLink": lambda expr: f"/graph?g0.expr={quote_plus(_string(expr))}&g0.tab=0",
            "tableLink": lambda expr: f"/graph?g0.expr={quote_plus(_string(expr))}&g0.tab=1",
            "externalURL": lambda: self._now().around.external_url,
            "pathPrefix": lambda: urlsplit(self._now().around.external_url).path,
        }

    def _now(self) -> Scope:
        if self._scope is None:
            raise TemplateError("a template function was called outside of an expansion")
        return self._scope

    def _query(self, expr: object) -> list[_Struct]:
        query = self._now().query
        if query is None:
            raise TemplateError("query is not available here")
        return [
            _Struct("sample", {"Labels": TypedMap(dict(labels), "", "string", "string"), "Value": value})
            for labels, value in query(_string(expr))
        ]


class _Time:
    """A Go time.Time in UTC, with the methods templates use."""

    __slots__ = ("_ms",)

    def __init__(self, ms: int) -> None:
        self._ms = ms

    def __str__(self) -> str:
        return gotext.time_text(self._ms)

    def __gotemplate_lookup__(self, name: str) -> object:
        methods: Mapping[str, Callable[..., object]] = {
            "String": self.__str__,
            "Unix": self._unix,
            "UnixMilli": self._unix_milli,
            "Format": self._format,
        }
        if name not in methods:
            raise TemplateExecutionError(f"can't evaluate field {name} in type *time.Time")
        return methods[name]

    def _unix(self) -> int:
        return self._ms // 1000

    def _unix_milli(self) -> int:
        return self._ms

    def _format(self, layout: str) -> str:
        return str(Time.from_unix_milliseconds(self._ms).utc().format(layout))


def _undeclared(*_values: object) -> None:
    raise TemplateError("undefined variable: assigned with = and never declared with :=")


def _first(result: list[_Struct]) -> _Struct:
    if not result:
        raise TemplateError("first() called on vector with no elements")
    return result[0]


def _field(sample: object, name: str) -> Any:
    if not isinstance(sample, _Struct):
        raise TemplateError("expected a sample of a query result")
    return sample.__gotemplate_lookup__(name)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TemplateError(f"expected text, got {type(value).__name__}")
    return value


def _to_time(given: object) -> _Time:
    ms = gotext.unix_milliseconds(given)
    if ms is None:
        raise TemplateError("value is NaN or Inf")
    return _Time(ms)


def _parse_duration(text: object) -> float:
    try:
        return durations.parse(_string(text)) / 1000
    except ValueError as e:
        raise TemplateError(str(e)) from None


def _regex(pattern: object) -> Any:
    try:
        return re2.compile(_string(pattern))
    except re2.error as e:
        raise TemplateError(f"error parsing regexp: {e}") from None


def _replace_all(pattern: object, replacement: object, text: object) -> str:
    compiled = _regex(pattern)
    names: Mapping[str, int] = compiled.groupindex

    def expanded(match: Any) -> str:
        def group(reference: re.Match[str]) -> str:
            if reference[0] == "$$":
                return "$"
            name = reference["braced"] or reference["bare"]
            number = int(name) if name.isdigit() else names.get(name, -1)
            return (match[number] or "") if 0 <= number <= compiled.groups else ""

        return re.sub(r"\$\$|\$(?:\{(?P<braced>\w+)\}|(?P<bare>\w+))", group, _string(replacement))

    return str(compiled.sub(expanded, _string(text)))


def _host_port(text: str) -> tuple[str, str]:
    """Host and port; the whole text and no port where it is not `host:port` by Go's net.SplitHostPort."""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        good = bracket and port.startswith(":") and not set("[]:") & set(port[1:]) and "[" not in host
        return (host, port[1:]) if good else (text, "")
    host, colon, port = text.rpartition(":")
    return (host, port) if colon and ":" not in host and not set("[]") & set(text) else (text, "")


def _strip_domain(text: object) -> str:
    host, port = _host_port(_string(text))
    try:
        ipaddress.ip_address(host)
        return _string(text)
    except ValueError:
        short = host.split(".")[0]
    if not port:
        return short
    return f"[{short}]:{port}" if ":" in short else f"{short}:{port}"

"""Plugins in words: one row each, or everything that a remediation says about itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from sidecar.cli.answers import terminal
from sidecar.hooks import Case, Remediation
from sidecar.model import JSON, Change, Skip
from sidecar.plugins import REMEDIATIONS, Registry, broken_case, details, installed

if TYPE_CHECKING:
    from rich.table import Table


def rows(registry: Registry) -> list[JSON]:
    """Every installed plugin, loaded or not."""
    broken = {problem.plugin for problem in registry.problems}
    out = []
    for group, name, distribution in installed():
        kind = "remediation" if group == REMEDIATIONS else "collector"
        there = registry.remediations if group == REMEDIATIONS else registry.collectors
        state = "loaded" if name in there else "broken" if name in broken else "not allowed"
        plugin = registry.remediations.get(name) if group == REMEDIATIONS else None
        out.append(
            {
                "kind": kind,
                "name": name,
                "state": state,
                "package": distribution,
                "touches": list(plugin.knobs) if plugin is not None else [],
                "what": summary(there[name]) if name in there else "",
            }
        )
    return sorted(out, key=lambda row: (row["kind"] != "remediation", row["name"]))


def show_rows(found: Sequence[JSON]) -> None:
    """A table."""
    cells = [(row["kind"], row["name"], row["state"], ", ".join(row["touches"]), row["what"]) for row in found]
    terminal().print(_table(cells, "kind", "name", "state", "touches", "what"))


def _table(cells: Iterable[Sequence[str]], *headers: str) -> Table:
    """Texts as they are: a range in PromQL is no markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*headers, box=None, pad_edge=False, header_style="bold", show_header=bool(headers))
    for row in cells:
        table.add_row(*(Text(text, overflow="fold") for text in row))
    return table


def summary(plugin: Any) -> str:
    """The first line of its module's docstring, or of its own."""
    kind = plugin if inspect.isclass(plugin) else type(plugin)
    module = inspect.getmodule(kind)
    text = inspect.getdoc(module) or inspect.getdoc(kind) or ""
    return text.split("\n", 1)[0]


def as_data(registry: Registry, plugin: Remediation) -> JSON:
    """Everything about one remediation; its cases are run for it."""
    told = details(plugin)
    return {
        "name": plugin.name,
        "what": summary(plugin),
        "from": registry.origin(REMEDIATIONS, plugin.name),
        "actuator": plugin.actuator,
        "knobs": list(plugin.knobs),
        "permissions": list(told.permissions),
        "reads": {name: reading.expr for name, reading in told.reads.items()},
        "parameters": plugin.params.model_json_schema(),
        "example": dict(plugin.example),
        "unproven": told.unproven(plugin.params.model_validate(plugin.example)),
        "cases": [_case(plugin, case) for case in told.cases],
    }


def _case(plugin: Remediation, case: Case) -> JSON:
    problem = broken_case(plugin, case)
    return {
        "what": case.what,
        "with": dict(case.params),
        "alert": case.alert.name,
        "knobs": {name: knob.value for name, knob in case.view.knobs.items()},
        "facts": dict(case.view.facts),
        "answer": _answer(case.answer),
        "holds": not problem,
        **({"problem": problem} if problem else {}),
    }


def _answer(answer: Change | Skip) -> JSON:
    if isinstance(answer, Skip):
        return {"skip": answer.reason}
    return {"change": dict(answer.values)}


def show(data: Mapping[str, Any]) -> None:
    """A page about one remediation."""
    out = terminal()
    out.print(data["name"], style="bold", markup=False)
    out.print(data["what"], markup=False)
    out.print(f"from {data['from']}", markup=False, style="dim")
    facts = [("changes", f"{data['actuator']}: {', '.join(data['knobs'])}")]
    facts += [("must be allowed", permission) for permission in data["permissions"]]
    facts += [(f"reads {name}", expr) for name, expr in data["reads"].items()]
    if data["unproven"]:
        facts.append(("only suggests", data["unproven"]))
    out.print(_table(facts))
    out.print()
    out.print(_table(parameters(data["parameters"]), "parameter", "default", "may be", "meaning"))
    out.print("\nexample", style="bold")
    response = {"remediation": data["name"], "with": data["example"]}
    out.print(yaml.safe_dump(response, sort_keys=False, allow_unicode=True).rstrip(), markup=False)
    for case in data["cases"]:
        out.print(f"\n{'holds' if case['holds'] else 'BROKEN'}: {case['what']}", style="bold", markup=False)
        out.print(f"  {case['alert']}, {_said(case['knobs'])}, with {_said(case['with'])}", markup=False)
        out.print(f"  -> {case.get('problem') or _said(case['answer'])}", markup=False)


def parameters(schema: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """(name, default, what it may be, description) of each parameter of a JSON schema."""
    wanted = schema.get("required", ())
    return [
        (
            name,
            "required" if name in wanted else yaml.safe_dump(part.get("default")).splitlines()[0],
            _range(part),
            part.get("description", ""),
        )
        for name, part in schema.get("properties", {}).items()
    ]


def _range(part: Mapping[str, Any]) -> str:
    if "anyOf" in part:
        return " or ".join(_range(one) for one in part["anyOf"])
    if "enum" in part:
        return ", ".join(map(str, part["enum"]))
    low = part.get("minimum", part.get("exclusiveMinimum"))
    high = part.get("maximum", part.get("exclusiveMaximum"))
    kind = {"integer": "whole number", "null": "nothing", "object": "mapping"}.get(
        part.get("type", ""), part.get("type", "any")
    )
    lower = "" if low is None else f" {'above' if 'exclusiveMinimum' in part else 'from'} {low:g}"
    upper = "" if high is None else f" {'below' if 'exclusiveMaximum' in part else 'to'} {high:g}"
    return f"{kind}{lower}{upper}"


def _said(values: Mapping[str, Any]) -> str:
    parts = [f"{name} {_said(value) if isinstance(value, Mapping) else value}" for name, value in values.items()]
    return ", ".join(parts) or "nothing set"

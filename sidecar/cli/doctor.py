"""`spikewatch doctor`: what this pod can and cannot see, and the one change that would fix each."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidecar.errors import ConfigError

if TYPE_CHECKING:
    from sidecar.app.doctor import Report
    from sidecar.model import JSON, MetricInfo, Status


@click.command()
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="spikewatch.yaml; without it the defaults and the environment apply.",
)
@click.option(
    "--metrics", "list_metrics", is_flag=True, help="Lists every metric: seen here, scope, checked against what."
)
@click.option("--json", "as_json", is_flag=True, help="JSON with everything.")
@click.option("--strict", is_flag=True, help="Exits 1 where something that is turned on cannot be seen.")
def doctor(config: Path | None, list_metrics: bool, as_json: bool, strict: bool) -> None:
    """Tries every collector once, here and now, and says what is missing, why, and what would help.

    Run it in the sidecar's container: another one sees other things. Nothing is changed, nothing is sent.
    """
    from sidecar.app.doctor import examine
    from sidecar.plugins import Registry, allowed
    from sidecar.settings import load

    try:
        loaded = load(config)
        registry = Registry(allow=allowed(loaded.settings.plugins.allow))
        registry.discover()
        report = examine(loaded, registry)
    except ConfigError as e:
        for problem in e.problems:
            click.echo(str(problem), err=True)
        sys.exit(1)
    for broken in registry.problems:
        click.echo(f"spikewatch: {broken}", err=True)
    if as_json:
        click.echo(json.dumps(_data(report), indent=2))
    else:
        for line in _lines(report):
            click.echo(line)
        if list_metrics:
            for line in _metrics(report):
                click.echo(line)
    sys.exit(1 if strict and not report.fine else 0)


def _lines(report: Report) -> Iterator[str]:
    for place in report.places:
        yield from _finding("", place.what, place.status, place.detail)
    for collector in report.collectors:
        detail = f"{len(collector.seen)} metrics, {collector.samples} series" if collector.seen else ""
        yield from _finding("", f"collector {collector.name}", collector.status, detail)
        for finding in collector.findings:
            yield from _finding("  ", finding.what, finding.status, finding.detail)
    found = Counter(_against(info) for info in report.catalogue)
    yield (
        f"metrics: {len(report.catalogue)} in all; checked on the real source {found['device']}, with a stand-in"
        f" {found['fake']}, not at all {found['none']}, the sidecar's own {found['own']}. A response built on one that"
        " was not checked on the real source suggests at most."
    )


def _finding(indent: str, what: str, status: Status, detail: str) -> Iterator[str]:
    state = status.state.value + (f" ({status.reason})" if status.reason else "")
    yield f"{indent}{what}: {state}{f', {detail}' if detail else ''}"
    if status.fix:
        yield f"{indent}  fix: {status.fix}"


def _metrics(report: Report) -> Iterator[str]:
    seen = {name for collector in report.collectors for name in collector.seen}
    for info in sorted(report.catalogue, key=lambda i: i.name):
        what = info.verified
        checked = f"{_against(info)} {what.date} {what.detail}".rstrip() if what else "own"
        mark = "seen" if info.name in seen else "-"
        yield f"{mark:5}{info.name}  [{info.scope or 'by label'}, {info.quality}]  {checked}"


def _against(info: MetricInfo) -> str:
    return info.verified.against if info.verified else "own"


def _data(report: Report) -> JSON:
    seen = {name for collector in report.collectors for name in collector.seen}
    return {
        "places": [_status(f.what, f.status, f.detail) for f in report.places],
        "collectors": [
            {
                **_status(c.name, c.status, ""),
                "series": c.samples,
                "findings": [_status(f.what, f.status, f.detail) for f in c.findings],
            }
            for c in report.collectors
        ],
        "metrics": [
            {
                "name": info.name,
                "type": info.kind,
                "unit": info.unit,
                "help": info.help,
                "labels": list(info.labels),
                "source": info.source,
                "scope": info.scope,
                "quality": info.quality,
                "verified": {
                    "against": _against(info),
                    "date": info.verified.date if info.verified else "",
                    "detail": info.verified.detail if info.verified else "",
                },
                "seen": info.name in seen,
            }
            for info in sorted(report.catalogue, key=lambda i: i.name)
        ],
    }


def _status(what: str, status: Status, detail: str) -> JSON:
    return {"what": what, "state": status.state.value, "reason": status.reason, "fix": status.fix, "detail": detail}

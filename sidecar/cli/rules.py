"""`spikewatch rules list | show | explain`: which signals there are, their numbers, and how an alert stands now."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from sidecar.cli.asking import fail

if TYPE_CHECKING:
    from sidecar.app.rulepack import AlertInfo, RulePack
    from sidecar.errors import ConfigError
    from sidecar.plugins import Registry

_FILES = click.argument("files", nargs=-1, type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
_RESPONSES = click.option(
    "--responses",
    "response_files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Files of responses instead of the shipped one.",
)


@click.group()
def rules() -> None:
    """Explains rule files: signals, thresholds, metrics and responses. Needs no running sidecar."""


@rules.command("list")
@_FILES
@click.option("--extra", is_flag=True, help="Those beyond the 21 signals, too.")
@_RESPONSES
@_JSON
def list_(files: tuple[Path, ...], extra: bool, response_files: tuple[Path, ...], as_json: bool) -> None:
    """Every signal of FILES, by default the 21 of the shipped rules.

    JSON: a list of {signal, layer, at, alerts, thresholds, metrics, response}. Exits 1 when a file would be refused.
    """
    from sidecar.cli.rules_text import rows, show_rows

    pack, _ = _read(files, response_files, extra=extra)
    found = rows(pack.signals())
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        show_rows(found)


@rules.command()
@click.argument("name")
@_FILES
@_RESPONSES
@_JSON
def show(name: str, files: tuple[Path, ...], response_files: tuple[Path, ...], as_json: bool) -> None:
    """The alerts called NAME, or those of the signal NAME: expression, thresholds, metrics, responses.

    Exits 1 when there are none.
    """
    from sidecar.cli.rules_text import as_data, show_alert

    pack, registry = _read(files, response_files, extra=True)
    found = [as_data(alert, pack, registry) for alert in _named(pack, name)]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for number, data in enumerate(found):
        if number:
            click.echo()
        show_alert(data)


@rules.command()
@click.argument("alert")
@_FILES
@_RESPONSES
@click.option("--url", default="http://127.0.0.1:9478", show_default=True, help="A sidecar or Prometheus to ask.")
@click.option(
    "--token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Holds a bearer token to send."
)
@_JSON
def explain(
    alert: str,
    files: tuple[Path, ...],
    response_files: tuple[Path, ...],
    url: str,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """What ALERT reads, its thresholds and why, where it is evaluated, and how things stand.

    Values come from a sidecar or Prometheus at --url; where none answers, the rest is told. Exits 1 when there is no
    such alert.
    """
    from sidecar.cli.query import sent_headers
    from sidecar.cli.rules_now import Now, ask
    from sidecar.cli.rules_text import as_data, show_alert, show_now

    pack, registry = _read(files, response_files, extra=True)
    told = []
    for one in _named(pack, alert):
        now: Now = ask(one, url, sent_headers((), token_file))
        told.append((as_data(one, pack, registry, whole=True), now))
    if as_json:
        click.echo(json.dumps([data | {"now": now.as_data()} for data, now in told], indent=2))
        return
    for number, (data, now) in enumerate(told):
        if number:
            click.echo()
        show_alert(data)
        show_now(now)


def _named(pack: RulePack, name: str) -> tuple[AlertInfo, ...]:
    found = pack.named(name)
    if not found:
        near = pack.nearest(name)
        meant = f"did you mean {near}?" if near else "`spikewatch rules list` tells which there are"
        fail(f"no alert and no signal is called {name!r}; {meant}")
    return found


def _read(files: tuple[Path, ...], response_files: tuple[Path, ...], *, extra: bool) -> tuple[RulePack, Registry]:
    from sidecar.app.files import shipped_folder
    from sidecar.app.rulepack import read_pack, shipped_files
    from sidecar.errors import ConfigError
    from sidecar.plugins import Registry
    from sidecar.responses.loader import load_responses
    from sidecar.yamlfile import Document

    registry = Registry()
    registry.discover()
    try:
        responses = [
            response
            for path in response_files or (shipped_folder() / "responses.yaml",)
            for response in load_responses(Document.read(path), registry.remediations).responses
        ]
        return read_pack(files or shipped_files(extra=extra), responses), registry
    except ConfigError as e:
        _refused(e)


def _refused(error: ConfigError) -> NoReturn:
    for problem in error.problems:
        click.echo(str(problem), err=True)
    sys.exit(1)

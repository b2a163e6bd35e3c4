"""`spikewatch test`: runs unit tests of rules, in promtool's format, and of responses, on our own engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from sidecar.alerting.testreport import Report


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--face",
    type=click.Choice(["incremental", "naive"]),
    default="incremental",
    help="How expressions are evaluated: as the sidecar does, or the plain way.",
)
def test(files: tuple[Path, ...], face: Literal["incremental", "naive"]) -> None:
    """Runs unit-test files as `promtool test rules` does, and those with `response_files` on a scripted trainer.

    Exits 0 when every check of every file holds, 1 when one fails or a file cannot be run.
    """
    passed = True
    for file in files:
        report = _run(file, face)
        passed = passed and report.passed
        for line in report.lines():
            click.echo(line)
    sys.exit(0 if passed else 1)


def _run(file: Path, face: Literal["incremental", "naive"]) -> Report:
    from sidecar.alerting.unittests import run_file
    from sidecar.errors import ConfigError
    from sidecar.yamlfile import Document

    try:
        document = Document.read(file)
    except ConfigError:
        return run_file(file, face)  # which tells what is wrong with it
    if not isinstance(document.value, dict) or "response_files" not in document.value:
        return run_file(file, face)
    # Not before: it brings in the whole sidecar, which rule tests do without.
    from sidecar.app.responsetests import run_response_file

    return run_response_file(document)

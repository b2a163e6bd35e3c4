"""`spikewatch test`: runs rule unit tests in promtool's format on our own engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import click


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--face",
    type=click.Choice(["incremental", "naive"]),
    default="incremental",
    help="How expressions are evaluated: as the sidecar does, or the plain way.",
)
def test(files: tuple[Path, ...], face: Literal["incremental", "naive"]) -> None:
    """Runs unit-test files as `promtool test rules` does.

    Exits 0 when every check of every file holds, 1 when one fails or a file cannot be run.
    """
    from sidecar.alerting.unittests import run_file

    passed = True
    for file in files:
        report = run_file(file, face)
        passed = passed and report.passed
        for line in report.lines():
            click.echo(line)
    sys.exit(0 if passed else 1)

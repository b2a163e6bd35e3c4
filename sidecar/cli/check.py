"""`spikewatch check`: would these files load? Every finding of every file, with its place."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sidecar.cli.values import DURATION


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@click.option(
    "--step-time",
    type=DURATION,
    default="1s",
    show_default=True,
    metavar="DURATION",
    help="How long a training step takes: windows over the trainer's metrics are to hold five.",
)
def check(files: tuple[Path, ...], strict: bool, step_time: int) -> None:
    """Checks rule, response, override, caps and configuration files, price books and approvals of budgets.

    They are told apart by their top-level key: `groups`, `responses`, `overrides`, `caps`, `prices`, `approvals`;
    anything else is taken for a configuration. Exits 0 when everything loads as in Prometheus (warnings allowed), 1 on
    errors.
    """
    from sidecar.app.checking import check_files

    report = check_files(files, step_ms=step_time)
    for line in report.summary:
        click.echo(line)
    for problem in report.problems:
        click.echo(str(problem), err=True)
    sys.exit(1 if any(p.level == "error" or strict for p in report.problems) else 0)

"""`spikewatch query`: asks a sidecar or a Prometheus, and shows the answer as a table or a chart."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from sidecar.cli.answers import Grid, show
from sidecar.cli.asking import bearer
from sidecar.cli.values import DURATION, MOMENT, pair

_STEPS = 120  # of a range, where no step is given
_HOUR_MS = 3_600_000


@click.command()
@click.argument("expr")
@click.option("--url", default="http://127.0.0.1:9478", show_default=True, help="What stands before /api/v1/query.")
@click.option("--time", "at", type=MOMENT, help="Of an instant query; by default now.")
@click.option("--start", type=MOMENT, help="Makes it a range query; by default an hour before the end.")
@click.option("--end", type=MOMENT, help="Makes it a range query; by default now.")
@click.option("--step", type=DURATION, metavar="DURATION", help="Makes it a range query; by default 1/120 of it.")
@click.option("--json", "as_json", is_flag=True, help="The `data` of the answer, as it came.")
@click.option("--header", "headers", multiple=True, metavar="NAME: VALUE", help="Sent along, for a tenant or a proxy.")
@click.option(
    "--token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Holds a bearer token to send."
)
def query(
    expr: str,
    url: str,
    at: int | None,
    start: int | None,
    end: int | None,
    step: int | None,
    as_json: bool,
    headers: tuple[str, ...],
    token_file: Path | None,
) -> None:
    """Evaluates EXPR in a running sidecar, or in anything with Prometheus's API, at an instant or over a range.

    Times are `now`, `now-1h`, 2026-01-31T12:00:00Z or seconds since 1970. Exits 1 when the server cannot be reached or
    refuses the expression.
    """
    from sidecar.errors import QueryError, SpikewatchError
    from sidecar.history.api import QueryApi

    if _broken(expr):
        raise click.BadParameter("it is not UTF-8", param_hint="'EXPR'")
    grid = None if start is None and end is None and step is None else _grid(start, end, step)
    if grid is not None and at is not None:
        raise click.UsageError("--time belongs to an instant query, --start, --end and --step to a range")
    try:
        with QueryApi(url, headers=sent_headers(headers, token_file)) as api:
            answer = api.instant(expr, at) if grid is None else api.over(expr, grid.start_ms, grid.end_ms, grid.step_ms)
    except QueryError as e:
        click.echo(f"spikewatch: {e}\n  {expr}", err=True)
        sys.exit(1)
    except SpikewatchError as e:
        click.echo(f"spikewatch: {e}", err=True)
        sys.exit(1)
    for warning in answer.warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        click.echo(json.dumps(answer.raw))
    else:
        show(answer, grid)


def sent_headers(headers: Sequence[str], token_file: Path | None) -> dict[str, str]:
    """What is sent with each request. Raises click.BadParameter."""
    found = dict(pair(text, ":", "NAME: VALUE") for text in headers)
    if token_file is not None:
        found["Authorization"] = bearer(token_file)
    for name, value in found.items():
        if not (name + value).isascii():
            raise click.BadParameter(f"{name!r}: a header is ASCII text", param_hint="'--header'")
    return found


def _broken(text: str) -> bool:
    """Whether it came from bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _grid(start: int | None, end: int | None, step: int | None) -> Grid:
    end = time.time_ns() // 1_000_000 if end is None else end
    start = end - _HOUR_MS if start is None else start
    if start > end:
        raise click.UsageError("the range ends before it starts")
    return Grid(start, end, step or max((end - start) // _STEPS, 1))

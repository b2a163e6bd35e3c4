"""`spikewatch backtest`: rules over the past. When would each alert have fired, and at what cost?"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidecar.cli.query import sent_headers
from sidecar.cli.values import DURATION, MOMENT, PRICE

if TYPE_CHECKING:
    from sidecar.alerting.backtest import Reads
    from sidecar.history.source import Source

_HOUR_MS = 3_600_000
_MOST_EVALUATIONS = 20_000_000  # of groups; some hours of them


@click.command()
@click.argument("rules", nargs=-1, type=click.Path(path_type=Path))
@click.option("--data", type=click.Path(path_type=Path), help="OpenMetrics text: `promtool tsdb dump-openmetrics`.")
@click.option("--prometheus", metavar="URL", help="A server with Prometheus's API that has the samples.")
@click.option("--start", type=MOMENT, help="By default the first sample of --data, or an hour before the end.")
@click.option("--end", type=MOMENT, help="By default the last sample of --data, or now.")
@click.option(
    "--step",
    type=DURATION,
    metavar="DURATION",
    default="15s",
    show_default=True,
    help="How often rules are evaluated whose group does not say.",
)
@click.option("--usd-per-hour", type=PRICE, help="What an hour costs in which an alert fires.")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON instead of tables.")
@click.option("--header", "headers", multiple=True, metavar="NAME: VALUE", help="Sent along to --prometheus.")
@click.option(
    "--token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Holds a bearer token to send."
)
def backtest(
    rules: tuple[Path, ...],
    data: Path | None,
    prometheus: str | None,
    start: int | None,
    end: int | None,
    step: int,
    usd_per_hour: float | None,
    as_json: bool,
    headers: tuple[str, ...],
    token_file: Path | None,
) -> None:
    """Replays samples of the past through the rules; without RULES the shipped ones.

    Exits 0 when the replay went through, whatever fired; 1 when rules or samples cannot be read.
    """
    from sidecar.alerting.backtest import backtest as replayed
    from sidecar.alerting.backtest import reads
    from sidecar.alerting.loader import load_rules
    from sidecar.app.files import shipped_folder
    from sidecar.cli.replays import as_data, show, watched
    from sidecar.errors import ConfigError, SpikewatchError

    if (data is None) == (prometheus is None):
        raise click.UsageError("say where the samples are: --data FILE or --prometheus URL")
    sent = sent_headers(headers, token_file)
    try:
        groups = load_rules(rules or sorted(shipped_folder().glob("**/*.rules.yaml"))).groups
        with ExitStack() as stack:
            source = _source(stack, data, prometheus, sent, reads(groups), step)
            begin, until = _between(source, start, end)
            _bounded(begin, until, [group.interval_ms or step for group in groups])
            with watched(begin, until) as progress:
                replay = replayed(groups, source, begin, until, step, progress=progress)
    except ConfigError as e:
        for problem in e.problems:
            click.echo(str(problem), err=True)
        sys.exit(1)
    except SpikewatchError as e:
        click.echo(f"spikewatch: {e}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(json.dumps(as_data(replay, usd_per_hour), indent=2))
    else:
        show(replay, usd_per_hour)


def _source(
    stack: ExitStack, data: Path | None, url: str | None, headers: dict[str, str], wanted: Reads, step: int
) -> Source:
    if data is not None:
        from sidecar.history.openmetrics import OpenMetricsHistory

        return stack.enter_context(OpenMetricsHistory(data, wanted.metrics))
    from sidecar.history.api import QueryApi
    from sidecar.history.remote import RemoteHistory

    return RemoteHistory(stack.enter_context(QueryApi(url or "", headers=headers)), wanted.selectors, step)


def _between(source: Source, start: int | None, end: int | None) -> tuple[int, int]:
    extent = source.extent()
    if end is None:
        end = time.time_ns() // 1_000_000 if extent is None else extent[1]
    if start is None:
        start = end - _HOUR_MS if extent is None else extent[0]
    if start > end:
        raise click.UsageError("it ends before it starts: look at --start and --end")
    return start, end


def _bounded(start: int, end: int, intervals: Iterable[int]) -> None:
    """A sample in milliseconds instead of seconds makes a past of fifty thousand years."""
    evaluations = sum((end - start) // interval for interval in intervals)
    if evaluations > _MOST_EVALUATIONS:
        days = (end - start) / (24 * _HOUR_MS)
        raise click.UsageError(
            f"{evaluations:,} evaluations over {days:,.0f} days would take too long: look at the times of the samples, "
            "or ask for less with --start, --end or --step"
        )

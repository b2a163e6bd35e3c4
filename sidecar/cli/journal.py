"""`spikewatch journal`: what was decided and done, why, and why not. Reads the state database, asks no sidecar."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidecar.cli.asking import fail

if TYPE_CHECKING:
    from sidecar.responses.journal import Entry
    from sidecar.responses.why import Answer, Told
    from sidecar.statedb import StateDB

_DEFAULT = 50  # entries shown, where all is not asked for
_MOST = 1_000_000  # entries anybody reads at once
_PAGE = 1000  # entries read at once
_PAUSE_S = 0.5


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Goes on with new entries as they come.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object a line: all that is kept, unless --limit is given."
)
@click.option("--why", "alert", metavar="ALERT", help="Explains what was done about an alert, or why nothing was.")
@click.option(
    "--limit", "-n", type=click.IntRange(0, _MOST), help=f"The newest so many; {_DEFAULT} where people read them."
)
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="To find state_dir in.")
@click.option("--state-dir", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Where state.db is.")
def journal(
    follow: bool, as_json: bool, alert: str | None, limit: int | None, config: Path | None, state_dir: Path | None
) -> None:
    """Shows the journal: alert edges, decisions with their reasons, changes, acknowledgements, verdicts.

    Exits 1 where the journal cannot be read, or knows nothing of the alert asked about.
    """
    from sidecar.errors import SpikewatchError

    if alert is not None and follow:
        raise click.UsageError("--why tells of what was, --follow of what comes: use one of them")
    try:
        db = _opened(config, state_dir)
        try:
            if alert is not None:
                _explain(db, alert, as_json, limit)
            else:
                _show(db, follow, as_json, limit)
        finally:
            db.close()
    except SpikewatchError as e:
        fail(str(e))


def _opened(config: Path | None, state_dir: Path | None) -> StateDB:
    from sidecar.settings import load
    from sidecar.statedb import StateDB

    if state_dir is None:
        loaded = load(config)
        state_dir = loaded.path(loaded.settings.state_dir)
    return StateDB(state_dir / "state.db", read_only=True)


def _show(db: StateDB, follow: bool, as_json: bool, limit: int | None) -> None:
    from sidecar.responses.journal import Wanted, read

    last = 0
    if limit is not None or not as_json:
        found = read(db, Wanted(limit=_DEFAULT if limit is None else limit, newest=True))
        _print(found, as_json)
        # With nothing shown, what is there already is still not new.
        last = found[-1][0] if found else max((n for n, _ in read(db, Wanted(limit=1, newest=True))), default=0)
    while True:
        found = read(db, Wanted(after_id=last, limit=_PAGE)) if (follow or (as_json and limit is None)) else []
        _print(found, as_json)
        if found:
            last = found[-1][0]
        elif not follow:
            return
        else:
            time.sleep(_PAUSE_S)


def _print(found: list[tuple[int, Entry]], as_json: bool) -> None:
    from sidecar.cli.answers import clock_time

    for _, entry in found:
        if as_json:
            click.echo(entry.line())
            continue
        about = " ".join(part for part in (entry.response, entry.episode) if part)
        click.echo(f"{clock_time(entry.at_ms)}  {entry.kind:<10} {about:<42} {_words(entry.data)}".rstrip())


def _words(data: Any) -> str:
    """The data in one line: short values as they are, long ones as JSON."""
    return " ".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"
        for key, value in data.items()
        if key != "estimate" and value not in (None, "", [], {})
    )


def _explain(db: StateDB, alert: str, as_json: bool, limit: int | None) -> None:
    from dataclasses import asdict

    from sidecar.responses.why import EPISODES, why

    found = why(db, alert, EPISODES if limit is None else limit)
    if not found:
        fail(f"the journal knows nothing of an alert {alert!r}: it has not fired here, or too long ago")
    for told in found:
        if as_json:
            click.echo(json.dumps(asdict(told)))
        else:
            _tell(told)


def _tell(told: Told) -> None:
    from sidecar.cli.answers import clock_time

    labels = ", ".join(f"{k}={v}" for k, v in told.labels.items() if k != "alertname")
    click.echo(f"{told.alert}{{{labels}}} fired at {clock_time(told.at_ms)}: {told.ended or 'still open'}")
    for answer in told.answers:
        for line in _lines(answer):
            click.echo("  " + line)


def _lines(answer: Answer) -> list[str]:
    word = answer.reason or (f"waits: {answer.waited[-1]}" if answer.waited else "not looked at yet")
    lines = [f"{answer.response}: {word}" + (f" ({answer.explained})" if answer.explained else "")]
    if answer.detail:
        lines.append(f"  {answer.detail}")
    if answer.reason and answer.waited:
        lines.append(f"  waited for: {', '.join(answer.waited)}")
    if answer.values:
        found = answer.found or {}
        changes = ", ".join(f"{name} {found.get(name, '?')} -> {value}" for name, value in answer.values.items())
        lines.append(f"  plan: {changes}")
    if answer.verdict:
        gain = "" if answer.gain_percent is None else f", {answer.gain_percent:+.1f} % towards the goal"
        lines.append(
            f"  verdict: {answer.verdict} ({answer.verdict_reason}{gain}), {answer.result or 'not yet closed'}"
        )
    return lines

"""`spikewatch kill-switch`: nothing more is sent to a trainer, at once, until somebody turns it off."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from sidecar.cli.asking import Asking, fail, sidecar_options, who


@click.group("kill-switch")
def kill_switch() -> None:
    """Stops everything that responses do, or lets it go on.

    While it is on no message leaves for a trainer: no new change, no renewal of a lease, no confirmation, no rollback.
    A change on trial is therefore taken back by the trainer itself when its lease ends, within 30 s.
    """


@kill_switch.command("on")
@click.option("--reason", default="", help="Goes into the journal.")
@click.option("--by", default="", help="Who; by default the user's name.")
@click.option(
    "--state-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Writes the file there and asks nobody: works while the sidecar does not answer.",
)
@sidecar_options
def on(reason: str, by: str, state_dir: Path | None, url: str, socket: Path | None, token_file: Path | None) -> None:
    """Turns it on."""
    if state_dir is not None:
        from sidecar.errors import StateError
        from sidecar.responses.killswitch import FILE, KillSwitch

        try:
            KillSwitch(state_dir / FILE).engage(by or who(), reason, time.time_ns() // 1_000_000)
        except StateError as e:
            fail(str(e))
        click.echo(f"the kill switch is on: {state_dir / FILE}")
        return
    _say(Asking(url, socket, token_file)("POST", "/api/v1/kill-switch", {"by": by or who(), "reason": reason}))


@kill_switch.command("off")
@click.option("--by", default="", help="Who; by default the user's name.")
@sidecar_options
def off(by: str, url: str, socket: Path | None, token_file: Path | None) -> None:
    """Turns it off. Alerts that still fire are answered again."""
    _say(Asking(url, socket, token_file)("DELETE", "/api/v1/kill-switch", None, by=by or who()))


@kill_switch.command("status")
@sidecar_options
def status(url: str, socket: Path | None, token_file: Path | None) -> None:
    """Says whether it is on, and who turned it on. Exits 1 while it is on."""
    found = Asking(url, socket, token_file)("GET", "/api/v1/kill-switch")
    _say(found)
    raise SystemExit(1 if found["on"] else 0)


def _say(found: dict[str, Any]) -> None:
    from sidecar.cli.answers import clock_time

    if not found["on"]:
        click.echo("the kill switch is off")
        return
    words = [f"the kill switch is on since {clock_time(found['since_ms'])}: {found['file']}"]
    words += [f"by {found['by']}"] if found["by"] else []
    words += [found["reason"]] if found["reason"] else []
    click.echo(", ".join(words))

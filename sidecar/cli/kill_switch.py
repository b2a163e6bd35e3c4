"""`spikewatch kill-switch`: nothing more is sent to a trainer, at once, until somebody turns it off."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sidecar.cli.asking import Asking, fail, sidecar_options, who


@click.group("kill-switch")
def kill_switch() -> None:
    """Stops everything that responses do, or lets it go on.

    While it is on no message leaves for a trainer: no new change, no renewal of a lease, no confirmation, no rollback.
    A change on trial is therefore taken back by the trainer itself when its lease ends, within 30 s.

    A running sidecar is asked. With --state-dir its file is looked at, written or removed instead, which works while no
    sidecar answers; one that runs heeds the file.
    """


_STATE_DIR = click.option(
    "--state-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The file in it instead of a sidecar's answer.",
)


@kill_switch.command("on")
@click.option("--reason", default="", help="Goes into the journal.")
@click.option("--by", default="", help="Who; by default the user's name.")
@_STATE_DIR
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
@_STATE_DIR
@sidecar_options
def off(by: str, state_dir: Path | None, url: str, socket: Path | None, token_file: Path | None) -> None:
    """Turns it off. Alerts that still fire are answered again."""
    if state_dir is not None:
        from sidecar.errors import ResponseError, StateError
        from sidecar.responses.killswitch import FILE, KillSwitch

        try:
            KillSwitch(state_dir / FILE).release()
        except (ResponseError, StateError) as e:
            fail(str(e))
        click.echo("the kill switch is off")
        return
    _say(Asking(url, socket, token_file)("DELETE", "/api/v1/kill-switch", None, by=by or who()))


@kill_switch.command("status")
@_STATE_DIR
@sidecar_options
def status(state_dir: Path | None, url: str, socket: Path | None, token_file: Path | None) -> None:
    """Says whether it is on, and who turned it on. Exits 1 while it is on.

    With --state-dir nothing is known of the platform's own file, `kill_switch` in the configuration.
    """
    if state_dir is not None:
        from sidecar.responses.killswitch import FILE, KillSwitch

        halt = KillSwitch(state_dir / FILE).on()
        _say({"on": False} if halt is None else {"on": True, **asdict(halt)})
        raise SystemExit(0 if halt is None else 1)
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

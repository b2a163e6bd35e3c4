"""`spikewatch responses`: what a running sidecar may do, and breakers that are to be closed again."""

from __future__ import annotations

import json
from pathlib import Path

import click

from sidecar.cli.asking import Asking, asking_too, in_path, sidecar_options, who


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@sidecar_options
@click.pass_context
def responses(ctx: click.Context, as_json: bool, url: str, socket: Path | None, token_file: Path | None) -> None:
    """Lists the responses of a running sidecar with the mode that the platform's caps leave them."""
    ctx.obj = Asking(url, socket, token_file)
    if ctx.invoked_subcommand is not None:
        return
    found = ctx.obj("GET", "/api/v1/responses")["responses"]
    if not found and not as_json:
        click.echo("this sidecar has no responses: name files of them with `responses:` in its configuration")
    for one in found:
        if as_json:
            click.echo(json.dumps(one))
            continue
        stopped = f", stopped for {', '.join(one['breaker_open'])}" if one["breaker_open"] else ""
        click.echo(f"{one['name']}: {one['mode']}, {one['remediation']}{stopped}")


@responses.command()
@click.argument("response")
@click.option("--by", default="", help="Who says so; by default the user's name.")
@asking_too
def reset(ask: Asking, response: str, by: str) -> None:
    """Lets a response act again whose experiments did not help."""
    ask("POST", f"/api/v1/responses/{in_path(response)}/reset", {"by": by or who()})
    click.echo(f"reset: {response}")

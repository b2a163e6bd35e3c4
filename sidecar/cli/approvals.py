"""`spikewatch approvals`: the plans that wait for a yes, and the yes or no."""

from __future__ import annotations

import json
from pathlib import Path

import click

from sidecar.cli.asking import Asking, asking_too, in_path, sidecar_options, who


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@sidecar_options
@click.pass_context
def approvals(ctx: click.Context, as_json: bool, url: str, socket: Path | None, token_file: Path | None) -> None:
    """Lists the plans that wait for an approval; `approve` and `reject` answer one."""
    ctx.obj = Asking(url, socket, token_file)
    if ctx.invoked_subcommand is not None:
        return
    from sidecar.cli.answers import clock_time

    found = ctx.obj("GET", "/api/v1/approvals")["approvals"]
    for one in found:
        if as_json:
            click.echo(json.dumps(one))
            continue
        changes = ", ".join(f"{name} {one['found'][name]} -> {value}" for name, value in one["values"].items())
        owner = f", to be asked: {one['owner']}" if one["owner"] else ""
        labels = ", ".join(f"{k}={v}" for k, v in one["labels"].items() if k != "alertname")
        click.echo(f"{one['episode']} {one['response']}")
        click.echo(f"  {one['alert']}{{{labels}}}: {changes}")
        click.echo(f"  {one['why']}")
        click.echo(f"  until {clock_time(one['expires_at_ms'])}{owner}")
    if not found and not as_json:
        click.echo("nothing waits for an approval")


@approvals.command()
@click.argument("episode")
@click.argument("response")
@click.option("--by", default="", help="Who says so; by default the user's name.")
@click.option("--for", "valid", default="", metavar="DURATION", help="How long the yes counts, like 30m.")
@asking_too
def approve(ask: Asking, episode: str, response: str, by: str, valid: str) -> None:
    """Says yes to the plan that is shown. One that changes afterwards waits again."""
    ask("POST", f"/api/v1/responses/{in_path(episode)}/{in_path(response)}/approve", {"by": by or who(), "for": valid})
    click.echo(f"approved: {episode} {response}")


@approvals.command()
@click.argument("episode")
@click.argument("response")
@click.option("--by", default="", help="Who says so; by default the user's name.")
@asking_too
def reject(ask: Asking, episode: str, response: str, by: str) -> None:
    """Says no: the response does not act in this episode."""
    ask("POST", f"/api/v1/responses/{in_path(episode)}/{in_path(response)}/reject", {"by": by or who()})
    click.echo(f"rejected: {episode} {response}")

"""The command line: `spikewatch run | demo | check | test | query | rules | export | doctor | …`."""

from __future__ import annotations

import importlib
from typing import Any

import click

# name → module:attribute. Imported only when used: `spikewatch version` must not load an HTTP stack.
_COMMANDS = {
    "run": "sidecar.cli.run:run",
    "demo": "sidecar.cli.demo:demo",
    "check": "sidecar.cli.check:check",
    "test": "sidecar.cli.test:test",
    "query": "sidecar.cli.query:query",
    "journal": "sidecar.cli.journal:journal",
    "responses": "sidecar.cli.responses:responses",
    "approvals": "sidecar.cli.approvals:approvals",
    "kill-switch": "sidecar.cli.kill_switch:kill_switch",
    "backtest": "sidecar.cli.backtest:backtest",
    "export": "sidecar.cli.export:export",
    "rules": "sidecar.cli.rules:rules",
    "plugins": "sidecar.cli.plugins:plugins",
    "drill": "sidecar.cli.drill:drill",
    "doctor": "sidecar.cli.doctor:doctor",
    "parse": "sidecar.cli.parse:parse",
    "probe": "sidecar.cli.probe:probe",
    "prices": "sidecar.cli.prices:prices",
    "version": "sidecar.cli.version:version",
}


_OF_COMMANDS = ("--url", "--socket", "--token-file", "--config", "--state-dir", "--json")


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as e:
            if e.option_name in _OF_COMMANDS:
                raise click.UsageError(
                    f"{e.option_name} stands behind the command: spikewatch COMMAND {e.option_name} …"
                ) from None
            raise


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
def _spikewatch() -> None:
    """Watches a training job for cost spikes, and fixes the cause with proof.

    Exit codes: 0 as it should be, 1 something is wrong with what was asked about, 2 wrong usage.
    """


def main(args: list[str] | None = None, **extra: Any) -> None:
    """The console script."""
    _spikewatch(args=args, prog_name="spikewatch", **extra)

"""`spikewatch version`: what is installed here."""

from __future__ import annotations

import platform

import click

from sidecar import __version__


@click.command()
def version() -> None:
    """Prints the version of spikewatch and of Python."""
    click.echo(f"spikewatch {__version__} (Python {platform.python_version()}, {platform.machine()})")

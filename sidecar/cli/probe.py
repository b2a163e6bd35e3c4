"""`spikewatch probe`: what could this GPU deliver right now? Hands over to `python -m probes`."""

from __future__ import annotations

import subprocess
import sys

import click


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def probe(arguments: tuple[str, ...]) -> None:
    """Lists and runs GPU probes: bandwidth, tensor cores, launches, streams, copies; all-reduce with torch.

    `spikewatch probe --help` lists its commands. Exits 1 when nothing could be measured.
    """
    # a process of its own: whatever a driver does stays there, and the probes stay free of our dependencies
    sys.exit(subprocess.run([sys.executable, "-m", "probes", *(arguments or ("run",))], check=False).returncode)

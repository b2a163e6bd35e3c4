"""`spikewatch run`: the sidecar, in the foreground until SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

import click

from sidecar.errors import ConfigError, SpikewatchError


@click.command()
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="spikewatch.yaml; without it the documented defaults and the environment apply.",
)
def run(config: Path | None) -> None:
    """Runs the sidecar.

    SIGHUP reloads the configuration, SIGTERM stops it within two seconds. Exits 1 when the configuration is wrong
    (every problem is listed) or an address or folder cannot be used.
    """
    # Until the event loop takes the signal over: a stop during start-up is a stop like any other.
    signal.signal(signal.SIGTERM, _leave)
    # Before numpy is loaded: its BLAS would start a thread and reserve memory for every core of the node.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    # httpx loads its own command line, and rich and pygments with it (3 MB, 40 ms), unless that cannot be imported.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    from sidecar.app import run_forever

    try:
        run_forever(config)
    except ConfigError as e:
        for problem in e.problems:
            click.echo(str(problem), err=True)
        sys.exit(1)
    except SpikewatchError as e:
        click.echo(f"spikewatch: {e}", err=True)
        sys.exit(1)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(0)

"""`spikewatch demo`: a real training run gets into trouble, and the sidecar gets it out."""

from __future__ import annotations

import sys
from pathlib import Path

import click

SCENARIOS = ("data-starvation", "bad-fix", "cpu-bound")


@click.command()
@click.option("--scenario", type=click.Choice(SCENARIOS), default=SCENARIOS[0], show_default=True)
@click.option("--nproc", type=click.IntRange(1, 64), default=1, show_default=True, help="Ranks, under torchrun.")
@click.option(
    "--gpu-usd-per-hour",
    type=click.FloatRange(0),
    default=2.5,
    show_default=True,
    help="Assumed price of the GPU that each rank would hold.",
)
@click.option("--alertmanager", default="", metavar="URL", help="An Alertmanager that receives the alert too.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the numbers to this file.",
)
@click.option("--seed", type=int, help="Repeat a run's random moment and data; by default a new one each time.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the directory with logs and journal is made; by default among the temporary files.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also save what stands on the terminal at the end as an SVG (not with --plain).",
)
@click.option("--plain", is_flag=True, help="One line an event instead of the live picture.")
def demo(
    scenario: str,
    nproc: int,
    gpu_usd_per_hour: float,
    alertmanager: str,
    json_file: Path | None,
    picture: Path | None,
    seed: int | None,
    keep: Path | None,
    plain: bool,
) -> None:
    """Plays a scenario on this machine: object store, training run and sidecar, all real, in under four minutes.

    \b
    data-starvation  the object store becomes slow; more loader workers help: kept
    bad-fix          the configured answer takes workers away: undone
    cpu-bound        the same alert, but workers cannot help: undone

    No GPU, Prometheus or Alertmanager is needed. Exits 0 when the scenario ended as it should, 1 with what differed.
    """
    from sidecar.cli.demo.command import play
    from sidecar.cli.demo.launch import Options

    for option, file in (("--json", json_file), ("--picture", picture)):
        if file is not None and not file.absolute().parent.is_dir():
            # Now, not after four minutes.
            raise click.BadParameter(f"there is no folder {file.absolute().parent}", param_hint=f"'{option}'")
    options = Options(nproc, gpu_usd_per_hour, alertmanager.rstrip("/"), seed)
    sys.exit(play(scenario, options, json_file=json_file, picture=picture, keep=keep, plain=plain))

"""`spikewatch drill`: your own rules and responses on the demo's trainer, with real trouble."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sidecar.cli.demo import SCENARIOS

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("scenario", type=click.Choice(SCENARIOS), metavar="SCENARIO")
@click.option("--rules", type=_FILE, help="Rule file to drill, with the alert TrainerStarvedOfData; else the shipped.")
@click.option("--responses", type=_FILE, help="Responses to drill; else the scenario's own.")
@click.option("--no-approval", is_flag=True, help="Leave plans of mode `suggest` waiting instead of approving them.")
@click.option("--seed", type=int, help="Repeat a drill's random moment and data; by default new ones each time.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the directory with logs and journal is made; by default among the temporary files.",
)
@click.option("--plain", is_flag=True, help="One line an event instead of the live picture.")
def drill(
    scenario: str,
    rules: Path | None,
    responses: Path | None,
    no_approval: bool,
    seed: int | None,
    keep: Path | None,
    plain: bool,
) -> None:
    """Makes real trouble on a real training run and shows the whole path: alert, decision, plan, experiment, end.

    \b
    data-starvation  the object store becomes slow
    bad-fix          the same, and the scenario's own response takes workers away
    cpu-bound        the same alert, but more workers cannot help

    Nothing of yours is touched: object store, training run and sidecar are started here and end with the drill. It
    takes as long as the rule's `for`, the baseline and the window, and about a minute more. Exits 0 when the path came
    to its end, whatever the verdict, and the trainer was left as it says; 1 when it did not.
    """
    from sidecar.cli.demo.command import play_drill
    from sidecar.cli.demo.launch import Options

    options = Options(seed=seed, rules=rules, responses=responses, approve_as="" if no_approval else "the drill")
    sys.exit(play_drill(scenario, options, keep=keep, plain=plain))

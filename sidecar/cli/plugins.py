"""`spikewatch plugins list | describe | new`: which plugins there are, what one does, a start for one's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sidecar.plugins import Registry

_CONFIG = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A configuration: what its plugins.allow names is loaded too.",
)


@click.group()
def plugins() -> None:
    """Lists and explains plugins, and starts new ones."""


@plugins.command("list")
@_CONFIG
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
def list_(config: Path | None, as_json: bool) -> None:
    """Every installed plugin: loaded, not allowed (and then never imported), or broken.

    Exits 1 when one that should be loaded cannot be.
    """
    from sidecar.cli.plugins_text import rows, show_rows

    registry = _registry(config)
    found = rows(registry)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        show_rows(found)
    for problem in registry.problems:
        click.echo(f"spikewatch: {problem}", err=True)
    sys.exit(1 if registry.problems else 0)


@plugins.command()
@click.argument("name")
@_CONFIG
@click.option("--json", "as_json", is_flag=True, help="JSON, with the parameters as a JSON schema.")
def describe(name: str, config: Path | None, as_json: bool) -> None:
    """What a remediation does, its parameters, what it may touch, and its cases, run here and now.

    Exits 1 when there is none of that name, or one of its cases does not hold.
    """
    from sidecar.cli.plugins_text import as_data, show
    from sidecar.errors import PluginError

    registry = _registry(config)
    try:
        plugin = registry.remediation(name)
    except PluginError as e:
        click.echo(f"spikewatch: {e}", err=True)
        sys.exit(1)
    data = as_data(registry, plugin)
    if as_json:
        click.echo(json.dumps(data, indent=2))
    else:
        show(data)
    sys.exit(0 if all(case["holds"] for case in data["cases"]) else 1)


@plugins.command()
@click.argument("name")
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Where the package's folder is made; by default here.",
)
def new(name: str, into: Path) -> None:
    """Starts a remediation as a package of its own, with a test that passes.

    NAME is like shrink_batch. Exits 1 when the folder exists or the name cannot be one.
    """
    from sidecar.cli.plugins_scaffold import scaffold
    from sidecar.errors import PluginError

    try:
        folder = scaffold(name, into)
    except PluginError as e:
        click.echo(f"spikewatch: {e}", err=True)
        sys.exit(1)
    click.echo(f"{folder}: {name}.py, test_{name}.py, pyproject.toml")
    click.echo(f"Try it:  python -m pytest {folder}")
    # With a separator in it pip takes it for a folder, else for a package of the index with that name.
    here = folder if folder.is_absolute() else f"./{folder}"
    click.echo(f"Use it:  pip install {here}, and in spikewatch.yaml  plugins: {{allow: [{name}]}}")


def _registry(config: Path | None) -> Registry:
    from sidecar.errors import ConfigError
    from sidecar.plugins import Registry, allowed
    from sidecar.settings import load

    names: tuple[str, ...] = ()
    if config is not None:
        try:
            names = load(config, {}).settings.plugins.allow
        except ConfigError as e:
            for problem in e.problems:
                click.echo(str(problem), err=True)
            sys.exit(1)
    registry = Registry(allow=allowed(names))
    registry.discover()
    return registry

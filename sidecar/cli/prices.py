"""`spikewatch prices`: shows a price book, and takes over newer prices into it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

import click

from sidecar.collectors.cost import priceaws, pricecsv, pricefocus
from sidecar.collectors.cost.aws import boto_clients
from sidecar.collectors.cost.pricebook import Price, PriceBook, load_prices, text
from sidecar.errors import CollectError, ConfigError, Problem

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def prices() -> None:
    """The price book: what an hour of an instance type costs. Its format is described in docs/cluster.md."""


@prices.command()
@click.argument("file", type=_FILE, default=Path("prices.yaml"))
def show(file: Path) -> None:
    """Prints the prices of FILE with their ages. Exits 1 when FILE is wrong; every mistake is listed."""
    with _told():
        book = load_prices(file)
    today = _today()
    for price in book.sorted():
        age = (today - price.as_of).days
        old = "  OLD" if price.old(today) else ""
        where = price.region or "any region"
        click.echo(
            f"{price.instance_type:<24} {where:<16} {price.capacity:<10} {price.usd_per_hour:>10.4f} USD/h  "
            f"{age:>4} d  {price.source}{old}"
        )
    if not book.prices:
        click.echo(f"{file}: no prices (fill it by `spikewatch prices refresh`)", err=True)


@prices.command()
@click.argument("file", type=_FILE, default=Path("prices.yaml"))
@click.option("--from", "origin", required=True, metavar="aws|FILE", help="AWS, a FOCUS export, or a CSV file.")
@click.option("--region", "regions", multiple=True, help="For aws: a region to ask beside those in FILE.")
@click.option("--instance-type", "kinds", multiple=True, help="For aws: a type to ask beside those in FILE.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing.")
def refresh(file: Path, origin: str, regions: Sequence[str], kinds: Sequence[str], dry_run: bool) -> None:
    """Takes over newer prices into FILE, which is made where it is not there. Prices of other types stay as they are.

    Exits 1, with nothing written, when FILE or what is read has a mistake, or AWS refuses; every mistake is listed.
    """
    with _told():
        there = file.exists()
        book = load_prices(file) if there else PriceBook()
        before = file.read_text(encoding="utf-8") if there else None
        newer = _from_aws(book, regions, kinds) if origin == "aws" else _from_file(origin, regions, kinds)
        after = book.with_(newer)
        for line in _changes(book, after, newer):
            click.echo(line)
        if not dry_run:
            _replace(file, text(after, before))


def _from_aws(book: PriceBook, regions: Sequence[str], kinds: Sequence[str]) -> list[Price]:
    all_kinds = sorted({price.instance_type for price in book.prices.values()} | set(kinds))
    all_regions = sorted({price.region for price in book.prices.values() if price.region} | set(regions))
    for what, option in ((all_kinds, "--instance-type"), (all_regions, "--region")):
        if not what:
            raise click.UsageError(f"the file names none yet: give {option}")
    found = priceaws.read(all_kinds, all_regions, boto_clients, _today())
    for kind in all_kinds:
        if not any(price.instance_type == kind for price in found):
            click.echo(f"AWS has no price of {kind} in {', '.join(all_regions)}", err=True)
    return found


def _from_file(path: str, regions: Sequence[str], kinds: Sequence[str]) -> list[Price]:
    if regions or kinds:
        raise click.UsageError("--region and --instance-type belong to --from aws")
    return pricefocus.read(path) if _is_focus(path) else pricecsv.read(Path(path), _today())


def _is_focus(path: str) -> bool:
    """A FOCUS export by its name or its header: no list of prices has such columns."""
    if "://" in path or path.endswith((".parquet", ".gz")):
        return True
    if not Path(path).is_file():  # whoever reads it says why it cannot be
        return False
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return "ChargePeriodStart" in file.readline(1 << 16)
    except OSError:
        return False


def _changes(before: PriceBook, after: PriceBook, newer: Iterable[Price]) -> Iterator[str]:
    changed = 0
    for price in sorted(newer, key=lambda price: price.key):
        old = before.prices.get(price.key)
        name = " ".join(filter(None, price.key))
        if old is None:
            changed += 1
            yield f"{name}: {price.usd_per_hour:g} USD/h (new)"
        elif old.usd_per_hour != price.usd_per_hour:
            changed += 1
            yield f"{name}: {old.usd_per_hour:g} -> {price.usd_per_hour:g} USD/h"
    yield f"{changed} changed, {len(after.prices) - changed} as they were"


def _replace(file: Path, content: str) -> None:
    """As a whole: a collector that reads it meanwhile sees the old file or the new one."""
    beside = file.with_name(f".{file.name}.new")
    try:
        beside.write_text(content, encoding="utf-8")
        os.replace(beside, file)
    except OSError as e:
        raise ConfigError([Problem(str(file), 0, 0, f"cannot be written: {e.strerror}")]) from None


@contextmanager
def _told() -> Iterator[None]:
    """Ends with exit code 1 and every problem on stderr."""
    try:
        yield
    except ConfigError as e:
        for problem in e.problems:
            click.echo(str(problem), err=True)
        sys.exit(1)
    except (CollectError, OSError) as e:
        click.echo(str(e).removeprefix("cost: "), err=True)
        sys.exit(1)


def _today() -> date:
    return datetime.now(UTC).date()

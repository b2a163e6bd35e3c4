"""`spikewatch parse`: what a file about communication says, as typed events, one JSON object a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click

from sidecar.collectors.nccl import flightrecorder, inspector, ras
from sidecar.collectors.nccl.events import Event, to_json
from sidecar.collectors.nccl.grammar import LogParser

_CHUNK = 1 << 20


@click.command()
@click.argument("what", type=click.Choice(["nccl", "ras", "flight-recorder", "inspector"]))
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True))
def parse(what: str, file: Path) -> None:
    """Prints what FILE says as JSON lines: `kind`, `line`, and what the event holds. `-` reads standard input.

    WHAT is `nccl` (NCCL_DEBUG output, or a trainer's log that holds it), `ras` (a report of NCCL's RAS service, text or
    JSON), `flight-recorder` (a dump of PyTorch's flight recorder) or `inspector` (NCCL Inspector's log). Lines of other
    programs give nothing; lines of NCCL without a type of their own are of kind `other`. Exits 1 when FILE cannot be
    read or is no dump.
    """
    event = None
    try:
        for event in _events(what, file):
            click.echo(json.dumps(to_json(event), ensure_ascii=False))
        if event is None:
            click.echo(f"{file}: nothing of kind {what} is in it", err=True)
    except BrokenPipeError:
        raise  # whoever reads this has gone: nothing is wrong with FILE
    except OSError as e:
        sys.exit(f"{file}: cannot be read: {e.strerror}")
    except flightrecorder.DumpRefused as e:
        sys.exit(f"{file}: {e}")


def _events(what: str, file: Path) -> Iterator[Event]:
    if what == "flight-recorder":
        return flightrecorder.parse(b"".join(_chunks(file)))
    if what == "ras":
        return ras.parse(b"".join(_chunks(file)).decode("utf-8", "replace"))
    return _lines(what, file)


def _lines(what: str, file: Path) -> Iterator[Event]:
    parser, line, rest = LogParser(), 1, b""
    for chunk in chain(_chunks(file), [b"\n"]):
        whole, end, rest = (rest + chunk).rpartition(b"\n")
        if end:
            text = whole.decode("utf-8", "replace")
            yield from parser.parse(text, line) if what == "nccl" else inspector.parse(text, line)
            line += text.count("\n") + 1


def _chunks(file: Path) -> Iterator[bytes]:
    with click.open_file(str(file), "rb") as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk

"""The console script `spikewatch-run COMMAND…`: runs a training command with the zero-code attach armed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from spikewatch.zerocode import SWITCH

USAGE = """\
usage: spikewatch-run COMMAND [ARGUMENT…]     e.g. spikewatch-run torchrun --nproc-per-node 2 train.py
       spikewatch-run --path                  prints the folder for PYTHONPATH

Runs the command with the zero-code attach armed in every Python process it starts: SPIKEWATCH_AUTOATTACH is set to 1
unless it is set already (to a comma-separated list of script names, say), and the folder is put on PYTHONPATH."""


def folder() -> Path:
    """Where the sitecustomize lies that arms the attach."""
    return Path(__file__).resolve().parent / "startup"


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with the attach armed."""
    path = [str(folder()), *(part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part)]
    return {SWITCH: "1", **environ, "PYTHONPATH": os.pathsep.join(path)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Becomes the command. Exits 0 after help or the path, 2 without a command, 127 where it cannot be run."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--path"]:
        _say(str(folder()), sys.stdout)
        sys.exit(0)
    if not words or words[0] in ("-h", "--help"):
        _say(USAGE, sys.stdout if words else sys.stderr)
        sys.exit(0 if words else 2)
    if words[0].startswith("-"):
        _say(f"spikewatch-run: no option {words[0]}\n{USAGE}", sys.stderr)
        sys.exit(2)
    try:
        os.execvpe(words[0], words, environment(os.environ))
    except OSError as error:
        hint = f"; did you mean: spikewatch-run python {words[0]}" if words[0].endswith(".py") else ""
        _say(f"spikewatch-run: {words[0]}: {error.strerror}{hint}", sys.stderr)
        sys.exit(127)


def _say(text: str, where: TextIO) -> None:
    where.write(text + "\n")

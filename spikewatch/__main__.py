"""The console script: hands over to the command line of the sidecar, where its dependencies are installed."""

from __future__ import annotations

import sys


def main() -> None:
    """Exits 2 when only the trainer's part is installed (`pip install --no-deps spikewatch`)."""
    try:
        from sidecar.cli import main as command_line
    except ModuleNotFoundError as missing:
        print(  # noqa: T201  this is what the user reads
            f"spikewatch: {missing.name} is not installed. Here only the trainer's part works (import spikewatch); "
            "for the command line: pip install spikewatch",
            file=sys.stderr,
        )
        sys.exit(2)
    command_line()


if __name__ == "__main__":
    main()

"""`python -m probes list|run|baseline`: the runner's command line; `spikewatch probe` is the same."""

from __future__ import annotations

import sys

from probes.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Makes the modules of the comparison importable by name, and the exact arithmetic of the PromQL tests."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "promql")]

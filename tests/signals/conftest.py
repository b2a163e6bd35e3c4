"""Lets the tests import what stands beside them."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cost"), str(HERE.parent / "collectors")]

"""Lets the tests import the bills beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from bills import chance, export

__all__ = ["chance", "export"]

"""Lets the engine's tests import the helpers beside them, and finds corpora and peers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Real Prometheus's promtool."""
    if "SPIKEWATCH_PEERS" not in os.environ:
        pytest.skip("SPIKEWATCH_PEERS is not set: no promtool to compare with")
    return Path(os.environ["SPIKEWATCH_PEERS"]) / "bin" / "promtool"


@pytest.fixture(scope="session")
def corpus() -> list[Path]:
    """Prometheus's own PromQL evaluations as promtool unit-test files."""
    if "SPIKEWATCH_CORPUS" not in os.environ:
        pytest.skip("SPIKEWATCH_CORPUS is not set: no corpus of evaluations")
    return sorted((Path(os.environ["SPIKEWATCH_CORPUS"]) / "promql").glob("*.test.yaml"))

"""A folder with a configuration that is right, for tests to spoil."""

from __future__ import annotations

import json

import pytest

from sidecar.plugins import Registry
from sidecar.settings import load

RULES = {
    "groups": [{"name": "g", "rules": [{"alert": "Late", "expr": "late > 1"}, {"alert": "Early", "expr": "early"}]}]
}
RESPONSE = {
    "name": "feed",
    "match": ['alertname="Late"'],
    "remediation": "dataloader_prefetch",
    "with": {"factor": 2},
    "verify": {"expr": "sum(rate(x[10s]))", "goal": "increase"},
}


class Folder:
    """Files are JSON, which is YAML on one line: a column says everything about a place."""

    def __init__(self, path):
        self.path = path
        self.write("one.rules.yaml", RULES)
        self.write("responses.yaml", {"responses": [RESPONSE]})

    def write(self, name, content):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def config(self, **changes):
        """spikewatch.yaml, one setting a line."""
        settings = {
            "state_dir": "state",
            "run_dir": "run",
            "rules": ["*.rules.yaml"],
            "responses": ["responses.yaml"],
            "collectors": {"process": {"enabled": False}},
            **changes,
        }
        return self.write("spikewatch.yaml", "\n".join(f"{k}: {json.dumps(v)}" for k, v in settings.items()))

    def loaded(self, **changes):
        return load(self.config(**changes), {})


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


@pytest.fixture(scope="session")
def registry():
    """Everything that is installed."""
    found = Registry()
    found.discover()
    assert found.problems == []
    return found

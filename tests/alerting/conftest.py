"""What the tests of the alerting room share: scripted queries, recorded writes, rule files from text."""

import sys
from pathlib import Path

import pytest

from sidecar.alerting.loader import load_rules
from sidecar.alerting.manager import Manager
from sidecar.errors import QueryError
from sidecar.model import STALE
from sidecar.yamlfile import Document

sys.path.insert(0, str(Path(__file__).parent))


class Script:
    """A query function that is told what each expression gives: samples as {labels as text: value}."""

    def __init__(self):
        self.results = {}
        self.asked = []

    def set(self, expr, *samples):
        self.results[expr] = list(samples)

    def fail(self, expr, error="no such function"):
        self.results[expr] = error if isinstance(error, Exception) else QueryError(error, expr)

    def __call__(self, expr, t_ms):
        self.asked.append((expr, t_ms))
        result = self.results.get(expr, [])
        if isinstance(result, Exception):
            raise result
        return result


class Written:
    """A write function that remembers: [(metric, labels as dict, value, time)]; "stale" for the end of a series."""

    def __init__(self):
        self.rows = []

    def __call__(self, producer, t_ms, rows):
        for metric, labels, value in rows:
            self.rows.append((metric, dict(labels), "stale" if value is STALE else value, t_ms))

    def take(self, metric=None):
        rows, self.rows = self.rows, []
        return [row for row in rows if metric is None or row[0] == metric]


def sample(value, **labels):
    """One sample; the name as `name=`."""
    if "name" in labels:
        labels["__name__"] = labels.pop("name")
    return tuple(sorted(labels.items())), value


def groups_of(text, file="rules.yaml"):
    return load_rules([Document(file, text)]).groups


class Bench:
    """A manager with a scripted query, recorded writes and a stopwatch that counts its readings."""

    def __init__(self):
        self.query, self.written, self.readings = Script(), Written(), 0

    def stopwatch(self):
        self.readings += 1
        return self.readings

    def manager(self, text, **options):
        options.setdefault("default_interval_ms", 1000)
        self.live = Manager(groups_of(text), self.query, self.written, stopwatch=self.stopwatch, **options)
        return self.live

    def ticks(self, first_ms, count, step_ms=1000):
        """Ticks the manager; returns [(edge, alert name, labels beside alertname)] of all of them."""
        out = []
        for n in range(count):
            for event in self.live.tick(first_ms + n * step_ms):
                labels = {k: v for k, v in event.alert.labels if k != "alertname"}
                out.append((event.edge.value, event.alert.name, labels))
        return out


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture(name="sample")
def _sample():
    return sample


@pytest.fixture(name="groups_of")
def _groups_of():
    return groups_of

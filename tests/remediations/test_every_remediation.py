"""What holds for every remediation that ships: its example and its cases, its knobs, its permissions."""

from __future__ import annotations

from importlib import metadata

import pytest

from sidecar.hooks import Reading, Remediation
from sidecar.model import Change
from sidecar.plugins import REMEDIATIONS, Registry, broken_case, details

SHIPPED = sorted(p.name for p in metadata.distribution("spikewatch").entry_points if p.group == REMEDIATIONS)


@pytest.fixture(scope="module")
def plugin_of():
    registry = Registry()
    registry.discover()
    assert registry.problems == []
    return registry.remediation


@pytest.mark.parametrize("name", SHIPPED)
def test_its_contract_its_example_and_every_case_hold(plugin_of, name):
    plugin = plugin_of(name)
    assert isinstance(plugin, Remediation)
    assert plugin.params.model_validate(plugin.example)
    cases = details(plugin).cases
    assert cases
    assert [broken_case(plugin, case) for case in cases] == [""] * len(cases)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_case_whose_answer_is_another_is_noticed(plugin_of, name):
    plugin = plugin_of(name)
    for case in details(plugin).cases:
        wrong = type(case)(case.what, case.params, case.alert, case.view, Change("trainer", {"other": 1}))
        assert "expected" in broken_case(plugin, wrong)


@pytest.mark.parametrize("name", SHIPPED)
def test_what_changes_something_says_what_it_must_be_allowed(plugin_of, name):
    plugin = plugin_of(name)
    assert bool(details(plugin).permissions) == (plugin.actuator != "notes")


@pytest.mark.parametrize("name", SHIPPED)
def test_every_series_it_reads_is_one_element_of_known_metrics(plugin_of, name):
    from sidecar import promql
    from sidecar.app import records

    registry = Registry()
    registry.discover()
    known = {info.name for info in records.catalogue(registry)}
    for reading in details(plugin_of(name)).reads.values():
        assert isinstance(reading, Reading)
        program = promql.compile([reading.expr])
        assert set(program.metrics(reading.expr)) <= known
        assert promql.increments(reading.expr)

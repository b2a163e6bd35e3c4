"""Prometheus's own evaluations: all 717 cases of the corpus, on either face."""

from __future__ import annotations

import pytest
from promtool_cases import cases, differences

from sidecar import promql
from sidecar.errors import QueryError
from sidecar.store import Store

CASES = 717

pytestmark = pytest.mark.corpus


def result(evaluator, case):
    found = evaluator.at(case.expr, case.t_ms)
    return [((), found)] if isinstance(found, float) else list(found)


@pytest.mark.timeout(60)
def test_every_case_holds_when_read_from_the_ring(corpus):
    """The naive face, with every sample of a case in the store before it is asked."""
    wrong, count = [], 0
    for case in (case for file in corpus for case in cases(file)):
        count += 1
        store = Store(min_keep_ms=10**12, max_slots=10**6)
        case.fill(store)
        found = differences(case, result(promql.compile([case.expr]).bind(store, "naive", case.step_ms), case))
        wrong += [f"{case.name}: {d}" for d in found]
    assert not wrong, "\n".join(wrong)
    assert count == CASES


@pytest.mark.timeout(60)
def test_every_case_holds_when_carried_from_tick_to_tick(corpus):
    """The incremental face, evaluated while the samples come in; samples of the future change nothing."""
    wrong, count = [], 0
    for case in (case for file in corpus for case in cases(file)):
        count += 1
        store = Store(min_keep_ms=10**12, max_slots=10**6)
        evaluator = promql.compile([case.expr]).bind(store, "incremental", case.step_ms)
        past = [slot for slot in case.slots() if slot * case.interval_ms <= case.t_ms]
        for i, slot in enumerate(past):
            case.push(store, slot)
            if i % max(1, len(past) // 25) == 0:
                _ignoring_errors(evaluator, case, slot * case.interval_ms)
        found = differences(case, result(evaluator, case))
        for slot in case.slots()[len(past) :]:
            case.push(store, slot)
        found += differences(case, result(evaluator, case))
        wrong += [f"{case.name}: {d}" for d in found]
    assert not wrong, "\n".join(wrong)
    assert count == CASES


def _ignoring_errors(evaluator, case, t_ms):
    """Some cases are only free of duplicate matches at their own time."""
    try:
        evaluator.at(case.expr, t_ms)
    except QueryError:
        return

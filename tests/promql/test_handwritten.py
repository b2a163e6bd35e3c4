"""Every construct of the language, by hand-written example, on both faces and in real Prometheus."""

from __future__ import annotations

import math
import re
import struct
import subprocess

import pytest
import yaml
from asking import scene, shown, told
from handwritten import SCENES
from promtool_cases import metric_labels

from sidecar import promql
from sidecar.errors import QueryError
from sidecar.store import Store


def same(a, b):
    return a.keys() == b.keys() and all(close(a[k], b[k]) for k in a)


def close(a, b):
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or math.isclose(a, b, rel_tol=1e-12)


QUESTIONS = [
    pytest.param(each, expr, t_s, answer, id=f"{each.name}: {expr} @ {t_s}")
    for each in SCENES
    for expr, t_s, answer in each.ask
]
STEP_MS = 10_000


def check(result, expr, answer):
    if isinstance(answer, str):
        with pytest.raises(QueryError, match=re.escape(answer)) as caught:
            result()
        assert caught.value.expr == expr
        return
    got = told(result())
    assert same(got, {shown(metric_labels(k)): float(v) for k, v in answer.items()}), got


@pytest.mark.parametrize(("each", "expr", "t_s", "answer"), QUESTIONS)
def test_read_from_the_ring(each, expr, t_s, answer):
    """The naive face answers with all samples in the store, later ones included."""
    store = Store()
    case = scene(each.series, each.interval_s)
    case.fill(store)
    check(lambda: promql.evaluate(store, expr, t_s * 1000, interval_ms=STEP_MS), expr, answer)


@pytest.mark.parametrize(("each", "expr", "t_s", "answer"), QUESTIONS)
def test_carried_from_tick_to_tick(each, expr, t_s, answer):
    """The incremental face answers the same after having followed the samples as they came."""
    store = Store()
    case = scene(each.series, each.interval_s)

    def result():
        evaluator = promql.compile([expr]).bind(store, "incremental", interval_ms=STEP_MS)
        for slot in case.slots():
            if slot * case.interval_ms > t_s * 1000:
                break
            case.push(store, slot)
            if slot % 2 == 0 and not isinstance(answer, str):
                evaluator.at(expr, slot * case.interval_ms)
        return evaluator.at(expr, t_s * 1000)

    check(result, expr, answer)


@pytest.mark.peers
def test_real_prometheus_gives_every_one_of_these_answers(promtool, tmp_path):
    """The examples are facts about Prometheus 3.5: its own unit-test runner agrees with all of them."""
    tests = []
    failing = set()
    for each in SCENES:
        case = scene(each.series, each.interval_s)
        series = [
            {"series": shown(labels), "values": " ".join(text(v) for v in values)} for labels, values in case.series
        ]
        for expr, t_s, answer in each.ask:
            if isinstance(answer, str):
                failing.add(expr)
                answer = {}
            samples = [{"labels": k, "value": float(v)} for k, v in answer.items() if not math.isnan(v)]
            if len(samples) == len(answer):  # promtool holds no NaN equal to another
                test = {"expr": expr, "eval_time": f"{t_s}s", "exp_samples": samples}
                tests.append({"interval": f"{each.interval_s}s", "input_series": series, "promql_expr_test": [test]})
    file = tmp_path / "handwritten.yaml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "10s", "fuzzy_compare": True, "tests": tests}))
    run = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    reported = re.split(r"\n    expr: ", run.stdout + run.stderr)[1:]
    wrong = [r for r in reported if not any(yaml.safe_load(r.split(", time:")[0]) == f for f in failing) or "got:" in r]
    assert not wrong, "\n".join(wrong)
    assert len(reported) == len(failing)


def text(value):
    if value is None:
        return "_"
    if math.isnan(value):
        return "NaN" if is_plain_nan(value) else "stale"
    return repr(value)


def is_plain_nan(value):
    return struct.pack(">d", value) != bytes.fromhex("7ff0000000000002")

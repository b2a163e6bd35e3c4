"""Random expressions over random series: real Prometheus gives what we give, on either face."""

from __future__ import annotations

import math
import re
import struct
import subprocess

import pytest
import yaml
from promtool_cases import Case, metric_labels, values
from random_queries import Queries

from sidecar import promql
from sidecar.errors import QueryError
from sidecar.store import Store

INTERVAL_MS, STEP_MS, T_MS = 10_000, 15_000, 360_000
_ELEMENT = re.compile(r"(\{.*?\}) ([-+.0-9EeNaIf]+)(?:, |$)")

pytestmark = pytest.mark.peers


def questions(seed, count, large):
    """Series and expressions; topk and bottomk are left out, for promtool itself picks among equals by chance."""
    made = Queries(seed, large)
    series = made.series()
    exprs = [made.expression() for _ in range(count)]
    return series, [e for e in exprs if "topk" not in e and "bottomk" not in e]


def answer(series, expr, face):
    """What we say: elements, or None for an error."""
    limit = T_MS // INTERVAL_MS + 1
    found = tuple((metric_labels(name), tuple(values(text))[:limit]) for name, text in series)
    case = Case("", expr, T_MS, INTERVAL_MS, STEP_MS, found, ())
    store = Store(min_keep_ms=10**12)
    try:
        evaluator = promql.compile([expr]).bind(store, face, STEP_MS)
    except QueryError:
        return None
    for slot in case.slots():
        case.push(store, slot)
        if face == "incremental" and slot % 5 == 0:
            _quietly(evaluator, expr, slot * INTERVAL_MS)
    try:
        result = evaluator.at(expr, T_MS)
    except QueryError:
        return None
    return [((), result)] if isinstance(result, float) else list(result)


def _quietly(evaluator, expr, t_ms):
    try:
        evaluator.at(expr, t_ms)
    except QueryError:
        return


def in_promtool(promtool, folder, series, answers):
    """What promtool finds different: expression → its report."""
    tests = [
        {
            "expr": expr,
            "eval_time": f"{T_MS // 1000}s",
            "exp_samples": [{"labels": notation(labels), "value": value} for labels, value in found or []],
        }
        for expr, found in answers.items()
    ]
    group = {
        "interval": f"{INTERVAL_MS // 1000}s",
        "input_series": [{"series": name, "values": text} for name, text in series],
        "promql_expr_test": tests,
    }
    file = folder / "random.yaml"
    document = {"evaluation_interval": f"{STEP_MS // 1000}s", "fuzzy_compare": True, "tests": [group]}
    file.write_text(yaml.safe_dump(document, width=1 << 20))
    run = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    reports = re.split(r"\n    expr: ", run.stdout + run.stderr)
    assert len(reports) > 1 or not run.returncode, run.stderr
    return {yaml.safe_load(report.split(", time:")[0]): report for report in reports[1:]}


def notation(labels):
    pairs = (f'{k}="{v}"' for k, v in labels)
    return "{" + ",".join(pair.replace("\\", "\\\\") for pair in pairs) + "}"


def really_differs(report):
    """promtool calls NaN unequal to NaN, and libraries differ in the last places of sin, exp and pow."""
    sides = re.search(r"exp: (.*)\n\s+got: (.*)", report)
    ours, theirs = (_ELEMENT.findall(side) for side in sides.groups())
    if [labels for labels, _ in ours] != [labels for labels, _ in theirs]:
        return True
    return not all(alike(float(a), float(b)) for (_, a), (_, b) in zip(ours, theirs, strict=True))


def alike(a, b):
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or math.isclose(a, b, rel_tol=1e-9)


@pytest.mark.parametrize("face", ["naive", "incremental"])
@pytest.mark.parametrize("seed", range(3))
def test_promtool_agrees_with_random_queries(promtool, tmp_path, seed, face):
    series, exprs = questions(1000 + seed, 40, large=face == "naive")
    answers = {expr: answer(series, expr, face) for expr in exprs}
    reports = in_promtool(promtool, tmp_path, series, answers)
    refused = {expr for expr, report in reports.items() if "err:" in report.split("\n")[0]}
    assert refused == {expr for expr, found in answers.items() if found is None}
    wrong = [r for expr, r in reports.items() if expr not in refused and really_differs(r)]
    assert not wrong, "\n".join(wrong)


def test_the_stale_marker_survives_the_notation():
    assert struct.pack(">d", next(values("stale"))) == bytes.fromhex("7ff0000000000002")

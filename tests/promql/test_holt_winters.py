"""holt_winters(), which Prometheus 2 had: computed as Prometheus 3 computes it under its new name."""

import subprocess

import pytest
import yaml
from asking import ask, filled
from hypothesis import given
from hypothesis import strategies as st

from sidecar import promql
from sidecar.errors import QueryError

SERIES = 'x{a="1"} 0 1 5 2 _ 8 -3 4 4 100\nx{a="2"} _ _ _ _ _ _ _ _ 3 7\nx{a="3"} _ _ _ _ _ _ _ _ _ 1'


def smoothed(samples, smoothing, trend):
    """The recurrence as the textbook has it: level and slope after each sample."""
    level, slope = samples[0], samples[1] - samples[0]
    before = None
    for value in samples[1:]:
        if before is not None:
            slope = trend * (level - before) + (1 - trend) * slope
        before, level = level, smoothing * value + (1 - smoothing) * (level + slope)
    return level


@pytest.mark.parametrize("face", ["naive", "incremental"])
@pytest.mark.parametrize("window", ["95s", "95s:10s"])
def test_it_smooths_level_and_trend_of_each_series_with_two_samples(face, window):
    found = ask(filled(SERIES), f"holt_winters(x[{window}], 0.3, 0.6)", 90, face)
    held = [0, 1, 5, 2, 8, -3, 4, 4, 100] if ":" not in window else [0, 1, 5, 2, 2, 8, -3, 4, 4, 100]
    assert found['{a="1"}'] == pytest.approx(smoothed([float(v) for v in held], 0.3, 0.6), rel=1e-12)
    assert found['{a="2"}'] == pytest.approx(smoothed([3.0, 7.0], 0.3, 0.6))
    assert ":" in window or '{a="3"}' not in found


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_any_series_is_smoothed_as_the_recurrence_says(samples, smoothing, trend):
    store = filled("x " + " ".join(map(repr, samples)))
    expr = f"holt_winters(x[1h], {smoothing!r}, {trend!r})"
    found = ask(store, expr, 10 * (len(samples) - 1))
    assert found == {"{}": pytest.approx(smoothed(samples, smoothing, trend), rel=1e-9, abs=1e-6)}


@pytest.mark.parametrize(("factors", "said"), [("0, 0.5", "smoothing factor"), ("0.5, 1", "trend factor")])
def test_factors_outside_nought_and_one_are_an_error_of_the_evaluation(factors, said):
    with pytest.raises(QueryError, match=f"invalid {said}"):
        ask(filled(SERIES), f"holt_winters(x[1m], {factors})", 90)


def test_it_keeps_its_name_in_canonical_text():
    assert promql.canonical("holt_winters( x[1m],0.1 , 0.2)") == "holt_winters(x[1m], 0.1, 0.2)"


@pytest.mark.peers
def test_prometheus_computes_the_same_under_the_new_name(peer, tmp_path):
    values = ask(filled(SERIES), "holt_winters(x[95s], 0.3, 0.6)", 90)
    case = {
        "interval": "10s",
        "input_series": [
            {"series": line.partition(" ")[0], "values": line.partition(" ")[2]} for line in SERIES.splitlines()
        ],
        "promql_expr_test": [
            {
                "expr": "double_exponential_smoothing(x[95s], 0.3, 0.6)",
                "eval_time": "90s",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in values.items()],
            }
        ],
    }
    file = tmp_path / "case.test.yaml"
    file.write_text(yaml.dump({"evaluation_interval": "10s", "fuzzy_compare": True, "tests": [case]}))
    flag = "--enable-feature=promql-experimental-functions"
    run = subprocess.run([peer("promtool"), flag, "test", "rules", file], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr

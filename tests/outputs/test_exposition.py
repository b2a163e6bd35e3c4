"""The /metrics page."""

import math
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from sidecar.collectors import runner
from sidecar.collectors.process import ProcessCollector, ProcessSettings
from sidecar.model import MetricInfo, Sample, labels_of
from sidecar.outputs import alertmanager, exposition
from sidecar.outputs.exposition import Exposition

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
STEPS = MetricInfo("spikewatch_trainer_steps_total", "counter", "", "Steps of the trainer.", ("rank",))
WAIT = MetricInfo("spikewatch_trainer_data_wait_seconds_total", "counter", "seconds", "Waits.", ("rank",))
SCALE = MetricInfo("spikewatch_trainer_loss_scale", "gauge", "", "Loss scale.", ("rank",))


def store(*rows):
    """A store with these (metric, value, labels)."""
    return lambda: [(metric, labels_of(labels), value) for metric, value, labels in rows]


def page(*rows, catalogue=(STEPS, WAIT, SCALE), sources=None, accept=""):
    content, content_type = Exposition(store(*rows), catalogue, sources).page(accept)
    return content.decode(), content_type


def series(text, parse=parse_classic):
    return {(s.name, labels_of(s.labels)): s.value for family in parse(text) for s in family.samples}


def test_a_metric_of_the_catalogue_has_its_help_and_type():
    text, content_type = page((STEPS.name, 7, {"rank": "0"}))
    assert text.splitlines() == [
        "# HELP spikewatch_trainer_steps_total Steps of the trainer.",
        "# TYPE spikewatch_trainer_steps_total counter",
        'spikewatch_trainer_steps_total{rank="0"} 7.0',
    ]
    assert content_type.startswith("text/plain; version=0.0.4")


def test_a_metric_outside_the_catalogue_is_untyped_and_has_a_help():
    text, _ = page(("spikewatch_something_total", 1, {}))
    assert "# TYPE spikewatch_something_total untyped" in text
    assert "# HELP spikewatch_something_total A metric" in text


def test_openmetrics_is_spoken_to_who_asks_for_it():
    text, content_type = page((WAIT.name, 1.5, {"rank": "0"}), accept=OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")
    assert "# UNIT spikewatch_trainer_data_wait_seconds seconds" in text
    assert series(text, parse_openmetrics) == {(WAIT.name, (("rank", "0"),)): 1.5}


@pytest.mark.parametrize("accept", ["", "text/html", "application/openmetrics-text;version=abc", "\x00;;=,=;"])
def test_any_other_accept_header_gets_the_classic_format(accept):
    assert page((SCALE.name, 1, {}), accept=accept)[1].startswith("text/plain; version=0.0.4")


def test_the_name_that_a_store_keeps_among_the_labels_is_not_a_label_of_the_page():
    assert series(page((SCALE.name, 1, {"__name__": SCALE.name, "rank": "0"}))[0]) == {
        (SCALE.name, (("rank", "0"),)): 1
    }


def test_what_a_part_of_the_sidecar_says_about_itself_comes_before_what_the_store_holds_of_it():
    text, _ = page((SCALE.name, 1, {}), sources={"trainer": lambda: [Sample(SCALE.name, (), 2.0)]})
    assert series(text) == {(SCALE.name, ()): 2}


def test_alerts_appear_under_a_name_that_does_not_mix_with_the_servers_own():
    text, _ = page(
        ("ALERTS", 1, {"alertname": "A", "alertstate": "firing"}), ("ALERTS_FOR_STATE", 5, {"alertname": "A"})
    )
    assert series(text) == {("spikewatch_alerts", (("alertname", "A"), ("alertstate", "firing"))): 1}


def test_results_of_recording_rules_are_left_to_the_server():
    assert page(("spikewatch:waste_usd_per_hour", 1, {}))[0] == ""


def test_a_source_that_fails_is_counted_and_hides_nothing_else(caplog):
    def broken():
        yield Sample("spikewatch_half", (), 1.0)
        raise OSError("gone")

    made = Exposition(store((SCALE.name, 1, {})), [SCALE], {"nvml": broken})
    made.page()
    text = made.page()[0].decode()
    assert series(text) == {
        (SCALE.name, ()): 1,
        ("spikewatch_exposition_errors_total", (("source", "nvml"),)): 2,
    }
    assert [r.getMessage() for r in caplog.records] == ["/metrics lacks what nvml has: OSError: gone"]


def test_a_store_that_fails_leaves_the_sidecars_own_metrics():
    made = Exposition(lambda: 1 / 0, [], {"runner": lambda: [Sample("spikewatch_up", (), 1.0)]})
    assert ("spikewatch_up", ()) in series(made.page()[0].decode())


def test_of_two_descriptions_the_first_counts_and_the_second_is_told(caplog):
    other = MetricInfo(STEPS.name, "gauge", "", "Something else.")
    text, _ = page((STEPS.name, 1, {}), catalogue=[STEPS, STEPS, other])
    assert "# TYPE spikewatch_trainer_steps_total counter" in text
    assert [r.getMessage() for r in caplog.records] == [
        "metric spikewatch_trainer_steps_total is described twice; the first description counts"
    ]


def test_a_gauge_whose_name_openmetrics_gives_to_a_counter_is_untyped(caplog):
    gauge = MetricInfo("spikewatch_trainer_steps", "gauge", "", "Steps.")
    text, _ = page((gauge.name, 1, {}), catalogue=[STEPS, gauge])
    assert "# TYPE spikewatch_trainer_steps untyped" in text
    assert "clashes" in caplog.text


NAMES = st.sampled_from([STEPS.name, WAIT.name, SCALE.name, "spikewatch_new_total", "spikewatch_new_ratio"])
LABELS = st.dictionaries(st.sampled_from(["rank", "gpu", "command"]), st.text(max_size=8), max_size=2)


@pytest.mark.parametrize(("accept", "parse"), [("", parse_classic), (OPENMETRICS, parse_openmetrics)])
@given(st.lists(st.tuples(NAMES, st.floats(min_value=0), LABELS), max_size=12))
def test_whatever_is_in_the_store_reads_back_as_it_is(accept, parse, rows):
    text, _ = page(*rows, accept=accept)
    expected = {}
    for metric, value, labels in rows:
        expected.setdefault((metric, labels_of(labels)), value)
    found = series(text, parse)
    assert found.keys() == expected.keys()
    assert all(found[key] == value or math.isnan(value) for key, value in expected.items())


@pytest.mark.peers
@pytest.mark.parametrize("accept", ["text/plain", "text/plain;version=1.0.0"])
def test_promtool_has_nothing_to_say_about_a_full_page(accept):
    peers = os.environ.get("SPIKEWATCH_PEERS")
    if not peers:
        pytest.skip("SPIKEWATCH_PEERS is not set")
    process = ProcessCollector(ProcessSettings())
    catalogue = (*ProcessCollector.metrics, *runner.METRICS, *alertmanager.METRICS, STEPS, WAIT, SCALE)
    described = [Sample(i.name, tuple((n, "x") for n in sorted(i.labels)), 1.0) for i in catalogue]
    rows = [(STEPS.name, 5, {"rank": "0"}), ("ALERTS", 1, {"alertname": "A", "alertstate": "firing"})]
    rows += [("spikewatch:waste_usd_per_hour", 1, {}), ("ALERTS_FOR_STATE", 1, {}), ("spikewatch_unknown_total", 1, {})]
    made = Exposition(
        store(*rows), catalogue, {"process": lambda: process.sample(0), "all": lambda: described, "bad": lambda: 1 / 0}
    )
    made.page()
    content, _ = made.page(accept)
    promtool = Path(peers) / "bin" / "promtool"
    done = subprocess.run([promtool, "check", "metrics"], input=content, capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
    assert all(info.name.encode() in content for info in (*exposition.METRICS, *catalogue))

"""The shipped responses: their unit tests pass, every signal has one, and every note says what to do."""

from pathlib import Path

import pytest

from sidecar.alerting.loader import load_rules
from sidecar.app.checking import check_files
from sidecar.app.responsetests import run_response_file
from sidecar.app.rulepack import read_pack, shipped_files
from sidecar.model import Alert, AlertState, labels_of
from sidecar.plugins import Registry
from sidecar.responses.loader import load_responses
from sidecar.responses.parameters import Templated
from sidecar.responses.response import Mode
from sidecar.yamlfile import Document

ROOT = Path(__file__).parents[2] / "rules"
TESTS = sorted(ROOT.glob("responses*_test.yaml"))


@pytest.fixture(scope="module")
def registry():
    found = Registry()
    found.discover()
    return found


@pytest.fixture(scope="module")
def responses(registry):
    return load_responses(Document.read(ROOT / "responses.yaml"), registry.remediations).responses


def test_the_file_loads_without_a_warning(registry):
    assert check_files([ROOT / "responses.yaml"], registry).problems == ()


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_their_unit_tests_pass(path, registry):
    report = run_response_file(Document.read(path), registry)
    assert list(report.lines())[1:] == []
    assert report.checks > 3


def test_every_response_has_a_unit_test(responses):
    tested = "".join(path.read_text() for path in TESTS)
    assert [
        r.name for r in responses if f"response: {r.name}," not in tested and f"response: {r.name}\n" not in tested
    ] == []


def test_every_signal_is_answered_and_nothing_acts_by_itself(responses):
    signals = read_pack(shipped_files(extra=False), responses).signals()
    assert [signal.name for signal in signals if not signal.responses] == []
    assert max(response.mode for response in responses) is Mode.SUGGEST


def test_what_answers_a_signal_without_a_remediation_is_a_note(responses):
    changing = {r.name for r in responses if r.remediation != "annotate_only"}
    assert changing == {"feed-the-trainer", "calm-the-loss-scale", "leave-fp16", "make-room"}
    assert all(r.name.startswith("note-") for r in responses if r.name not in changing)


def test_a_note_needs_no_label_that_its_alert_may_lack(responses):
    """It would say nothing at all: a missing label is refused, not left out."""
    always = {"SmallParquetFiles": ("dataset",), "SparkTaskOversized": ("app", "stage"), "IoBlocked": ("cause",)}
    always["GpuXidError"] = ("xid", "kind")
    for group in load_rules(shipped_files(extra=True)).groups:
        for rule in (rule for rule in group.rules if rule.is_alert):
            names = {"rank", "gpu", "index", "worker", "resource", "budget", "volume", "namespace", "pod"}
            labels = dict(rule.label_texts) | dict.fromkeys((*names, *always.get(rule.name, ())), "x")
            alert = Alert(rule.name, labels_of(labels), (), AlertState.FIRING, 0.5, 0)
            for response in responses:
                if response.answers(labels | {"alertname": rule.name}):
                    response.params_for(alert)


def test_a_note_is_a_sentence_about_what_to_do_first(responses):
    for response in responses:
        if response.remediation == "annotate_only":
            source = response.params.raw["note"] if isinstance(response.params, Templated) else response.params.note
            assert source[0].isupper()
            assert source.endswith(".")
            assert 80 <= len(source) <= 400, response.name

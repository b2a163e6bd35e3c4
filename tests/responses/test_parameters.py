"""Parameters with the alert's labels and value in them: typed, bounded, and never made up."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from sidecar.alerting.templates import TemplateParser
from sidecar.errors import ResponseError, TemplateError
from sidecar.model import Alert, AlertState, labels_of
from sidecar.responses.loader import load_responses
from sidecar.responses.parameters import Templated, templates_in
from sidecar.yamlfile import Document


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    names: list[str] = []


class Knobs(BaseModel):
    model_config = ConfigDict(extra="forbid")

    count: int = Field(2, ge=1, le=64)
    share: float = 0.5
    fast: bool = False
    note: str = ""
    inner: Inner = Inner()


def alert(value: float = 0.25, **labels: str) -> Alert:
    return Alert("Starved", labels_of({"rank": "3", **labels}), (), AlertState.FIRING, value, 1, 1)


def rendered(raw: dict[str, Any], subject: Alert | None = None) -> Knobs:
    found = Templated(raw, Knobs, templates_in(raw, TemplateParser())).render(subject or alert())
    assert isinstance(found, Knobs)
    return found


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"count": "{{ $labels.rank }}"}, Knobs(count=3)),
        ({"count": "{{ .Labels.rank }}"}, Knobs(count=3)),
        ({"share": "{{ $value }}"}, Knobs(share=0.25)),
        ({"count": '{{ printf "%.0f" 4.0 }}', "share": 0.75}, Knobs(count=4, share=0.75)),
        ({"fast": "{{ if gt $value 0.1 }}true{{ else }}false{{ end }}"}, Knobs(fast=True)),
        ({"note": "{{ $labels.alertname }} at {{ $value | humanizePercentage }}"}, Knobs(note="Starved at 25%")),
        ({"inner": {"names": ["a", "r{{ $labels.rank }}"]}}, Knobs(inner=Inner(names=["a", "r3"]))),
    ],
)
def test_templates_become_values_of_the_right_type(raw, expected):
    assert rendered(raw) == expected


@pytest.mark.parametrize(
    ("raw", "subject", "message"),
    [
        ({"count": "{{ $labels.gpu }}"}, alert(), "count: the alert has no label 'gpu'"),
        ({"note": "{{ .Labels.gpu }}"}, alert(), "note: the alert has no label 'gpu'"),
        ({"count": "{{ $labels.rank }}"}, alert(rank="many"), "count: must be a whole number .*'many'"),
        ({"count": "{{ $labels.rank }}"}, alert(rank="65"), "count: must be at most 64 .*'65'"),
        ({"count": "{{ $value }}"}, alert(2.5), "count: must be a whole number"),
        ({"share": "{{ $value }}"}, alert(math.nan), "share: must be a finite number"),
        ({"share": "{{ $value }}"}, alert(math.inf), "share: must be a finite number"),
        ({"fast": "{{ $labels.rank }}"}, alert(), "fast: must be true or false"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(raw, subject, message):
    with pytest.raises(ResponseError, match=message):
        rendered(raw, subject)


@pytest.mark.parametrize(
    "text", ['{{ query "up" }}', "{{ $externalLabels.pod }}", "{{ .ExternalURL }}", "{{ $labels.x", "{{ nonsense }}"]
)
def test_a_template_sees_the_alert_and_nothing_else(text):
    with pytest.raises(TemplateError, match="note"):
        templates_in({"note": text}, TemplateParser())


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40).filter(bool))
def test_a_labels_text_arrives_as_it_is_and_is_never_a_template_itself(text):
    assert rendered({"note": "{{ $labels.rank }}"}, alert(rank=text)).note == text


class Plugin:
    name, params, actuator, knobs, example = "knobs", Knobs, "trainer", ("count",), {}


FILE = """\
responses:
- name: a
  match: [alertname=Starved]
  remediation: knobs
  with: {count: '{{ $labels.rank }}', share: %s}
  verify: {expr: up, goal: increase}
"""


def test_a_file_with_templates_loads_and_the_rest_of_it_is_checked_at_once():
    (one,) = load_responses(Document("r.yaml", FILE % "0.5"), {"knobs": Plugin()}).responses
    assert one.params_for(alert()) == Knobs(count=3, share=0.5)
    with pytest.raises(Exception, match="5:46: error: responses.0.with.share: must be a number"):
        load_responses(Document("r.yaml", FILE % "much"), {"knobs": Plugin()})


def test_a_bad_template_is_a_mistake_of_the_file():
    with pytest.raises(Exception, match="r.yaml:5:9: error: share: .*nonsense"):
        load_responses(Document("r.yaml", FILE % "'{{ nonsense }}'"), {"knobs": Plugin()})


def test_parameters_that_cannot_be_had_are_a_decision_and_not_an_error(world, kit):
    class WorkersOf(BaseModel):
        to: int

    raw = {"to": "{{ $labels.workers }}"}
    world.responses = [kit.response(params=Templated(raw, WorkersOf, templates_in(raw, TemplateParser())))]
    world.start()
    world.fire()
    world.run(2)
    assert world.decisions() == [("feed", "bad_parameters")]
    assert world.kinds("decision")[0]["detail"] == "to: the alert has no label 'workers'"
    world.fire(kit.alert(active_at_ms=world.now, fired_at_ms=world.now, workers="5"))
    world.run(60)
    assert world.decisions()[-1] == ("feed", "acted")
    assert world.trainer.values()["workers"] == 5

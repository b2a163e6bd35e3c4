"""Matchers mean what they mean in Alertmanager."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.responses.matchers import Matcher, parse

LABELS = {"a": "b", "c": "x1"}

SAME_AS_ALERTMANAGER = [
    'a="b"', "a=b", " a = b ", '{a="b"}', '{a="b",c!="d"}', 'a="b",c=~"x.*"', 'a="b",', '{a="b",}', 'a=~"(x|y)z"',
    'a=""', 'a!=""', 'missing=""', 'missing!~".+"', 'a="q\\"q"', 'a="x\\\\y"', 'a="x\\ny"', 'a="x\\dy"', 'c=~"x\\d"',
    '"a"="b"', '"a b"="c"', 'a.b="c"', "a=~b", 'a!~"b"', 'a=~"^b$"', 'a=~"b|c"', 'a=~"."', 'c=~"x"', 'a="b,c"',
    "a=b,c=d", "a=b-c.d/e", '1a="b"', 'a:b="c"', 'a="{b}"',
]  # fmt: skip

REFUSED_BY_BOTH = ["a", '="b"', 'a="b" c="d"', 'a="b"c', 'a="b', 'a=~"["', 'a="b",,c="d"', ',a="b"']


def verdict(text: str) -> bool:
    return all(m.matches(LABELS) for m in parse(text))


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ('alertname="Starved"', {"alertname": "Starved"}, True),
        ('alertname="Starved"', {"alertname": "StarvedMore"}, False),
        ('alertname=~"Starved"', {"alertname": "StarvedMore"}, False),
        ('alertname=~"Starved.*"', {"alertname": "StarvedMore"}, True),
        ('severity!="info"', {}, True),
        ('severity=""', {}, True),
        ('severity=~"warning|critical"', {"severity": "critical"}, True),
        ('severity!~"warning|critical"', {"severity": "critical"}, False),
        ('a="1",b="2"', {"a": "1", "b": "3"}, False),
    ],
)
def test_a_matcher_accepts_what_it_says(text, labels, expected):
    assert all(m.matches(labels) for m in parse(text)) is expected


@pytest.mark.parametrize("text", REFUSED_BY_BOTH)
def test_what_alertmanager_refuses_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "character 2: expected one of = != =~ !~, found the end"),
        ('a="b" c="d"', "character 7: expected ',' or the end, found 'c=\"d\"'"),
        ('a="b', "character 3: the quoted text has no end"),
        ('{a="b"', "character 7: expected '}' or ','"),
        ("", "a matcher is missing"),
        ('a=~"("', r"not a valid RE2 regular expression '('"),
        ('a=~"(?=x)"', "not a valid RE2 regular expression"),
        ('""="b"', "a label name is empty"),
    ],
)
def test_a_refusal_says_what_was_expected_where(text, message):
    with pytest.raises(ValueError, match=r".+") as caught:
        parse(text)
    assert message in str(caught.value)


@given(st.text(min_size=1), st.sampled_from(["=", "!="]), st.text())
def test_what_a_matcher_prints_is_read_as_the_same_matcher(name, operator, value):
    quoted = str(Matcher("x", "=", name))[2:]
    printed = f"{quoted}{str(Matcher('x', operator, value))[1:]}"
    assert parse(printed) == (Matcher(name, operator, value),)


@pytest.mark.peers
def test_amtool_gives_the_same_verdict_on_every_example(tmp_path):
    peers = os.environ.get("SPIKEWATCH_PEERS")
    if not peers:
        pytest.skip("SPIKEWATCH_PEERS is not set: no amtool to compare with")
    config = tmp_path / "alertmanager.yml"
    found = {}
    for text in [*SAME_AS_ALERTMANAGER, *REFUSED_BY_BOTH]:
        route = {"receiver": "no", "routes": [{"receiver": "yes", "matchers": [text]}]}
        config.write_text(json.dumps({"route": route, "receivers": [{"name": "no"}, {"name": "yes"}]}))
        tool = Path(peers, "bin", "amtool")
        command = [
            tool,
            "config",
            "routes",
            "test",
            f"--config.file={config}",
            *(f"{k}={v}" for k, v in LABELS.items()),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        found[text] = {"yes": True, "no": False}[done.stdout.split()[-1]] if done.returncode == 0 else None
    ours = {text: verdict(text) for text in SAME_AS_ALERTMANAGER} | dict.fromkeys(REFUSED_BY_BOTH)
    assert ours == found

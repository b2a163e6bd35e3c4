"""The wire: what is accepted, what is refused, and that nothing anybody sends raises anything else."""

import contextlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spikewatch import protocol
from spikewatch.protocol import MAX_PACKET, Malformed, decode, encode

HELLO = {
    "type": "hello",
    "protocol": 1,
    "protocol_min": 1,
    "job": "demo",
    "run_id": "r1",
    "rank": 0,
    "local_rank": 0,
    "world": 1,
    "epoch": "single",
    "framework": "pytorch 2.13.0",
    "backend": "none",
    "step": 12,
    "knobs": [
        {
            "name": "num_workers",
            "type": "int",
            "unit": "processes",
            "minimum": 0,
            "maximum": 16,
            "scope": "local",
            "value": 2,
        }
    ],
    "unavailable": {},
    "changes": [
        {
            "id": "c1",
            "state": "applied",
            "by": "",
            "reason": "",
            "detail": "",
            "step": 3,
            "found": {"num_workers": 1},
            "values": {"num_workers": 2},
            "lease_ms": 2_000,
        }
    ],
}
SET = {"type": "set", "change_id": "c1", "values": {"num_workers": 4}, "expect": {}, "lease_ms": 30_000}
GOOD = [
    HELLO,
    SET,
    {"type": "welcome", "protocol": 1},
    {"type": "renew", "change_id": "c1", "lease_ms": 5_000},
    {"type": "keep", "change_id": "c1"},
    {"type": "revert", "change_id": "c1"},
    {"type": "get"},
    {"type": "state", "step": 1, "knobs": HELLO["knobs"], "unavailable": {"a": "b"}, "changes": []},
    {"type": "change", "change": HELLO["changes"][0], "knobs": {"num_workers": 2}, "answer": True},
    {"type": "dump", "what": "flight_recorder", "dump_id": "d1"},
    {"type": "dumped", "what": "flight_recorder", "dump_id": "d1", "size": 12, "detail": ""},
    {"type": "worker", "protocol": 1, "protocol_min": 1, "name": "tokenizer", "run_id": "r"},
    {"type": "nack", "reason": "busy", "detail": "", "change_id": ""},
]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("message", GOOD, ids=lambda m: m["type"])
def test_every_kind_of_message_goes_over_the_wire_and_comes_back(message):
    assert decode(encode(message)) == message


def test_every_known_kind_is_tried_here():
    assert {message["type"] for message in GOOD} == set(protocol.MESSAGES)


def test_fields_of_a_newer_version_are_let_through():
    assert decode(encode({**SET, "hurry": True}))["hurry"] is True


@pytest.mark.parametrize("message", GOOD, ids=lambda m: m["type"])
def test_a_message_without_one_of_its_fields_is_refused_by_name(message):
    for name in protocol.MESSAGES[message["type"]]:
        with pytest.raises(Malformed, match=f"{name} is missing"):
            decode(json.dumps({k: v for k, v in message.items() if k != name}).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("change_id", ""),
        ("change_id", "x" * 257),
        ("change_id", 5),
        ("values", {}),
        ("values", []),
        ("values", {"a": None}),
        ("values", {"a": [1]}),
        ("values", {"a": 1e300}),
        ("values", {"x" * 257: 1}),
        ("values", {str(n): 1 for n in range(65)}),
        ("lease_ms", True),
        ("lease_ms", 0),
        ("lease_ms", 1.5),
        ("lease_ms", 10**9),
    ],
)
def test_a_field_of_the_wrong_type_or_size_is_refused_by_name(field, value):
    with pytest.raises(Malformed, match=field):
        decode(json.dumps({**SET, field: value}).encode())


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"type": 5}',
        b'{"type": "delete_everything"}',
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"type": "set", "change_id": "a", "values": {"x": NaN}, "expect": {}, "lease_ms": 1000}',
        b'{"type": "get", "x": ' + b"9" * 6_000 + b"}",
        b" " * (MAX_PACKET + 1),
    ],
)
def test_what_is_no_message_is_refused(packet):
    with pytest.raises(Malformed):
        decode(packet)


@settings(max_examples=300)
@given(st.binary(max_size=200) | values.map(lambda v: json.dumps(v).encode()))
def test_arbitrary_packets_are_refused_or_messages_and_nothing_else(packet):
    with contextlib.suppress(Malformed):
        assert decode(packet)["type"] in protocol.MESSAGES  # chance finds a good one now and then


@settings(max_examples=300)
@given(st.sampled_from(GOOD), st.data())
def test_a_message_with_one_field_replaced_is_accepted_or_refused_and_nothing_else(message, data):
    name = data.draw(st.sampled_from([*message]))
    changed = {**message, name: data.draw(values)}
    with contextlib.suppress(Malformed):
        assert decode(json.dumps(changed).encode())["type"] in protocol.MESSAGES


def test_a_message_too_large_for_a_packet_is_not_sent():
    with pytest.raises(Malformed, match="does not fit"):
        encode({"type": "nack", "reason": "x" * MAX_PACKET})


def test_the_largest_hello_a_client_makes_fits_a_packet():
    change = {**HELLO["changes"][0], "id": "x" * 256, "reason": "x" * 32, "detail": "x" * 200}
    encode({**HELLO, "changes": [change] * 32, "unavailable": {"num_workers": "x" * 256}, "job": "x" * 256})


def test_both_ends_speak_the_newest_version_they_share():
    ours = protocol.VERSION
    assert protocol.agree(ours, ours) == ours
    assert protocol.agree(ours + 5, ours) == ours
    assert protocol.agree(ours + 5, ours + 1) is None
    assert protocol.agree(protocol.OLDEST, 0) == protocol.OLDEST
    assert protocol.agree(protocol.OLDEST - 1, 0) is None


def test_every_refusal_has_a_known_reason_and_a_bounded_text():
    assert protocol.nack("busy", "x" * 1000, "c" * 1000) == {
        "type": "nack",
        "reason": "busy",
        "detail": "x" * 256,
        "change_id": "c" * 256,
    }


def test_every_reason_the_client_refuses_with_is_a_known_one():
    used = set()
    for file in Path(protocol.__file__).parent.glob("*.py"):
        used |= set(re.findall(r'(?:Refused|nack)\(\s*"(\w+)"', file.read_text(encoding="utf-8")))
    assert len(used) > 5
    assert used <= protocol.REASONS

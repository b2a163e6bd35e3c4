"""What Alertmanager posts becomes edges: once each, however often it says the same."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import ResponseError
from sidecar.model import Edge
from sidecar.responses.inbox import LAPSE_MS, MOST_FIRING, SOURCE, Inbox

NOW = 1_764_450_000_000  # 2025-11-29T21:00:00Z
NEVER = "0001-01-01T00:00:00Z"


def told(status="firing", starts="2025-11-29T20:59:00Z", ends=NEVER, **labels):
    return {
        "status": status,
        "labels": {"alertname": "CostPerSampleUp", "train_job": "llm", **labels},
        "annotations": {"summary": "more money"},
        "startsAt": starts,
        "endsAt": ends,
        "generatorURL": "http://prometheus/graph",
        "fingerprint": "0f",
    }


def message(*alerts, **changes):
    return json.dumps(
        {
            "version": "4",
            "groupKey": '{}:{alertname="CostPerSampleUp"}',
            "truncatedAlerts": 0,
            "status": "firing",
            "receiver": "spikewatch",
            "groupLabels": {},
            "commonLabels": {},
            "commonAnnotations": {},
            "externalURL": "http://alertmanager",
            "alerts": list(alerts),
            **changes,
        }
    ).encode()


def resolved(**given):
    return told("resolved", ends="2025-11-29T20:59:30Z", **given)


def test_a_firing_alert_is_an_edge_at_its_start():
    got = Inbox().take(message(told(rank="3")), NOW)
    (event,) = got.events
    assert (event.edge, event.source, event.restored) == (Edge.FIRING, SOURCE, False)
    assert event.at_ms == event.alert.fired_at_ms == event.alert.active_at_ms == NOW - 60_000
    assert dict(event.alert.labels) == {"alertname": "CostPerSampleUp", "train_job": "llm", "rank": "3"}
    assert (event.alert.name, dict(event.alert.annotations)) == ("CostPerSampleUp", {"summary": "more money"})
    assert math.isnan(event.alert.value)
    assert got.ignored == {}


def test_what_is_said_again_is_no_edge():
    inbox = Inbox()
    assert len(inbox.take(message(told()), NOW).events) == 1
    for hours in range(1, 5):
        got = inbox.take(message(told()), NOW + hours * 3_600_000)
        assert (got.events, got.ignored) == ((), {"repeated": 1})


def test_an_end_is_an_edge_and_then_it_may_fire_anew():
    inbox = Inbox()
    inbox.take(message(told()), NOW)
    (end,) = inbox.take(message(resolved()), NOW).events
    assert (end.edge, end.at_ms) == (Edge.RESOLVED, NOW - 30_000)
    (again,) = inbox.take(message(told(starts="2025-11-29T20:59:50Z")), NOW).events
    assert (again.edge, again.at_ms) == (Edge.FIRING, NOW - 10_000)


def test_a_new_start_is_a_new_edge_also_where_the_end_was_not_told():
    inbox = Inbox()
    inbox.take(message(told()), NOW)
    assert len(inbox.take(message(told(starts="2025-11-29T20:59:50Z")), NOW).events) == 1


def test_an_alert_that_is_no_longer_repeated_ends():
    inbox = Inbox()
    inbox.take(message(told(rank="0"), told(rank="1")), NOW)
    inbox.take(message(told(rank="0")), NOW + 3_600_000)
    assert inbox.lapsed(NOW + LAPSE_MS - 1) == ()
    (end,) = inbox.lapsed(NOW + LAPSE_MS)
    assert (end.edge, end.alert.label("rank")) == (Edge.RESOLVED, "1")
    (end,) = inbox.lapsed(NOW + LAPSE_MS + 3_600_000)
    assert end.alert.label("rank") == "0"
    assert inbox.lapsed(NOW + 100 * LAPSE_MS) == ()


def test_an_alert_of_another_pod_or_job_is_left_out_and_one_that_names_none_is_not():
    external = {"train_job": "llm", "pod": "llm-0"}
    got = Inbox().take(
        message(told(), told(pod="llm-0"), told(pod="llm-1"), told(train_job="x")), NOW, external=external
    )
    assert [e.alert.label("pod") for e in got.events] == ["", "llm-0"]
    assert got.ignored == {"not_ours": 2}


def test_an_alert_that_our_own_rules_have_firing_is_left_out_whatever_external_labels_it_got_on_its_way():
    own = (("alertname", "CostPerSampleUp"), ("rank", "3"))
    got = Inbox().take(
        message(told(rank="3"), told(rank="4")),
        NOW,
        external={"train_job": "llm"},
        fires_here=lambda labels: labels == own,
    )
    assert [e.alert.label("rank") for e in got.events] == ["4"]
    assert got.ignored == {"fires_here": 1}


def test_an_alert_without_a_name_is_left_out():
    got = Inbox().take(message(told(alertname="")), NOW)
    assert (got.events, got.ignored) == ((), {"no_alertname": 1})


def test_a_start_in_the_future_counts_as_now():
    (event,) = Inbox().take(message(told(starts="2027-01-01T00:00:00+01:00")), NOW).events
    assert event.at_ms == NOW


def test_what_fires_is_bounded_and_ends_make_room():
    inbox = Inbox()
    half = MOST_FIRING // 2
    for part in range(2):
        inbox.take(message(*(told(i=str(i)) for i in range(part * half, part * half + half))), NOW)
    got = inbox.take(message(told(i="one more"), told(i="0")), NOW)
    assert (got.events, got.ignored) == ((), {"too_many": 1, "repeated": 1})
    inbox.take(message(resolved(i="7")), NOW)
    assert len(inbox.take(message(told(i="one more")), NOW).events) == 1


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"", "body"),
        (b"[]", "body"),
        (b"{}", "version"),
        (message(version="3"), "version"),
        (message(told(status="pending")), "alerts.0.status"),
        (message(told(starts="yesterday")), "alerts.0.startsAt: not an RFC 3339 time: 'yesterday'"),
        (message({**told(), "labels": {"alertname": 7}}), "alerts.0.labels.alertname"),
        (message(*[told()] * (MOST_FIRING + 1)), "alerts"),
    ],
)
def test_what_is_no_message_of_alertmanager_is_refused(body, where):
    with pytest.raises(ResponseError, match=f"not a webhook message of Alertmanager: {where}"):
        Inbox().take(body, NOW)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.integers(0, 3)), max_size=30))
def test_between_two_firing_edges_of_an_alert_there_is_an_end_or_another_start(steps):
    inbox, firing = Inbox(), {}
    for rank, fires, start in steps:
        starts = f"2025-11-29T20:59:{start:02}Z"
        body = message(told(rank=rank, starts=starts) if fires else resolved(rank=rank, starts=starts))
        for event in inbox.take(body, NOW).events:
            if event.edge is Edge.FIRING:
                assert firing.get(rank) != event.at_ms
                firing[rank] = event.at_ms
            else:
                firing.pop(rank, None)


def test_duplicated_messages_and_a_restart_open_one_episode_that_acts_once(world, kit):
    world.responses = [kit.response(matchers=kit.matchers('alertname="CostPerSampleUp"'))]
    world.start()
    body = message(told(starts="1970-01-01T00:16:40Z"))
    for inbox in (Inbox(), Inbox()):  # the second knows nothing of the first: the sidecar was restarted
        for _ in range(3):
            world.responder.on_events(inbox.take(body, world.now).events, world.now)
    world.run(60)
    assert world.decisions() == [("feed", "acted")]
    assert [e["source"] for e in world.kinds("edge")] == [SOURCE, SOURCE]
    world.responder.on_events(Inbox().take(body, world.now).events, world.now)
    world.run(60)
    assert world.decisions() == [("feed", "acted")]


def test_an_end_that_alertmanager_tells_ends_the_episode(world, kit):
    world.responses = [kit.response(matchers=kit.matchers('alertname="CostPerSampleUp"'))]
    world.start()
    inbox = Inbox()
    start = "1970-01-01T00:16:40Z"
    world.responder.on_events(inbox.take(message(told(starts=start)), world.now).events, world.now)
    world.run(5)
    end = told("resolved", starts=start, ends="1970-01-01T00:16:44Z")
    world.responder.on_events(inbox.take(message(end), world.now).events, world.now)
    world.run(60)
    assert world.decisions() == [("feed", "resolved")]
    assert world.trainer.sent == []

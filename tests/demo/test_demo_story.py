"""What the demo reads out of the sidecar's journal and metrics."""

from __future__ import annotations

import itertools

import httpx
import pytest

from sidecar.cli.demo.story import Story, changed
from sidecar.cli.demo.watch import SidecarError, Watch

FOUND, VALUES = {"num_workers": 2, "prefetch_factor": 2}, {"num_workers": 4, "prefetch_factor": 2}
numbers = itertools.count(1)


def entry(second, kind, episode="", **data):
    return {
        "id": next(numbers), "at_ms": second * 1000, "kind": kind, "episode": episode, "response": "feed", "data": data
    }  # fmt: skip


def edge(second, edge, rank="", active=0, alert="TrainerStarvedOfData", value=0.6):
    labels = {"rank": rank} if rank else {}
    return entry(second, "edge", edge=edge, alert=alert, labels=labels, active_at_ms=active * 1000, value=value,
                 responses=["feed"])  # fmt: skip


HELPED = [
    edge(10, "pending"),
    edge(40, "firing", active=10),
    entry(40, "experiment", "e1", phase="planned", values=VALUES, found=FOUND, why="starved"),
    entry(40, "waiting", "e1", reason="thin_baseline", detail="full in 40000 ms"),
    entry(80, "decision", "e1", reason="acted"),
    entry(80, "experiment", "e1", phase="intended", values=VALUES, found=FOUND, why="starved"),
    entry(80, "command", "e1", command="apply"),
    entry(82, "experiment", "e1", phase="settling", step=700, values=VALUES, found=FOUND, measure_from_ms=92_000),
    entry(92, "experiment", "e1", phase="measuring"),
    entry(152, "verdict", "e1", verdict="helped", reason="", gain_percent=90.12, at_least_percent=85.0),
    entry(152, "experiment", "e1", phase="keeping"),
    entry(153, "experiment", "e1", phase="closed", result="kept", verdict="helped", reason=""),
]


def told(entries, story=None):
    story = story or Story()
    return story, [line.text for line in map(story.take, entries) if line is not None]


def test_a_journal_from_pending_to_kept_is_told_with_its_times_and_values():
    """Every stage shows once, in order."""
    story, lines = told(HELPED)
    assert (story.active_at, story.fired_at, story.ordered_at, story.applied_at) == (10, 40, 80, 82)
    assert (story.measure_from, story.verdict_at) == (92, 152)
    assert (story.found, story.values) == (FOUND, VALUES)
    assert (story.verdict, story.result, story.over) == ("helped", "kept", True)
    assert [next(i for i, line in enumerate(lines) if word in line) for word in (
        "is pending: 60%", "fires", "planned: num_workers 2 → 4, prefetch_factor 2",
        "waits for its baseline", "the change is ordered", "applied at step 700", "measuring",
        "verdict: helped: +90.1 %, at least +85.0 %", "the change was kept",
    )] == list(range(9))  # fmt: skip


def test_nothing_is_over_before_the_experiment_is_closed():
    """Not even with the verdict: the values come back, or are kept, after it."""
    story = Story()
    for one in HELPED[:-1]:
        story.take(one)
        assert not story.over


def test_a_response_that_does_not_act_ends_the_story_with_its_reason():
    """The demo must not wait for an experiment that will not come."""
    story, lines = told([edge(10, "firing"), entry(11, "decision", "e1", reason="out_of_bounds", detail="too many")])
    assert story.over
    assert lines[-1] == "response feed does not act: out of bounds (too many)"


def test_the_rank_whose_alert_lasts_acts_although_the_other_one_planned_first():
    """Both plan the same, which is told once; the first resolves while the baseline is being taken."""
    plan = {"values": VALUES, "found": FOUND, "why": "starved"}
    story, lines = told(
        [
            edge(40, "firing", "0"),
            entry(40, "experiment", "e1", phase="planned", **plan),
            edge(41, "firing", "1"),
            entry(41, "experiment", "e2", phase="planned", **plan),
            edge(60, "resolved", "0"),
            entry(60, "decision", "e1", reason="resolved"),
            entry(80, "decision", "e2", reason="acted"),
            entry(80, "experiment", "e2", phase="intended", **plan),
            entry(142, "verdict", "e2", verdict="did_not_help", reason="no_gain"),
            entry(144, "experiment", "e2", phase="closed", result="rolled_back"),
        ]
    )
    assert (story.ordered_at, story.verdict, story.result) == (80, "did not help", "rolled_back")
    assert sum("remediation planned" in line for line in lines) == 1
    assert "TrainerStarvedOfData fires for rank 1" in lines


def test_one_rank_s_alert_that_resolves_does_not_end_the_story_while_another_s_is_open():
    """The response may still act on the other rank's alert."""
    story, _ = told([edge(10, "firing", "0"), edge(10, "firing", "1"), entry(11, "decision", "e1", reason="resolved")])
    assert not story.over
    story.take(entry(12, "decision", "e2", reason="resolved"))
    assert story.over


def test_the_episode_of_another_rank_neither_ends_nor_colours_the_story():
    """Two ranks fire; one episode acts, and the other one finds the alert resolved."""
    story, _ = told(HELPED[:6])
    _, lines = told(
        [
            entry(81, "waiting", "e2", reason="busy", detail=""),
            entry(81, "decision", "e2", reason="resolved"),
            entry(82, "verdict", "e2", verdict="inconclusive", reason="x"),
        ],
        story,
    )
    assert lines == []
    assert not story.over
    assert story.verdict == ""


def test_the_alert_shown_is_the_furthest_of_all_ranks_and_detection_is_the_first_to_fire():
    """Rank 1 is pending while rank 0 fires."""
    story = Story()
    states = []
    for one in (
        edge(10, "pending", "0"),
        edge(11, "pending", "1"),
        edge(40, "firing", "0", active=10),
        edge(41, "resolved", "0"),
    ):
        story.take(one)
        states.append(story.alert)
    assert states == ["pending", "pending", "firing", "pending"]
    assert story.fired_at == 40


def test_an_alert_that_goes_away_before_it_fires_leaves_no_trace_but_its_line():
    """A stall of a second is not a starvation."""
    story, lines = told([edge(10, "pending"), edge(12, "cleared")])
    assert (story.alert, story.active_at) == ("", 0)
    assert "went away" in lines[-1]


def test_entries_about_other_alerts_and_of_unknown_kinds_are_left_out():
    """The sidecar may note more than the demo shows."""
    other = edge(5, "firing", alert="PrefetchHitRateLow")
    story, lines = told([other, entry(6, "sidecar", event="started"), entry(7, "weather")])
    assert lines == []
    assert story == Story()


def test_a_change_names_every_setting_once():
    """What stays, with one value; what is new, with a question mark before it."""
    assert changed(FOUND, VALUES) == "num_workers 2 → 4, prefetch_factor 2"
    assert changed({}, {"a": 1}) == "a ? → 1"


METRICS = """# TYPE spikewatch_trainer_dataloader_workers gauge
spikewatch_trainer_dataloader_workers{rank="1"} 4
spikewatch_trainer_dataloader_workers{rank="0"} 2
# TYPE spikewatch_trainer_dataloader_prefetch_factor gauge
spikewatch_trainer_dataloader_prefetch_factor{rank="0"} 3
spikewatch_trainer_loss{rank="0"} 0.5
"""


def watch(answer):
    """A Watch whose sidecar answers with `answer(path)`."""
    transport = httpx.MockTransport(lambda request: answer(request.url.path))
    return Watch("http://sidecar", httpx.Client(transport=transport))


def test_each_journal_entry_is_given_once_and_the_oldest_first():
    """Whatever the order in which the sidecar lists them, and however often it is asked."""
    listed = HELPED[1::-1]
    sidecar = watch(lambda path: httpx.Response(200, json={"status": "success", "data": {"entries": listed}}))
    assert sidecar.journal() == HELPED[:2]
    assert sidecar.journal() == []
    listed = HELPED[2::-1]
    assert sidecar.journal() == HELPED[2:3]


def test_the_settings_are_those_that_each_rank_reports():
    """By rank; a setting that a rank does not report is absent, not zero."""
    sidecar = watch(lambda path: httpx.Response(200, text=METRICS))
    assert sidecar.knobs() == [{"num_workers": 2, "prefetch_factor": 3}, {"num_workers": 4}]


@pytest.mark.parametrize(
    "answer",
    [httpx.Response(500), httpx.Response(200, text="{}"), httpx.Response(200, json={"data": {"entries": [{}]}})],
    ids=["error", "no data", "no ids"],
)
def test_an_answer_that_is_not_as_documented_is_an_error_that_names_the_request(answer):
    """Not an empty journal."""
    with pytest.raises(SidecarError, match="GET http://sidecar/api/v1/journal"):
        watch(lambda path: answer).journal()


def test_a_sidecar_is_ready_when_it_says_so():
    """Refused connections and 503 are not yet."""
    assert watch(lambda path: httpx.Response(200)).ready()
    assert not watch(lambda path: httpx.Response(503)).ready()

    def refuse(path):
        raise httpx.ConnectError("refused")

    assert not watch(refuse).ready()

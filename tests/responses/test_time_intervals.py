"""Time intervals mean what they mean in Alertmanager."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediations.dataloader_prefetch import DataloaderPrefetch
from sidecar.errors import ConfigError
from sidecar.responses.loader import load_responses
from sidecar.responses.timeintervals import IntervalShape
from sidecar.yamlfile import Document


def interval(text):
    return Document("i.yaml", text).validate(IntervalShape).interval()


def at(text):
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("{}", ["2026-11-29T00:00:00Z"], []),
        (
            "times: [{start_time: '09:00', end_time: '17:00'}]",
            ["2026-11-29T09:00:00Z", "2026-11-29T16:59:59Z"],
            ["2026-11-29T08:59:59Z", "2026-11-29T17:00:00Z"],
        ),
        (
            "times: [{start_time: 17:30, end_time: 24:00}]",  # without quotes YAML makes numbers of these
            ["2026-11-29T17:30:00Z", "2026-11-29T23:59:59Z"],
            ["2026-11-29T17:29:59Z", "2026-11-29T00:00:00Z"],
        ),
        (
            "weekdays: ['monday:friday', Sunday]",
            ["2026-11-29T12:00:00Z", "2026-11-30T00:00:00Z"],
            ["2026-11-28T12:00:00Z"],
        ),
        ("weekdays: ['sunday:monday']", ["2026-11-29T12:00:00Z", "2026-11-30T12:00:00Z"], ["2026-11-28T12:00:00Z"]),
        ("days_of_month: ['1:5', 29]", ["2026-11-05T12:00:00Z", "2026-11-29T12:00:00Z"], ["2026-11-06T12:00:00Z"]),
        ("days_of_month: ['-3:-1']", ["2026-02-26T12:00:00Z", "2026-02-28T12:00:00Z"], ["2026-02-25T12:00:00Z"]),
        ("days_of_month: ['1:-1']", ["2026-02-01T12:00:00Z", "2026-02-28T12:00:00Z"], []),
        ("days_of_month: ['31']", ["2026-01-31T12:00:00Z"], ["2026-02-28T12:00:00Z"]),
        (
            "months: ['may:august', december, 2]",
            ["2026-05-01T00:00:00Z", "2026-12-31T23:59:59Z", "2026-02-01T00:00:00Z"],
            ["2026-04-30T23:59:59Z"],
        ),
        ("months: ['1:3']", ["2026-03-31T23:59:59Z"], ["2026-04-01T00:00:00Z"]),
        ("years: ['2025:2026', 2030]", ["2026-01-01T00:00:00Z", "2030-06-01T00:00:00Z"], ["2027-01-01T00:00:00Z"]),
        (
            "{weekdays: [sunday], times: [{start_time: '09:00', end_time: '17:00'}], location: America/New_York}",
            ["2026-11-29T14:00:00Z"],  # nine o'clock there
            ["2026-11-29T13:59:00Z", "2026-11-30T14:00:00Z"],
        ),
        (
            "{times: [{start_time: '02:00', end_time: '03:00'}], location: Europe/Berlin}",
            ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"],  # the clock shows half past two twice that night
            ["2026-10-25T02:30:00Z"],
        ),
    ],
)  # fmt: skip
def test_a_moment_lies_in_it_or_not(text, inside, outside):
    found = interval(text)
    assert [found.contains(at(t)) for t in inside] == [True] * len(inside)
    assert [found.contains(at(t)) for t in outside] == [False] * len(outside)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("times: [{start_time: '9:00', end_time: '17:00'}]", "write a time of day like '09:00'"),
        ("times: [{start_time: '25:00', end_time: '26:00'}]", "write a time of day like '09:00'"),
        ("weekdays: [mon]", "'mon' is no weekday"),
        ("weekdays: ['friday:monday']", "the range ends before it starts"),
        ("weekdays: [1]", "'1' is no weekday"),
        ("days_of_month: ['0:5']", "there is no day of a month 0"),
        ("days_of_month: [1:5]", "in quotes, a range of them like '1:5'"),
        ("days_of_month: ['32']", "'32' is no day of a month"),
        ("days_of_month: ['-1:5']", "the range ends before it starts"),
        ("months: [smarch]", "'smarch' is no month"),
        ("months: ['0']", "'0' is no month"),
        ("years: ['2030:2020']", "the range ends before it starts"),
        ("location: Mars/Olympus", "no such time zone on this machine: 'Mars/Olympus'"),
        ("location: ../../etc/passwd", "no such time zone"),
        ("weekday: [monday]", "unknown key 'weekday' (did you mean weekdays?)"),
    ],
)
def test_a_mistake_is_refused_with_what_to_write(text, message):
    with pytest.raises(ConfigError) as caught:
        interval(text)
    assert message in str(caught.value)


def test_a_day_that_ends_before_it_starts_is_refused():
    with pytest.raises(ValueError, match="write a night as two intervals"):
        interval("times: [{start_time: '22:00', end_time: '06:00'}]")


def test_local_is_the_machines_own_time_zone():
    found = interval("{times: [{start_time: '00:00', end_time: '12:00'}], location: Local}")
    noon = datetime(2026, 6, 1, 11, 59).astimezone()
    assert found.contains(int(noon.timestamp() * 1000))


@given(
    t=st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1)),
    first=st.integers(0, 6),
    length=st.integers(0, 6),
)
def test_weekday_ranges_agree_with_the_calendar(t, first, length):
    days = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
    last = min(6, first + length)
    found = interval(f"weekdays: ['{days[first]}:{days[last]}']")
    day = t.replace(tzinfo=UTC)
    assert found.contains(int(day.timestamp() * 1000)) == (day.strftime("%A").lower() in days[first : last + 1])


# --- in a response ----------------------------------------------------------------------------------------------------


def test_a_response_acts_within_its_active_intervals_and_not_in_muted_ones(world, kit):
    minute = datetime.fromtimestamp(kit.START / 1000, UTC)
    later = f"{minute.hour:02}:{minute.minute + 3:02}"
    world.responses = [
        kit.response(
            active=(interval(f"times: [{{start_time: '{later}', end_time: '24:00'}}]"),),
            muted=(interval("years: ['1970']"),),
        )
    ]
    world.start()
    world.fire()
    world.run(100)
    assert world.kinds("waiting")[0]["reason"] == "outside_time_intervals"
    world.run(200)
    assert world.trainer.sent == [], "muted"
    world.responder.replace([kit.response(active=world.responses[0].active)], {}, world.now)
    world.run(60)
    assert world.decisions() == [("feed", "acted")]


def test_a_response_whose_list_of_active_intervals_is_empty_never_acts(world, kit):
    world.responses = [kit.response(active=())]
    world.start()
    world.fire()
    world.run(60)
    assert world.trainer.sent == []


def test_a_change_on_trial_is_measured_to_its_end_when_its_time_is_over(world, kit):
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.responder.replace([kit.response(active=())], {}, world.now)
    world.run(60)
    assert world.verdicts() == [("helped", "gain_is_real")]


FILE = """\
time_intervals:
- name: office-hours
  time_intervals: [{weekdays: ['monday:friday']}]
- name: nights
  time_intervals: [{times: [{start_time: '22:00', end_time: '06:00'}]}]
responses:
- name: a
  match: [alertname=X]
  remediation: dataloader_prefetch
  active_time_intervals: [office-hours]
  mute_time_intervals: [weekends, nights]
  verify: {expr: up, goal: increase}
"""


def load(text):
    return load_responses(Document("r.yaml", text), {"dataloader_prefetch": DataloaderPrefetch()}).responses


def test_a_file_names_its_intervals_and_every_mistake_in_them_has_its_place():
    with pytest.raises(ConfigError) as caught:
        load(FILE)
    assert [str(p).split(";")[0] for p in caught.value.problems] == [
        "r.yaml:5:20: error: end_time must be after start_time",
        "r.yaml:11:25: error: no time interval is named 'weekends'",
    ]
    (one,) = load(FILE.replace("'06:00'", "'23:00'").replace("weekends, ", ""))
    assert one.awake(at("2026-11-30T12:00:00Z"))
    assert not one.awake(at("2026-11-30T22:30:00Z")), "muted"
    assert not one.awake(at("2026-11-29T12:00:00Z")), "a Sunday"


def test_no_list_or_an_empty_one_means_at_any_time():
    text = FILE.replace("[office-hours]", "[]").replace("[weekends, nights]", "[]").replace("'06:00'", "'23:00'")
    assert load(text)[0].awake(at("2026-11-29T12:00:00Z"))


def test_an_interval_named_twice_is_a_mistake():
    with pytest.raises(ConfigError, match="4:9: error: the name 'office-hours' is given twice"):
        load(FILE.replace("name: nights", "name: office-hours"))

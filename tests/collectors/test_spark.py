"""What Spark's tasks handle, told by a server on the loopback that answers in the shapes of its REST API."""

import sys
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

sys.path.insert(0, str(Path(__file__).parent))

from spark_server import GB, serving

from sidecar.collectors.spark.collector import SparkCollector, SparkSettings
from sidecar.collectors.spark.stages import KINDS, Stage, TaskBytes, chosen, stage, task_bytes
from sidecar.model import Availability

NOW = 1_796_000_000_000


@pytest.fixture
def spark():
    with serving() as (server, url):
        server.url = url
        yield server


@pytest.fixture
def collector():
    made = []

    def start(*urls, timer=None, refresh=0, **more):
        chosen = SparkSettings.model_validate({"enabled": True, "urls": urls, **more})
        chosen = chosen.model_copy(update={"refresh": refresh})  # every look asks
        made.append(SparkCollector(chosen) if timer is None else SparkCollector(chosen, timer=timer))
        return made[-1]

    yield start
    for one in made:
        one.close()


def values(one, now_ms=NOW):
    declared = {info.name: set(info.labels) for info in one.metrics}
    found = {}
    for s in one.sample(now_ms):
        assert {name for name, _ in s.labels} == declared[s.metric], s.metric
        key = (s.metric.removeprefix("spikewatch_spark_"), *(v for _, v in s.labels))
        assert key not in found, "a series came twice"
        found[key] = s.value
    return found


def sizes(found):
    """Application, stage and stat of each size of a task."""
    return {key[1:]: value for key, value in found.items() if key[0] == "task_serialized_bytes"}


def test_it_is_off_unless_it_is_switched_on_and_without_a_server_says_what_to_name(collector):
    assert SparkSettings().enabled is False
    status = collector().probe()
    assert (status.state, status.reason) == (Availability.UNAVAILABLE, "no_source")
    assert "4040" in status.fix


def test_a_task_counts_with_the_largest_of_what_it_reads_writes_shuffles_and_sends(spark, collector):
    place = spark.application("local-1", "etl")
    spark.stage(
        place,
        3,
        most={"input": 2 * GB, "shuffle_read": 21 * GB, "result": 1000},
        median={"input": GB, "shuffle_read": GB // 2},
        total={"input": 12 * GB, "shuffle_read": 60 * GB},
    )
    found = values(collector(spark.url))
    assert sizes(found) == {("etl", "3", "max"): 21 * GB, ("etl", "3", "p50"): GB, ("etl", "3", "mean"): 6 * GB}
    kinds = {key[2]: value for key, value in found.items() if key[0] == "task_max_bytes"}
    assert kinds == {"input": 2 * GB, "output": 0, "shuffle_read": 21 * GB, "shuffle_write": 0, "result": 1000}
    assert found["stage_tasks", "etl", "3"] == 10


def test_a_task_that_still_runs_is_seen_before_it_ends(spark, collector):
    place = spark.application("local-1", "etl")
    running = [{"shuffle_read": 22 * GB}, {"input": GB}]
    spark.stage(place, 4, status="ACTIVE", tasks=2, total={"shuffle_read": 22 * GB, "input": GB}, running=running)
    found = sizes(values(collector(spark.url)))
    assert found == {("etl", "4", "max"): 22 * GB, ("etl", "4", "mean"): 11 * GB}, "no task has ended: no median"


def test_before_any_task_is_known_the_largest_has_at_least_the_mean(spark, collector):
    place = spark.application("local-1", "etl")
    spark.stage(place, 4, status="ACTIVE", tasks=2, total={"output": 50 * GB}, running=[{}, {}])
    assert sizes(values(collector(spark.url)))["etl", "4", "max"] == 25 * GB


def test_of_the_stages_that_ended_only_the_newest_are_told(spark, collector):
    place = spark.application("local-1", "etl")
    for number in range(8):
        spark.stage(place, number, most={"input": number})
    spark.stage(place, 8, status="SKIPPED")
    spark.stage(place, 9, status="PENDING", tasks=0)
    found = sizes(values(collector(spark.url, ended_stages=2)))
    assert {key[1] for key in found} == {"6", "7"}


def test_a_stage_that_failed_counts_and_of_its_attempts_the_newest(spark, collector):
    place = spark.application("local-1", "etl")
    spark.stage(place, 1, most={"input": 5}, status="FAILED", attempt=0)
    spark.stage(place, 1, most={"input": 9}, status="FAILED", attempt=1)
    spark.stage(place, 1, most={"input": 7}, attempt=2)
    assert sizes(values(collector(spark.url)))["etl", "1", "max"] == 7


def test_what_a_stage_did_that_ended_is_asked_for_once(spark, collector):
    place = spark.application("local-1", "etl")
    spark.stage(place, 1, most={"input": 5})
    one = collector(spark.url)
    before = values(one)
    spark.requests.clear()
    after = values(one)
    assert [path for path, _ in spark.requests] == ["applications", "applications", f"{place}/stages"]
    assert sizes(after) == sizes(before)


def test_between_two_readings_the_server_is_left_alone_and_nothing_is_written(spark, collector):
    spark.stage(spark.application("local-1", "etl"), 1, most={"input": 5})
    one = collector(spark.url, refresh=30_000)
    written = [next(iter(one.sections(NOW + ms))).samples is not None for ms in (0, 5_000, 29_999)]
    asked = len(spark.requests)
    assert written == [True, False, False]
    assert next(iter(one.sections(NOW + 30_000))).samples is not None
    assert len(spark.requests) > asked
    asked = len(spark.requests)
    assert next(iter(one.sections(NOW - 3_600_000))).samples is not None, "the clock was set back"
    assert len(spark.requests) > asked


def test_under_yarn_the_newest_attempt_is_asked(spark, collector):
    place = spark.application("application_1_2", "etl", attempt="2")
    spark.stage(place, 1, most={"input": 5})
    assert sizes(values(collector(spark.url)))["etl", "1", "max"] == 5
    assert place == "applications/application_1_2/2"


def test_of_a_history_server_only_applications_that_ended_lately_are_asked_for(spark, collector):
    place = spark.application("local-1", "nightly", completed=True)
    spark.stage(place, 1, most={"input": 5})
    assert sizes(values(collector(spark.url)))["nightly", "1", "max"] == 5
    asked = [asked for path, asked in spark.requests if path == "applications"]
    assert asked[0] == {"status": "running", "limit": "21"}
    assert asked[1] == {"status": "completed", "limit": "21", "minEndDate": "2026-11-29T23:53:20.000GMT"}


def test_two_runs_of_one_name_and_two_servers_that_know_one_run_are_told_as_one(spark, collector):
    for key, most in (("local-1", 5), ("local-2", 9)):
        spark.stage(spark.application(key, "etl"), 1, most={"input": most})
    with serving() as (other, url):
        other.stage(other.application("local-2", "etl"), 1, most={"input": 9, "result": 3})
        found = values(collector(spark.url, url))
    assert sizes(found)["etl", "1", "max"] == 9
    assert found["task_max_bytes", "etl", "result", "1"] == 3


def test_applications_and_stages_beyond_the_limits_are_counted(spark, collector):
    for n in range(5):
        place = spark.application(f"local-{n}", f"app{n}")
        for number in range(4):
            spark.stage(place, number, status="ACTIVE", tasks=1, running=[{"input": 1}])
    one = collector(spark.url, applications=3, running_stages=2)
    found = values(one)
    server = spark.url.removeprefix("http://")
    assert len({key[0] for key in sizes(found)}) == 3
    assert found["applications", server] == 3
    assert found["left_out", server, "applications"] == 1, "one more than asked for: there are more"
    assert found["left_out", server, "stages"] == 6


def test_a_reading_whose_time_is_up_tells_what_it_has_seen_and_counts_the_rest(spark, collector):
    for n in range(3):
        spark.stage(spark.application(f"local-{n}", f"app{n}"), 1, most={"input": 5})
    # each look at the time finds it 4 s later; the first application's answers need six of them
    ticks = count(0, 4)
    found = values(collector(spark.url, timer=lambda: float(next(ticks)), deadline="40s", timeout="60s"))
    server = spark.url.removeprefix("http://")
    assert found["applications", server] + found["left_out", server, "applications"] == 3
    assert found["left_out", server, "applications"] > 0


def test_of_a_running_stage_with_very_many_tasks_no_quantiles_are_asked_for(spark, collector):
    place = spark.application("local-1", "etl")
    spark.stage(place, 1, most={"input": 5}, status="ACTIVE", tasks=30_000, total={"input": 30_000}, running=[{}])
    assert ("etl", "1", "p50") not in sizes(values(collector(spark.url)))
    assert not [path for path, _ in spark.requests if path.endswith("taskSummary")]


# --- what can go wrong ------------------------------------------------------------------------------------------------


def test_a_driver_that_is_gone_ends_its_series_and_hides_no_other(spark, collector):
    spark.stage(spark.application("local-1", "etl"), 1, most={"input": 5})
    with serving() as (other, url):
        other.stage(other.application("local-9", "other"), 1, most={"input": 5})
        one = collector(url, spark.url)
        assert {key[0] for key in sizes(values(one))} == {"etl", "other"}
    found = values(one)
    gone = url.removeprefix("http://")
    assert {key[0] for key in sizes(found)} == {"etl"}
    assert (found["up", gone], found["read_errors_total", gone]) == (0, 1)
    status = one.probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, "unreachable")
    assert [line.status.state for line in one.findings()] == [Availability.UNAVAILABLE, Availability.AVAILABLE]


@pytest.mark.parametrize(
    ("answer", "reason", "fix"),
    [
        ((200, {}, b"<html>"), "not_spark", "without /api/v1"),
        ((200, {}, b"{}"), "not_spark", "without /api/v1"),
        ((200, {}, b"[" * 100_000), "not_spark", "without /api/v1"),
        ((503, {}, b""), "status_503", "answers 503"),
        ((302, {"Location": "http://proxy/x"}, b""), "redirected", "YARN"),
        ((200, {}, b" " * (17 << 20)), "too_large", "retainedStages"),
    ],
)
def test_an_answer_that_is_none_is_told_with_its_remedy(spark, collector, answer, reason, fix):
    spark.answers["applications"] = answer
    one = collector(spark.url)
    assert sizes(values(one)) == {}
    status = one.probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, reason)
    assert fix in status.fix
    spark.answers.clear()
    values(one)
    assert one.probe().state is Availability.AVAILABLE


def test_of_an_application_with_too_many_stages_those_that_run_are_told(spark, collector, monkeypatch):
    monkeypatch.setattr("sidecar.collectors.spark.api._MAX_BYTES", 4000)
    place = spark.application("local-1", "etl")
    for number in range(40):
        spark.stage(place, number, most={"input": 5})
    spark.stage(place, 40, status="ACTIVE", tasks=1, running=[{"input": 7}])
    assert set(sizes(values(collector(spark.url)))) == {("etl", "40", "max"), ("etl", "40", "mean")}


def test_an_application_that_ends_while_it_is_asked_is_passed_over(spark, collector):
    spark.stage(spark.application("local-1", "etl"), 1, most={"input": 5})
    spark.apps.append({"id": "local-2", "name": "gone", "attempts": [{"completed": False}]})
    one = collector(spark.url)
    assert {key[0] for key in sizes(values(one))} == {"etl"}
    assert one.probe().state is Availability.AVAILABLE


@pytest.mark.parametrize(
    ("urls", "text"),
    [
        (["driver:4040"], "give an address"),
        (["ftp://driver"], "give an address"),
        (["http://driver:4040/api/v1"], "leave /api/v1 out"),
        (["http://driver:4040", "http://driver:4040/"], "two urls lead to one server"),
    ],
)
def test_urls_that_cannot_be_meant_are_refused(urls, text):
    with pytest.raises(ValidationError, match=text):
        SparkSettings.model_validate({"urls": urls})


def test_a_password_in_a_url_is_nowhere_shown(spark, collector):
    spark.answers["applications"] = (503, {}, b"")
    one = collector(spark.url.replace("http://", "http://user:secret@"))
    found = values(one)
    assert [key for key in found if key[0] == "up"]
    assert "secret" not in f"{found} {one.probe()} {list(one.findings())}"


# --- the numbers ------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["status", "stageId", "numActiveTasks", "inputBytes", "inputMetrics", "bytesRead", "taskMetrics"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["status", "stageId", "numTasks", "numActiveTasks", "inputBytes"]), JSON), JSON)
def test_no_answer_makes_the_reader_raise(listed, other):
    one = stage({"status": "ACTIVE", "stageId": 1, "numActiveTasks": 1, **listed})
    if one is not None:
        found = task_bytes(one, other if isinstance(other, dict) else None, [other] if isinstance(other, dict) else [])
        assert set(found.stats) <= {"mean", "p50", "max"}


tasks = st.lists(st.dictionaries(st.sampled_from(KINDS), st.integers(0, 1 << 40), min_size=1), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(tasks)
def test_the_maximum_is_that_of_the_tasks_and_mean_and_median_are_at_most_theirs(tasks):
    """Held against each task's own largest kind, which the API's answers no longer tell."""
    columns = {kind: sorted(task.get(kind, 0) for task in tasks) for kind in KINDS}
    middle = (len(tasks) - 1) // 2
    places = {
        "input": ("inputMetrics", "bytesRead"),
        "output": ("outputMetrics", "bytesWritten"),
        "shuffle_read": ("shuffleReadMetrics", "readBytes"),
        "shuffle_write": ("shuffleWriteMetrics", "writeBytes"),
    }
    summary = {outer: {inner: [columns[kind][middle], columns[kind][-1]]} for kind, (outer, inner) in places.items()}
    summary["resultSize"] = [columns["result"][middle], columns["result"][-1]]
    totals = {kind: sum(column) for kind, column in columns.items()}
    one = Stage(1, 0, False, len(tasks), len(tasks), len(tasks), "2026", totals)
    found = task_bytes(one, summary).stats
    largest = sorted(max(task.get(kind, 0) for kind in KINDS) for task in tasks)
    assert found["max"] == largest[-1]
    assert found["p50"] <= largest[middle]
    assert found["mean"] <= sum(largest) / len(largest) * (1 + 1e-9)


def test_two_runs_told_as_one_have_the_larger_of_each():
    one = TaskBytes({"max": 5.0}, {"input": 5.0}, 3)
    other = TaskBytes({"max": 4.0, "p50": 2.0}, {"result": 1.0}, 7)
    assert one.merged(other) == TaskBytes({"max": 5.0, "p50": 2.0}, {"input": 5.0, "result": 1.0}, 7)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3), st.booleans()), max_size=30), st.integers(0, 5))
def test_no_more_stages_are_chosen_than_asked_for_and_of_each_the_newest_attempt(found, limit):
    stages = [Stage(n, a, run, 1, 1, 1, "" if run else f"{n:03d}", {}) for n, a, run in found]
    kept, left = chosen(stages, limit, limit)
    assert len([s for s in kept if s.active]) <= limit
    assert len([s for s in kept if not s.active]) <= limit
    for one in kept:
        assert one.attempt == max(a for n, a, _ in found if n == one.id)
    assert (left > 0) <= (len([s for s in kept if s.active]) == limit)

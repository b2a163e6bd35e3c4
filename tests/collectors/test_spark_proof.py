"""Long: a real Spark, its driver and its history server, against what was really read, shuffled and sent.

`make proof` runs it where Java is and pyspark is importable, or `$SPIKEWATCH_PYSPARK` names an interpreter that has it.
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from spark_server import Spark

from sidecar.collectors.spark.collector import SparkCollector, SparkSettings

MIB = 1 << 20
HERE = Path(__file__).parent

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def python():
    """An interpreter that has pyspark."""
    named = os.environ.get("SPIKEWATCH_PYSPARK", "")
    if not named and importlib.util.find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed, and SPIKEWATCH_PYSPARK names no interpreter that has it")
    return named or sys.executable


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("spark")
    (made / "events").mkdir()
    (made / "text").write_bytes((b"x" * 63 + b"\n") * (8 * MIB // 64))
    return made


def environment(python, folder, **more):
    own = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "SPARK_WORKER_DIR": str(folder / "work")}
    return {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(folder), **own, **more}


@pytest.fixture(scope="module")
def driver(python, folder):
    """A running application; `tell` has it do something and gives its answer."""
    with (folder / "driver.log").open("wb") as log:
        child = subprocess.Popen(
            [python, str(HERE / "spark_driver.py"), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment(python, folder),
        )

    def heard():
        line = child.stdout.readline()
        assert line, (folder / "driver.log").read_text()[-2000:]
        return json.loads(line)

    def tell(what):
        child.stdin.write(what + "\n")
        child.stdin.flush()
        return heard()

    found = heard()
    child.url, child.version, child.tell = found["url"], found["version"], tell
    yield child
    (folder / "stop").touch()
    child.stdin.close()
    try:
        child.wait(60)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(60)
    child.stdout.close()


def most(collector, kind="", at=time.time):
    """Bytes of the largest task by stage, of all kinds or one."""
    metric = "spikewatch_spark_task_max_bytes" if kind else "spikewatch_spark_task_serialized_bytes"
    wanted = {"kind": kind} if kind else {"stat": "max"}
    samples = [s for s in collector.sample(int(at() * 1000)) if s.metric == metric]
    found = [(dict(s.labels), s.value) for s in samples]
    assert all(labels["app"] == "etl" for labels, _ in found)
    return {labels["stage"]: value for labels, value in found if wanted.items() <= labels.items()}


def asking(url):
    """A collector that asks at every look."""
    settings = SparkSettings(enabled=True, urls=[url], ended_stages=20)
    return SparkCollector(settings.model_copy(update={"refresh": 0}))


def eventually(look, until):
    """Tasks tell what they have done with their heartbeats, and a history server reads its logs now and then."""
    end = time.monotonic() + 120
    while not until(found := look()):
        assert time.monotonic() < end, found
        time.sleep(0.2)
    return found


def test_a_real_driver_and_history_server_tell_what_tasks_really_handled(python, folder, driver, record_proof):
    collector = asking(driver.url)
    assert driver.tell("shuffle") == {"length": 4 * MIB}
    got, gave = most(collector, "shuffle_read"), most(collector, "shuffle_write")
    assert MIB <= max(gave.values()) < 1.1 * MIB
    assert 4 * MIB <= max(got.values()) < 4.4 * MIB
    assert max(most(collector).values()) == max(got.values())

    assert driver.tell("result") == {"length": 4 * MIB}
    sent = most(collector, "result")
    assert 2 * MIB <= max(sent.values()) < 2.2 * MIB

    assert driver.tell("read") == {"lines": 8 * MIB // 64}
    read = most(collector, "input")
    assert 4 * MIB <= max(read.values()) < 5 * MIB, "of two tasks each read half"

    before = set(most(collector))
    driver.tell("hold")
    running = eventually(
        lambda: {k: v for k, v in most(collector).items() if k not in before}, lambda found: any(found.values())
    )
    assert 8 * MIB <= max(running.values()) < 9 * MIB, "while it runs"
    shapes(driver.url)

    driver.tell("stop")
    assert most(collector) == {}
    assert collector.probe().reason == "unreachable"
    collector.close()

    with history_server(python, folder) as url:
        past = asking(url)
        told = eventually(lambda: most(past), bool)
        assert max(told.values()) == max(running.values())
        assert most(past, "shuffle_read") == {**most(past, "shuffle_read"), **got}
        two_hours_on = most(past, at=lambda: time.time() + 7200)
        assert two_hours_on == {}, "it ended more than an hour ago"
        past.close()

    record_proof(
        "spark",
        {
            "what": "largest task in bytes, told by the REST API of a real driver, against what the task handled",
            "spark": driver.version,
            "shuffle_read": {"handled": 4 * MIB, "told": max(got.values())},
            "shuffle_write": {"handled": MIB, "told": max(gave.values())},
            "result": {"handled": 2 * MIB, "told": max(sent.values())},
            "input of a half": {"handled": 4 * MIB, "told": max(read.values())},
            "input, while the task runs": {"handled": 8 * MIB, "told": max(running.values())},
            "history server": "the same",
        },
    )


def shapes(url):
    """Whatever our stand-in answers a real one has, too: the same names at the same places, of the same kinds."""
    stand_in = Spark()
    place = stand_in.application("x", "etl")
    stand_in.stage(place, 1, most={"input": 1})
    stand_in.stage(place, 2, status="ACTIVE", tasks=1, running=[{"input": 1}])

    def real(path, **asked):
        return httpx.get(f"{url}/api/v1/{path}", params=asked, trust_env=False).raise_for_status().json()

    (application,) = real("applications", status="running")
    within(stand_in.apps[0], application)
    at = f"applications/{application['id']}/stages"
    ended, active = real(at, status="complete"), real(at, status="active")
    within(stand_in.stages[place][0], ended[0])
    within(stand_in.stages[place][1], active[0])
    summary = real(f"{at}/{ended[0]['stageId']}/{ended[0]['attemptId']}/taskSummary", quantiles="0.5,1.0")
    within(stand_in.summaries[place, 1, 0], summary)
    (task,) = real(f"{at}/{active[0]['stageId']}/{active[0]['attemptId']}/taskList", status="running")
    within(stand_in.tasks[place, 2, 0][0], task)


def within(ours, theirs, path=""):
    if isinstance(ours, dict):
        for key in ours:
            if ours[key] is not None:
                assert key in theirs, f"{path}/{key}"
                within(ours[key], theirs[key], f"{path}/{key}")
    elif isinstance(ours, list):
        assert isinstance(theirs, list), path
        assert bool(ours) <= bool(theirs), path
        for one, other in zip(ours, theirs, strict=False):
            within(one, other, path)
    else:
        assert isinstance(theirs, int | float) if isinstance(ours, int | float) else type(ours) is type(theirs), path


class history_server:
    """A real one over the events of `folder`, on a free port of the loopback."""

    def __init__(self, python, folder):
        find = "import pyspark, os; print(os.path.join(os.path.dirname(pyspark.__file__), 'bin', 'spark-class'))"
        found = subprocess.run([python, "-c", find], capture_output=True, text=True, check=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        options = f"-Dspark.history.ui.port={self.port} -Dspark.history.fs.logDirectory={(folder / 'events').as_uri()}"
        options += " -Dspark.history.fs.update.interval=1s"
        with (folder / "history.log").open("wb") as log:
            self.child = subprocess.Popen(
                ["bash", found.stdout.strip(), "org.apache.spark.deploy.history.HistoryServer"],
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment(python, folder, SPARK_HISTORY_OPTS=options, SPARK_DAEMON_MEMORY="512m"),
            )

    def __enter__(self):
        return f"http://127.0.0.1:{self.port}"

    def __exit__(self, *error):
        self.child.terminate()
        self.child.wait(60)

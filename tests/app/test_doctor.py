"""The doctor tries every collector under a deadline and never breaks with one of them."""

import threading

import pytest

from sidecar.app.doctor import examine
from sidecar.errors import CollectError
from sidecar.hooks import CollectorSettings
from sidecar.model import Availability, Evidence, Finding, MetricInfo, Sample, Status
from sidecar.plugins import COLLECTORS, Registry

OK = Status(Availability.AVAILABLE)
DENIED = Status(Availability.DENIED, "fd_denied", "run as root")
RELEASE = threading.Event()


class Fine:
    name, settings = "fine", CollectorSettings
    metrics = (MetricInfo("spikewatch_fine_total", "counter", "", "x", verified=Evidence("fake", "2026-01-01", "x")),)

    def __init__(self, settings):
        self.closed = False

    def probe(self):
        return OK

    def sample(self, now_ms):
        return [Sample("spikewatch_fine_total", (), 1.0)]

    def findings(self):
        return [Finding("its left half", DENIED), Finding("its right half", OK, "all of it")]

    def close(self):
        assert not self.closed
        self.closed = True


class Denied(Fine):
    name = "denied"

    def probe(self):
        return DENIED


class Failing(Fine):
    name = "failing"

    def sample(self, now_ms):
        raise CollectError("failing", "lost")


class Broken(Fine):
    name = "broken"

    def probe(self):
        raise SystemExit(3)


class Hanging(Fine):
    name = "hanging"

    def probe(self):
        assert RELEASE.wait(30)
        return OK


@pytest.fixture(autouse=True)
def _let_go():
    RELEASE.clear()
    before = set(threading.enumerate())
    yield
    RELEASE.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive()


def report_on(folder, *collectors, patience_s=20.0, **config):
    registry = Registry()
    for cls in collectors:
        registry.register(COLLECTORS, cls)
    return examine(folder.loaded(**{"collectors": {}, **config}), registry, patience_s, between_s=0.0)


def statuses(report):
    return {e.name: (e.status.state.value, e.status.reason) for e in report.collectors}


def test_each_collector_says_what_it_sees_and_what_would_help(folder):
    report = report_on(folder, Fine, Denied)
    assert statuses(report) == {"fine": ("available", ""), "denied": ("denied", "fd_denied")}
    fine = next(e for e in report.collectors if e.name == "fine")
    assert fine.seen == {"spikewatch_fine_total"}
    assert [f.what for f in fine.findings] == ["its left half", "its right half"]
    assert not report.fine
    denied = next(e for e in report.collectors if e.name == "denied")
    assert denied.status.fix == "run as root"
    assert not denied.seen


@pytest.mark.parametrize(("cls", "found"), [(Failing, ("unavailable", "lost")), (Broken, ("unavailable", "exception"))])
def test_one_that_fails_is_a_finding_and_the_others_are_examined(folder, cls, found):
    assert statuses(report_on(folder, cls, Fine)) == {cls.name: found, "fine": ("available", "")}


def test_one_whose_sample_fails_says_what_it_raised_where_it_knows_no_fix(folder):
    (examined,) = report_on(folder, Failing).collectors
    assert examined.status.fix == "failing: lost"


def test_one_that_hangs_is_named_and_not_waited_for(folder):
    report = report_on(folder, Hanging, Fine, patience_s=0.5)
    assert statuses(report) == {"hanging": ("unavailable", "deadline"), "fine": ("available", "")}


def test_one_that_is_turned_off_is_not_tried(folder):
    report = report_on(folder, Broken, collectors={"broken": {"enabled": False}})
    assert statuses(report) == {"broken": ("unavailable", "turned_off")}


def test_a_metric_whose_collector_says_nothing_of_checks_counts_as_not_checked(folder):
    class Silent(Fine):
        name = "silent"
        metrics = (MetricInfo("spikewatch_silent", "gauge", "", "x"),)

    catalogue = {info.name: info for info in report_on(folder, Silent).catalogue}
    assert catalogue["spikewatch_silent"].verified == Evidence("none")
    assert catalogue["spikewatch_ticks_total"].verified is None


def test_folders_that_must_be_shared_are_looked_at(folder, tmp_path):
    places = report_on(folder).places
    assert [p.status.reason for p in places] == ["no_run_dir", ""]
    (tmp_path / "run").mkdir()
    assert report_on(folder).places[0].status.reason == "nobody_listens"


def test_a_gpu_pod_is_examined_down_to_each_gpu(folder, tmp_path, monkeypatch, nvml_library):
    import fakenvml

    from sidecar.collectors.nvml.collector import NvmlCollector

    library = nvml_library()
    scenario = fakenvml.Scenario(tmp_path / "scenario", 2)
    scenario.set({"gpu1.fail.nvmlGpmSampleGet": 4})
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "scenario"))
    config = {"nvml": {"library_path": str(library), "fast": "150ms"}}
    registry = Registry()
    registry.register(COLLECTORS, NvmlCollector)
    (gpus,) = examine(folder.loaded(collectors=config), registry, between_s=0.6).collectors
    assert (gpus.status.state, gpus.status.reason) == (Availability.DEGRADED, "gpm_no_permission")
    found = {f.what: f.status.reason for f in gpus.findings}
    assert found["GPU 0: gpm"] == ""
    assert found["GPU 1: gpm"] == "no_permission"
    assert "spikewatch_gpu_sm_active_ratio" in gpus.seen

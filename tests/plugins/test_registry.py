"""The plugin registry, with real packages installed into a folder."""

import sys
import textwrap
from importlib import metadata

import pytest
from pydantic import BaseModel, ConfigDict

from sidecar.errors import PluginError
from sidecar.hooks import Collector, CollectorSettings, Remediation
from sidecar.model import Availability, MetricInfo, Skip, Status
from sidecar.plugins import COLLECTORS, REMEDIATIONS, Registry


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid")
    factor: int = 2


class Halve:
    name = "halve"
    params = Params
    actuator = "trainer"
    knobs = ("batch_size",)
    example = {"factor": 2}

    def plan(self, alert, view, params):
        return Skip("nothing_to_do")


class Thermometer:
    name = "thermometer"
    settings = CollectorSettings
    metrics = (MetricInfo("spikewatch_room_temperature_celsius", "gauge", "celsius", "How warm it is."),)

    def __init__(self, settings):
        self.given = settings

    def probe(self):
        return Status(Availability.AVAILABLE)

    def sample(self, now_ms):
        return ()

    def close(self):
        pass


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package with remediations into a folder and returns all entry points there."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def put(package, source, group=REMEDIATIONS, **points):
        (tmp_path / f"{package}.py").write_text(textwrap.dedent(source))
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"[{group}]", *(f"{name} = {package}:{target}" for name, target in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        return [p for d in metadata.distributions(path=[str(tmp_path)]) for p in d.entry_points]

    yield put
    for module in set(sys.modules) - before:
        del sys.modules[module]


GOOD = """
    from pydantic import BaseModel, ConfigDict
    class Params(BaseModel):
        model_config = ConfigDict(extra="forbid")
    class Good:
        name = {name!r}
        params, actuator, knobs, example = Params, "trainer", ("lr",), {{}}
        def plan(self, alert, view, params): ...
"""


def test_a_registered_remediation_is_an_object_of_the_remediation_contract():
    registry = Registry()
    registry.register(REMEDIATIONS, Halve)
    assert isinstance(registry.remediation("halve"), Remediation)
    assert list(registry.remediations) == ["halve"]


def test_a_remediation_may_be_registered_as_a_ready_object():
    registry = Registry()
    ready = Halve()
    registry.register(REMEDIATIONS, ready)
    assert registry.remediation("halve") is ready


def test_a_registered_collector_is_a_class_made_with_its_settings():
    registry = Registry()
    registry.register(COLLECTORS, Thermometer)
    cls = registry.collector("thermometer")
    made = cls(cls.settings(interval="30s"))
    assert isinstance(made, Collector)
    assert made.given.interval == 30_000
    assert [info.name for info in registry.catalogue()] == ["spikewatch_room_temperature_celsius"]


def test_what_ships_with_spikewatch_comes_in_through_entry_points():
    shipped = metadata.distribution("spikewatch").entry_points
    registry = Registry()
    registry.discover([p for p in shipped if p.group in (REMEDIATIONS, COLLECTORS)])
    assert registry.problems == []
    assert set(registry.remediations) == {p.name for p in shipped if p.group == REMEDIATIONS} != set()
    assert set(registry.collectors) == {p.name for p in shipped if p.group == COLLECTORS} != set()


def test_this_environment_is_searched_when_nothing_else_is_given():
    registry = Registry(allow={"process"})
    registry.discover()
    assert list(registry.collectors) == ["process"]


def test_an_unknown_name_is_answered_with_the_known_ones():
    registry = Registry()
    registry.register(REMEDIATIONS, Halve)
    with pytest.raises(PluginError, match=r"dubble: no such remediation \(there are: halve\)"):
        registry.remediation("dubble")


def test_an_unknown_kind_of_plugin_is_refused():
    with pytest.raises(PluginError, match=r"no such kind of plugin: spikewatch\.rockets"):
        Registry().register("spikewatch.rockets", Halve)


def test_a_duplicate_name_is_refused_and_both_holders_are_named():
    registry = Registry()
    registry.register(REMEDIATIONS, Halve, "first:Halve")
    with pytest.raises(PluginError, match="halve: second:Halve would replace first:Halve"):
        registry.register(REMEDIATIONS, Halve, "second:Halve")


@pytest.mark.parametrize(
    ("broken", "finding"),
    [
        ({"name": "Halve It"}, "needs a `name`"),
        ({"name": None}, "needs a `name`"),
        ({"params": dict}, r"`params` must be a subclass of pydantic"),
        ({"params": type("Open", (BaseModel,), {})}, "Open takes unknown keys"),
        ({"actuator": ""}, "`actuator` must be"),
        ({"knobs": ()}, "`knobs` must be"),
        ({"knobs": "batch_size"}, "`knobs` must be"),
        ({"example": {"factor": "many"}}, r"`example` is no valid `with:`: factor: must be a whole number"),
        ({"example": {"speed": 1}}, r"`example` is no valid `with:`: speed"),
        ({"plan": None}, r"`plan\(\)` is missing"),
    ],
)
def test_a_remediation_that_breaks_the_contract_is_refused_with_the_finding(broken, finding):
    with pytest.raises(PluginError, match=finding):
        Registry().register(REMEDIATIONS, type("Broken", (Halve,), broken))


def test_a_model_left_open_inside_the_parameters_is_found():
    inner = type("Inner", (BaseModel,), {"__annotations__": {"depth": int}})
    outer = type(
        "Outer", (BaseModel,), {"__annotations__": {"inner": inner}, "model_config": ConfigDict(extra="forbid")}
    )
    broken = type("Broken", (Halve,), {"params": outer, "example": {"inner": {"depth": 1}}})
    with pytest.raises(PluginError, match="Inner takes unknown keys"):
        Registry().register(REMEDIATIONS, broken)


def test_every_finding_about_a_plugin_is_told_at_once():
    broken = type("Broken", (Halve,), {"actuator": "", "knobs": ()})
    with pytest.raises(PluginError, match=r"(?s)`actuator`.*`knobs`"):
        Registry().register(REMEDIATIONS, broken)


@pytest.mark.parametrize(
    ("broken", "finding"),
    [
        ({"settings": Params}, r"`settings` must be a subclass of sidecar\.hooks\.CollectorSettings"),
        ({"sample": None}, r"`sample\(\)` is missing"),
        ({"metrics": (MetricInfo("room_celsius", "gauge", "celsius", "x"),)}, "is not named like"),
        ({"metrics": (MetricInfo("spikewatch_steps", "counter", "", "x"),)}, "end in _total"),
        ({"metrics": (MetricInfo("spikewatch_steps_total", "gauge", "", "x"),)}, "end in _total"),
        ({"metrics": (MetricInfo("spikewatch_io_total", "counter", "bytes", "x"),)}, "ends in its unit"),
        ({"metrics": (MetricInfo("spikewatch_io_bytes_total", "counter", "bytes", ""),)}, "has no help text"),
        ({"metrics": (MetricInfo("spikewatch_io", "gauge", "", "x", ("Dev",)),)}, "no snake_case"),
    ],
)
def test_a_collector_that_breaks_the_contract_is_refused_with_the_finding(broken, finding):
    with pytest.raises(PluginError, match=finding):
        Registry().register(COLLECTORS, type("Broken", (Thermometer,), broken))


def test_a_collector_that_is_no_class_is_refused():
    with pytest.raises(PluginError, match="must be a class"):
        Registry().register(COLLECTORS, Thermometer(None))


def test_an_installed_package_brings_its_plugin_in(install):
    registry = Registry()
    registry.discover(install("nice", GOOD.format(name="nice_one"), nice_one="Good"))
    assert registry.problems == []
    assert list(registry.remediations) == ["nice_one"]


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ("raise RuntimeError('no GPU here')", "RuntimeError: no GPU here"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def (", "SyntaxError"),
        ("import a_module_nobody_has", "ModuleNotFoundError"),
        ("x = 1", "AttributeError"),
        ("class Good: name = 'other'", "calls itself 'other'"),
        ("class Good:\n    name = 'bad'\n    def __init__(self): raise OSError('nope')", "cannot be made .* nope"),
    ],
)
def test_a_broken_package_is_reported_and_stops_nobody_else(install, source, finding):
    install("fine", GOOD.format(name="fine_one"), fine_one="Good")
    registry = Registry()
    registry.discover(install("broken", source, bad="Good"))
    assert list(registry.remediations) == ["fine_one"]
    assert [p.plugin for p in registry.problems] == ["bad"]
    with pytest.raises(PluginError, match=finding):
        raise registry.problems[0]


def test_a_package_cannot_take_the_name_of_a_built_in(install):
    thief = """
        from sidecar.collectors.process import ProcessCollector
        class Thief(ProcessCollector): pass
    """
    shipped = metadata.entry_points(group=COLLECTORS, name="process")
    registry = Registry()
    registry.discover([*install("aaa", thief, COLLECTORS, process="Thief"), *shipped])
    assert registry.collector("process").__module__ == "sidecar.collectors.process"
    assert "aaa:Thief of aaa would replace sidecar.collectors.process" in str(registry.problems[0])


def test_the_code_of_a_package_that_is_not_allowed_is_never_imported(install):
    points = install("silent", "raise AssertionError('imported')", silent="Good")
    registry = Registry(allow=())
    registry.discover(points)
    assert registry.problems == []
    assert not registry.remediations
    assert "silent" not in sys.modules


def test_an_allowed_name_that_nobody_brings_is_reported(install):
    registry = Registry(allow={"nice_one", "lost_one"})
    registry.discover(install("nice", GOOD.format(name="nice_one"), nice_one="Good"))
    assert list(registry.remediations) == ["nice_one"]
    assert [str(p) for p in registry.problems] == [
        "lost_one: allowed, but no installed package brings a plugin of this name"
    ]

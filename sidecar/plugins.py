"""The registry of plugins: entry points and explicit registrations, all checked against the same contracts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Mapping
from importlib import metadata
from types import MappingProxyType
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError

from sidecar.errors import PluginError
from sidecar.hooks import Case, Collector, CollectorSettings, Detailed, Details, Remediation
from sidecar.model import Change, MetricInfo, Skip
from sidecar.wording import plain

REMEDIATIONS = "spikewatch.remediations"
COLLECTORS = "spikewatch.collectors"

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_METRIC = re.compile(r"spikewatch_[a-z0-9]+(?:_[a-z0-9]+)*")
_LABEL = re.compile(r"[a-z][a-z0-9_]*")
_OURS = "spikewatch"  # the distribution whose plugins come first, so that nobody else's can take their names

_T = TypeVar("_T")


class Registry:
    """Plugins by kind and name. One object, made in `app`; tests make their own.

    A broken plugin stops nobody else: what went wrong while loading is kept in `problems`.
    """

    def __init__(self, *, allow: Collection[str] | None = None) -> None:
        """`allow`: names that entry points may bring in; the code of any other is never imported. None allows all."""
        self._allow = None if allow is None else frozenset(allow)
        self._remediations: dict[str, Remediation] = {}
        self._collectors: dict[str, type[Collector]] = {}
        self._origins: dict[tuple[str, str], str] = {}
        self.problems: list[PluginError] = []

    @property
    def remediations(self) -> Mapping[str, Remediation]:
        """By name, ready to plan."""
        return MappingProxyType(self._remediations)

    @property
    def collectors(self) -> Mapping[str, type[Collector]]:
        """By name, to be made with their settings."""
        return MappingProxyType(self._collectors)

    def remediation(self, name: str) -> Remediation:
        """Raises PluginError that lists the known names."""
        return _found(self._remediations, name, "remediation")

    def collector(self, name: str) -> type[Collector]:
        """Raises PluginError that lists the known names."""
        return _found(self._collectors, name, "collector")

    def origin(self, group: str, name: str) -> str:
        """Where a plugin comes from, for people. Raises KeyError for one that is not there."""
        return self._origins[group, name]

    def catalogue(self) -> tuple[MetricInfo, ...]:
        """What the registered collectors may emit."""
        return tuple(info for cls in self._collectors.values() for info in cls.metrics)

    def discover(self, entry_points: Iterable[metadata.EntryPoint] | None = None) -> None:
        """Loads every entry point of our groups (None: of this environment), the built-in ones first.

        Whatever a plugin does wrong, from an exception at import to a broken contract, becomes one of `problems`.
        """
        if entry_points is None:
            found = metadata.entry_points()
            entry_points = [*found.select(group=REMEDIATIONS), *found.select(group=COLLECTORS)]
        points = sorted(entry_points, key=lambda p: (_distribution(p) != _OURS, _distribution(p), p.group, p.name))
        for point in points:
            if self._allow is None or point.name in self._allow:
                self._load(point)
        for name in sorted((self._allow or frozenset()) - {point.name for point in points}):
            self.problems.append(PluginError(name, "allowed, but no installed package brings a plugin of this name"))

    def _load(self, point: metadata.EntryPoint) -> None:
        origin = f"{point.value} of {_distribution(point) or 'an unknown package'}"
        try:
            plugin = point.load()
            if getattr(plugin, "name", None) != point.name:
                raise PluginError(point.name, f"{origin} calls itself {getattr(plugin, 'name', None)!r}")
            self.register(point.group, plugin, origin)
        except PluginError as e:
            self.problems.append(e)
        # A plugin is foreign code: whatever it raises, even SystemExit, must not take the sidecar along.
        except (Exception, SystemExit) as e:  # noqa: BLE001
            self.problems.append(PluginError(point.name, f"cannot be loaded from {origin}: {type(e).__name__}: {e}"))

    def register(self, group: str, plugin: Any, origin: str = "") -> None:
        """Checks and adds a plugin. `plugin` is the class, or for a remediation also a ready object.

        Raises PluginError for a broken contract (all findings in one message) and for a name taken already.
        """
        origin = origin or f"{getattr(plugin, '__module__', '?')}:{getattr(plugin, '__qualname__', plugin)}"
        if group == REMEDIATIONS:
            remediation = _remediation(plugin, origin)
            self._claim(group, remediation.name, origin)
            self._remediations[remediation.name] = remediation
        elif group == COLLECTORS:
            collector = _collector(plugin, origin)
            self._claim(group, collector.name, origin)
            self._collectors[collector.name] = collector
        else:
            raise PluginError(origin, f"no such kind of plugin: {group} (there are {REMEDIATIONS} and {COLLECTORS})")

    def _claim(self, group: str, name: str, origin: str) -> None:
        holder = self._origins.get((group, name))
        if holder is not None:
            raise PluginError(name, f"{origin} would replace {holder}: rename one of them, or leave one out")
        self._origins[group, name] = origin


def installed(entry_points: Iterable[metadata.EntryPoint] | None = None) -> list[tuple[str, str, str]]:
    """(group, name, distribution) of every plugin there is to load, ours first. Imports none of them."""
    if entry_points is None:
        found = metadata.entry_points()
        entry_points = [*found.select(group=REMEDIATIONS), *found.select(group=COLLECTORS)]
    return sorted(
        ((p.group, p.name, _distribution(p)) for p in entry_points), key=lambda p: (p[2] != _OURS, p[2], p[0], p[1])
    )


def allowed(names: Iterable[str]) -> frozenset[str]:
    """What a sidecar may load: everything of our own, and of others what the configuration names."""
    return frozenset(names) | {name for _, name, distribution in installed() if distribution == _OURS}


def details(plugin: Remediation) -> Details:
    """What a remediation tells beside its contract; empty where it tells nothing."""
    return plugin.details if isinstance(plugin, Detailed) else Details()


def broken_case(plugin: Remediation, case: Case) -> str:
    """Why a case of a plugin does not hold; empty where it does. Texts for people are not compared."""
    try:
        params = plugin.params.model_validate(case.params)
    except ValidationError as e:
        return f"{case.what}: its parameters are refused: {plain(e.errors(include_url=False)[0])}"
    answer = plugin.plan(case.alert, case.view, params)
    if _essence(answer) != _essence(case.answer):
        return f"{case.what}: {_essence(case.answer)} expected, {_essence(answer)} given"
    surplus = set(answer.values) - set(plugin.knobs) if isinstance(answer, Change) else set()
    return f"{case.what}: {', '.join(sorted(surplus))} is not among its knobs" if surplus else ""


def _essence(answer: Change | Skip) -> str:
    if isinstance(answer, Skip):
        return f"skip {answer.reason}"
    return f"change {answer.actuator} {dict(sorted(answer.values.items()))}"


def _distribution(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist else ""


def _found(plugins: Mapping[str, _T], name: str, kind: str) -> _T:
    if name not in plugins:
        raise PluginError(name, f"no such {kind} (there are: {', '.join(sorted(plugins)) or 'none'})")
    return plugins[name]


def _remediation(plugin: Any, origin: str) -> Remediation:
    name = _name(plugin, origin)
    if isinstance(plugin, type):
        try:
            plugin = plugin()
        except Exception as e:
            raise PluginError(name, f"{origin} cannot be made without arguments: {type(e).__name__}: {e}") from e
    wrong = _missing(plugin, ("params", "actuator", "knobs", "example"), ("plan",))
    if not wrong:
        wrong = [*_schema(plugin.params, "params"), *_remediation_values(plugin)]
    if not isinstance(getattr(plugin, "details", Details()), Details):
        wrong.append("`details` must be a sidecar.hooks.Details")
    _refuse(name, origin, wrong)
    return cast(Remediation, plugin)


def _remediation_values(plugin: Any) -> list[str]:
    wrong = []
    if not isinstance(plugin.actuator, str) or not plugin.actuator:
        wrong.append("`actuator` must be the name of an actuator")
    knobs = plugin.knobs
    if not isinstance(knobs, tuple) or not knobs or not all(isinstance(k, str) and k for k in knobs):
        wrong.append("`knobs` must be a tuple with the name of every target it may touch")
    if isinstance(plugin.params, type) and issubclass(plugin.params, BaseModel):
        try:
            plugin.params.model_validate(plugin.example)
        except ValidationError as e:
            first = e.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            wrong.append(f"`example` is no valid `with:`: {where}: {plain(first)}")
    return wrong


def _collector(plugin: Any, origin: str) -> type[Collector]:
    name = _name(plugin, origin)
    if not isinstance(plugin, type):
        raise PluginError(name, f"{origin} must be a class that is made with its settings")
    cls = cast(type[Collector], plugin)
    wrong = _missing(plugin, ("settings", "metrics"), ("probe", "sample", "close"))
    if not wrong:
        wrong = _schema(cls.settings, "settings", CollectorSettings)
        wrong += [finding for info in cls.metrics for finding in _metric(info)]
    _refuse(name, origin, wrong)
    return cls


def _name(plugin: Any, origin: str) -> str:
    name = getattr(plugin, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PluginError(str(name), f"{origin} needs a `name` like shrink_batch, not {name!r}")
    return name


def _missing(plugin: Any, attributes: tuple[str, ...], methods: tuple[str, ...]) -> list[str]:
    wrong = [f"`{a}` is missing" for a in attributes if not hasattr(plugin, a)]
    return wrong + [f"`{m}()` is missing" for m in methods if not callable(getattr(plugin, m, None))]


def _refuse(name: str, origin: str, wrong: list[str]) -> None:
    if wrong:
        raise PluginError(name, f"{origin}: {'; '.join(wrong)}")


def _schema(model: Any, attribute: str, base: type[BaseModel] = BaseModel) -> list[str]:
    """Whether a pydantic model, and every model inside it, refuses keys it does not know."""
    if not (inspect.isclass(model) and issubclass(model, base)):
        return [f"`{attribute}` must be a subclass of {base.__module__}.{base.__name__}"]
    try:
        schema = model.model_json_schema()
    except PydanticUserError as e:
        return [f"`{attribute}` has no JSON schema: {e.message}"]
    parts = [(model.__name__, schema), *schema.get("$defs", {}).items()]
    return [
        f'`{attribute}`: {part} takes unknown keys (set model_config = ConfigDict(extra="forbid"))'
        for part, content in parts
        if content.get("type") == "object" and "properties" in content and content.get("additionalProperties", True)
    ]


def _metric(info: MetricInfo) -> list[str]:
    rules: tuple[tuple[bool, str], ...] = (
        (bool(_METRIC.fullmatch(info.name)), "is not named like spikewatch_io_read_bytes_total"),
        (info.name.endswith("_total") == (info.kind == "counter"), "counters, and only they, end in _total"),
        (not info.unit or info.name.removesuffix("_total").endswith("_" + info.unit), "the name ends in its unit"),
        (bool(info.help), "has no help text"),
        (all(_LABEL.fullmatch(label) for label in info.labels), "has a label that is no snake_case name"),
    )
    return [f"metric {info.name}: {text}" for fine, text in rules if not fine]

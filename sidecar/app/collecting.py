"""Collectors made from the configuration, and the facts that remediations plan with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sidecar.clock import Clock
from sidecar.collectors import cgroup
from sidecar.collectors.machine.collector import TRAINER
from sidecar.collectors.runner import Runner
from sidecar.errors import ConfigError, Problem
from sidecar.hooks import Collector, CollectorSettings
from sidecar.model import Labels
from sidecar.plugins import Registry
from sidecar.responses.trial import OOM_FACT
from sidecar.settings import Loaded
from sidecar.store import Store

_FACTS = {
    "spikewatch_cgroup_cpu_quota_cores": "cpu_quota",
    "spikewatch_cgroup_memory_available_bytes": "memory_available_bytes",
}
FACTS_KEPT_MS = 5_000  # a quota changes rarely, and a plan is looked at again every tick


def check(loaded: Loaded, registry: Registry) -> dict[str, CollectorSettings]:
    """The settings of every collector there is. Raises ConfigError for unknown collectors and wrong settings."""
    problems: list[Problem] = []
    document = loaded.document
    found: dict[str, CollectorSettings] = {}
    given: Mapping[str, Mapping[str, Any]] = loaded.settings.collectors
    for name in given:
        if name not in registry.collectors:
            known = ", ".join(sorted(registry.collectors)) or "none"
            problems.append(
                document.problem(("collectors", name), f"no such collector: {name} (there are: {known})", key=True)
            )
    for name, cls in registry.collectors.items():
        try:
            own = cls.settings.model_validate(given.get(name, {}))
            if getattr(own, "run_dir", "") is None:  # it asks for the sidecar's
                own = own.model_copy(update={"run_dir": loaded.path(loaded.settings.run_dir)})
            found[name] = _absolute(own, loaded)
        except ValidationError as e:
            problems.extend(document.located(e, ("collectors", name)))
    if problems:
        raise ConfigError(sorted(problems, key=lambda p: (p.line, p.column)))
    return found


def _absolute(own: CollectorSettings, loaded: Loaded) -> CollectorSettings:
    """With paths and globs that are relative to the configuration's folder; URLs stay."""
    changed: dict[str, Any] = {}
    for name in type(own).model_fields:
        value = getattr(own, name)
        if isinstance(value, Path):
            changed[name] = loaded.path(value)
        elif name in own.globs:
            changed[name] = tuple(glob if "://" in glob else str(loaded.path(glob)) for glob in value)
    return own.model_copy(update=changed)


def runner(
    settings: Mapping[str, CollectorSettings],
    registry: Registry,
    store: Store,
    clock: Clock,
    cpu_budget: float | None = None,
) -> Runner:
    """Every collector that is not turned off, in its own thread; `settings` as from `check`."""
    made: list[tuple[Collector, CollectorSettings]] = []
    for name, own in settings.items():
        if own.enabled:
            cls: Any = registry.collector(name)
            made.append((cls(own), own))
    return Runner(made, store, clock, cpu_budget=cpu_budget)


class Facts:
    """What the trainer's control group allows, where nothing is known of it our own; read at most every few seconds.

    Two containers of a pod have limits of their own: what is planned for the trainer must fit its.
    """

    def __init__(self, clock: Clock, newest: Callable[[Collection[str]], Iterable[tuple[str, Labels, float]]]) -> None:
        """`newest`: (metric, labels, value) of the series of some metrics."""
        self._clock, self._newest = clock, newest
        self._read_at: int | None = None
        self._facts: Mapping[str, float] = {}
        self._kills = cgroup.OomKills()

    def __call__(self) -> Mapping[str, float]:
        now = self._clock.monotonic_ms()
        if self._read_at is None or now - self._read_at >= FACTS_KEPT_MS:
            self._facts, self._read_at = self._of_trainer() or cgroup.facts(), now
        # Read each time: a trainer that is gone because it was killed for memory must be seen to be.
        kills = self._kills()
        return self._facts if kills is None else {**self._facts, OOM_FACT: kills}

    def _of_trainer(self) -> dict[str, float]:
        return {_FACTS[m]: value for m, labels, value in self._newest(_FACTS) if ("group", TRAINER) in labels}

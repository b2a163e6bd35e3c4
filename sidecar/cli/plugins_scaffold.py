"""A new remediation as a package of its own: the plugin, a test that passes, and what pip needs."""

from __future__ import annotations

import keyword
import re
import sys
from importlib import metadata
from pathlib import Path

from sidecar.errors import PluginError
from sidecar.plugins import installed

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")

_PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "spikewatch-{dashed}"
version = "0.1.0"
description = "A remediation for spikewatch"
requires-python = ">=3.11"
dependencies = ["spikewatch"]

[project.entry-points."spikewatch.remediations"]
{name} = "{name}:{cls}"

[tool.setuptools]
py-modules = ["{name}"]
"""

_PLUGIN = '''\
"""Says in one line what it changes, and when that helps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from sidecar.hooks import Case, Details, View
from sidecar.model import Alert, AlertState, Change, Knob, Skip, TrainerIdentity

KNOB = "num_workers"


class Params(BaseModel):
    """`with:` of a response. Unknown keys are refused, and every number has its bounds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_least: int = Field(1, ge=1, le=64, description="worker processes that stay")


class {cls}:
    """Plans; it executes nothing. The sidecar applies the change, measures, and puts it back if it did not help."""

    name: ClassVar[str] = "{name}"
    params: ClassVar[type[BaseModel]] = Params
    actuator: ClassVar[str] = "trainer"
    knobs: ClassVar[tuple[str, ...]] = (KNOB,)  # everything it may touch: any other is refused
    example: ClassVar[Mapping[str, Any]] = {{"at_least": 2}}
    details: ClassVar[Details] = Details(
        permissions=(f"trainer: change {{KNOB}} of each rank",),
        cases=(
            Case(
                "half of them, but as many as must stay",
                example,
                Alert("TooManyWorkers", (), (), AlertState.FIRING, 1.0, 0),
                View({{KNOB: Knob(KNOB, 8, 0, 64)}}, TrainerIdentity("job", "1", ("a",), (0,), 1), {{}}),
                Change("trainer", {{KNOB: 4}}),
            ),
        ),
    )

    def plan(self, alert: Alert, view: View, params: BaseModel) -> Change | Skip:
        """Pure: the same alert, view and parameters give the same plan. Raises nothing."""
        assert isinstance(params, Params)
        knob = view.knobs.get(KNOB)
        if knob is None:
            return Skip("knob_missing", f"the trainer does not offer {{KNOB}}")
        now = int(knob.value)
        wanted = max(params.at_least, now // 2)
        if wanted >= now:
            return Skip("at_limit", f"{{KNOB}} = {{now}} already")
        return Change(self.actuator, {{KNOB: wanted}}, f"{{KNOB}} {{now}} -> {{wanted}}")
'''

_TEST = '''\
"""What {name} plans."""

from __future__ import annotations

import pytest
from {name} import KNOB, {classes}
from sidecar.hooks import View
from sidecar.model import Alert, AlertState, Change, Knob, Skip, TrainerIdentity
from sidecar.plugins import REMEDIATIONS, Registry, broken_case, details

ALERT = Alert("TooManyWorkers", (), (), AlertState.FIRING, 1.0, 0)


def plan(workers: int, **params: int) -> Change | Skip:
    view = View({{KNOB: Knob(KNOB, workers, 0, 64)}}, TrainerIdentity("job", "1", ("a",), (0,), 1), {{}})
    return {cls}().plan(ALERT, view, Params(**params))


def test_it_keeps_the_contract_and_every_case_of_its_own_holds() -> None:
    registry = Registry()
    registry.register(REMEDIATIONS, {cls})
    plugin = registry.remediation("{name}")
    assert [broken_case(plugin, case) for case in details(plugin).cases] == [""]


@pytest.mark.parametrize("workers", range(65))
def test_no_plan_leaves_its_bounds(workers: int) -> None:
    answer = plan(workers, at_least=3)
    if isinstance(answer, Change):
        assert 3 <= answer.values[KNOB] < workers
    else:
        assert workers <= 3


def test_a_trainer_without_the_knob_is_left_alone() -> None:
    answer = {cls}().plan(ALERT, View({{}}, None, {{}}), Params())
    assert isinstance(answer, Skip)
    assert answer.reason == "knob_missing"
'''


def scaffold(name: str, into: Path) -> Path:
    """Writes the package's folder and returns it. Raises PluginError for a name or a folder that cannot be."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise PluginError(name, "a plugin's name is like shrink_batch: lower case, digits and underscores")
    taken = [distribution for _, other, distribution in installed() if other == name]
    if taken:
        raise PluginError(name, f"the name is taken by a plugin of {taken[0] or 'an installed package'}")
    if name in metadata.packages_distributions() or name in sys.stdlib_module_names:
        raise PluginError(name, "there is a module of this name already")
    folder = into / f"spikewatch-{name.replace('_', '-')}"
    cls = "".join(word.title() for word in name.split("_"))
    words = {"name": name, "dashed": name.replace("_", "-"), "cls": cls, "classes": ", ".join(sorted([cls, "Params"]))}
    files = {"pyproject.toml": _PROJECT, f"{name}.py": _PLUGIN, f"test_{name}.py": _TEST}
    try:
        folder.mkdir(parents=True)
        for file, template in files.items():
            (folder / file).write_text(template.format(**words), encoding="utf-8")
    except FileExistsError:
        raise PluginError(name, f"{folder} is there already") from None
    except OSError as e:
        raise PluginError(name, f"{folder} cannot be written: {e.strerror}") from None
    return folder

"""Which files a configuration names: globs, and those that were shipped with spikewatch."""

from __future__ import annotations

import glob
import importlib.util
from collections.abc import Iterable
from pathlib import Path

from sidecar.errors import Problem
from sidecar.settings import SHIPPED, Loaded


def shipped_folder() -> Path:
    """Where the shipped rules and responses were installed. Raises FileNotFoundError for a broken installation."""
    spec = importlib.util.find_spec("spikewatch_rules")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package spikewatch_rules is not installed: install spikewatch again")
    return Path(spec.origin).parent


def matching(loaded: Loaded, setting: str) -> tuple[list[Path], list[Problem]]:
    """The files that the globs of a setting name, sorted, each once; and what is wrong with the setting.

    A path without wildcards must exist: a glob may match nothing, a name may not.
    """
    problems: list[Problem] = []
    found: dict[Path, None] = {}
    for index, pattern in enumerate(_patterns(getattr(loaded.settings, setting))):
        full = str(shipped_folder() / pattern.removeprefix(SHIPPED)) if pattern.startswith(SHIPPED) else ""
        full = full or str(loaded.path(pattern))
        paths = sorted(glob.glob(full, recursive=True))
        if not paths and not glob.has_magic(full):
            problems.append(loaded.document.problem((setting, index), f"{setting}: no such file: {full}"))
        found.update((Path(p), None) for p in paths if Path(p).is_file())
    return list(found), problems


def _patterns(value: Iterable[str]) -> Iterable[str]:
    return (value,) if isinstance(value, str) else value

"""Files: which ones a configuration names, those shipped with spikewatch, and whose the state folder is."""

from __future__ import annotations

import fcntl
import glob
import importlib.util
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from sidecar.errors import Problem, StateError
from sidecar.settings import SHIPPED, Loaded


def shipped_folder() -> Path:
    """Where the shipped rules and responses were installed. Raises FileNotFoundError for a broken installation."""
    spec = importlib.util.find_spec("spikewatch_rules")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package spikewatch_rules is not installed: install spikewatch again")
    return Path(spec.origin).parent


def runbook(alert: str) -> str | None:
    """The shipped page about an alert, Markdown; None where there is none."""
    spec = importlib.util.find_spec("spikewatch_runbooks")
    if spec is None or spec.origin is None or not (alert.isascii() and alert.isalnum()):
        return None
    try:
        return (Path(spec.origin).parent / f"{alert}.md").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def claim(folder: Path) -> int:
    """Makes a folder ours for as long as the descriptor that comes back is open; the end of the process closes it.

    Raises StateError where the folder cannot be used or is another process's: two sidecars with one journal would each
    end what the other has begun.
    """
    path = folder / "lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise StateError(f"state_dir {folder} cannot be used: {e.strerror}") from e
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        os.close(fd)
        raise StateError(f"state_dir {folder} is in use by another sidecar: give each its own") from e
    except OSError:
        pass  # a file system without locks: then nobody can tell
    return fd


def matching(loaded: Loaded, setting: str) -> tuple[list[Path], list[Problem]]:
    """The files that the globs of a setting name, sorted, each once; and what is wrong with the setting.

    A path without wildcards must be a file: a glob may match nothing or a folder, a name may not. What else a glob
    matches and is no file, a link that leads nowhere say, is told: rules would be missing and nobody would know.
    """
    problems: list[Problem] = []
    found: dict[Path, None] = {}
    for index, pattern in enumerate(_patterns(getattr(loaded.settings, setting))):
        full = str(shipped_folder() / pattern.removeprefix(SHIPPED)) if pattern.startswith(SHIPPED) else ""
        full = full or str(loaded.path(pattern))
        paths = sorted(glob.glob(full, recursive=True))
        if not paths and not glob.has_magic(full):
            problems.append(loaded.document.problem((setting, index), f"{setting}: no such file: {full}"))
        for path in map(Path, paths):
            if wrong := _no_file(path, named=not glob.has_magic(full)):
                problems.append(loaded.document.problem((setting, index), f"{setting}: {path}: {wrong}"))
            elif not path.is_dir():
                found[path] = None
    return list(found), problems


def _no_file(path: Path, *, named: bool) -> str:
    """Why a path cannot be read as a file; empty where it can, or is a folder that nobody `named`."""
    try:
        mode = path.stat().st_mode
    except OSError as e:
        return f"cannot be read: {e.strerror}"
    if stat.S_ISDIR(mode):
        return f"a folder: write {path}/*.yaml" if named else ""
    return "" if stat.S_ISREG(mode) else "cannot be read: not a regular file"


def _patterns(value: Iterable[str]) -> Iterable[str]:
    return (value,) if isinstance(value, str) else value

"""Zero-code attach: decides whether this process may be attached to, then waits for its `import torch`.

`startup/sitecustomize.py` calls `arm` when Python starts. Nothing is imported or patched before the script itself
imports torch, and nothing happens in a process that never takes an optimizer step.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from spikewatch.zerocode_watch import LOADERS, OPTIMIZERS, Watcher

SWITCH = "SPIKEWATCH_AUTOATTACH"  # "1": any script; else a comma-separated list of script file or module names
_OFF = ("", "0")
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})  # options of the interpreter that take the next word


def arm(environ: Mapping[str, str] = os.environ, command: Sequence[str] | None = None) -> Watcher | None:
    """Waits for torch where the environment allows this script; else does nothing and returns None."""
    if environ.get("SPIKEWATCH_DISABLE", "") not in _OFF:
        return None
    if not allowed(environ.get(SWITCH, ""), script_of(sys.orig_argv if command is None else command)):
        return None
    if any(name in sys.modules for name in (LOADERS, OPTIMIZERS)):
        return None  # torch is there already: this is not the start of a process
    watcher = Watcher()
    sys.meta_path.insert(0, Waiting({LOADERS: watcher.loaders_imported, OPTIMIZERS: watcher.optimizers_imported}))
    return watcher


def allowed(switch: str, script: str) -> bool:
    """Whether the value of `SPIKEWATCH_AUTOATTACH` names this script, or any."""
    if switch in _OFF:
        return False
    return switch == "1" or script in [name.strip() for name in switch.split(",")]


def script_of(command: Sequence[str]) -> str:
    """The file name of the script, or the module of `-m`; empty for `-c`, standard input and interactive use."""
    words = iter(command[1:])
    for word in words:
        if word == "-m":
            return next(words, "")
        if word in ("-c", "-"):
            return ""
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return os.path.basename(word)
    return ""


class Waiting:
    """A finder on `sys.meta_path` that lets others find, and calls back once a named module was imported."""

    def __init__(self, wanted: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._wanted = dict(wanted)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """None for whatever is not waited for."""
        if name not in self._wanted:
            return None
        ready = self._wanted.pop(name)
        spec = self._found(name, path, target)
        if not self._wanted and self in sys.meta_path:
            sys.meta_path.remove(self)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Afterwards(spec.loader, ready)
        return spec

    def _found(self, name: str, path: Sequence[str] | None, target: Any) -> importlib.machinery.ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None


class _Afterwards(importlib.abc.Loader):
    """In place of a module's loader while it is imported; the module itself ends up with the real one."""

    def __init__(self, loader: Any, ready: Callable[[ModuleType], None]) -> None:
        self._loader, self._ready = loader, ready

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._ready(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

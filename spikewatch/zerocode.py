"""Zero-code attach: decides whether this process may be attached to, then waits for its `import torch`.

`startup/sitecustomize.py` loads this file alone when Python starts, and so it imports next to nothing: every Python of
a pod pays for it. The rest of the package is imported with torch, and nothing happens in a process that never takes an
optimizer step.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # not typing's: importing that costs more than the whole file
if TYPE_CHECKING:
    import importlib.abc
    import importlib.machinery
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType
    from typing import Any

    from spikewatch.zerocode_watch import Watcher

SWITCH = "SPIKEWATCH_AUTOATTACH"  # "1": any script; else a comma-separated list of script file or module names
LOADERS, OPTIMIZERS = "torch.utils.data.dataloader", "torch.optim.optimizer"
_OFF = ("", "0")
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})  # options of the interpreter that take the next word


def arm(
    environ: Mapping[str, str] = os.environ,
    command: Sequence[str] | None = None,
    make: Callable[[], Watcher] | None = None,
) -> bool:
    """Waits for torch where the environment allows this script. Returns whether it does.

    `make` makes the watcher, once torch is imported; by default with the package as it can be imported then.
    """
    if environ.get("SPIKEWATCH_DISABLE", "") not in _OFF:
        return False
    if not allowed(environ.get(SWITCH, ""), script_of(sys.orig_argv if command is None else command)):
        return False
    if any(name in sys.modules for name in (LOADERS, OPTIMIZERS)):
        return False  # torch is there already: this is not the start of a process
    made: list[Watcher] = []

    def ready(module: ModuleType) -> None:
        try:
            if not made:
                made.append((make or _watcher)())
            (made[0].loaders_imported if module.__name__ == LOADERS else made[0].optimizers_imported)(module)
        except Exception as error:  # noqa: BLE001  `import torch` must not see our mistakes
            sys.stderr.write(f"spikewatch attaches to nothing here: {error!r}\n")

    finder: Any = Waiting({LOADERS: ready, OPTIMIZERS: ready})
    sys.meta_path.insert(0, finder)
    return True


def _watcher() -> Watcher:
    from spikewatch.zerocode_watch import Watcher

    return Watcher()


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
            afterwards: Any = _Afterwards(spec.loader, ready)
            spec.loader = afterwards
        return spec

    def _found(self, name: str, path: Sequence[str] | None, target: Any) -> importlib.machinery.ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None


class _Afterwards:
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

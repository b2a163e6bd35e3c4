"""Python runs this when it starts, where this folder is on PYTHONPATH: arms the zero-code attach.

Then the sitecustomize that this one hides, if there is one, is run as if nothing had been in its way.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(_HERE)


def _arm() -> None:
    if os.environ.get("SPIKEWATCH_AUTOATTACH", "") in ("", "0"):
        return
    try:
        # This file of the package alone, not the package: every Python that starts pays for it.
        spec = importlib.util.spec_from_file_location("spikewatch_zerocode", os.path.join(_ROOT, "zerocode.py"))
        if spec is None or spec.loader is None:
            raise ImportError(f"no package in {_ROOT}")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.arm(make=_watcher)
    except Exception as error:  # noqa: BLE001  the script starts exactly as without us
        sys.stderr.write(f"spikewatch attaches to nothing here: {error!r}\n")


def _watcher() -> object:
    if importlib.util.find_spec("spikewatch") is None:
        _load_beside()
    from spikewatch.zerocode_watch import Watcher

    return Watcher()


def _load_beside() -> None:
    """Makes this copy of the package importable, and nothing else that lies beside it."""
    spec = importlib.util.spec_from_file_location(
        "spikewatch", os.path.join(_ROOT, "__init__.py"), submodule_search_locations=[_ROOT]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {_ROOT}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["spikewatch"] = module
    spec.loader.exec_module(module)


def _run_hidden() -> None:
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or os.getcwd()) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_arm()
_run_hidden()

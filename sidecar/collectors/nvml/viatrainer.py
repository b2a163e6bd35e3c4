"""GPUs that only the trainer's container sees: its process reads NVML when asked, and leaves what it read in a file."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sidecar.model import JSON

FILE, ASKED = "gpus.json", "asked"  # as in spikewatch/gpus.py, which this room must not import; a test holds them equal
FRESH_S = 5.0
_MAX_SIZE = 256 << 10
_MAX_GPUS = 64
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z-]{1,80}")
_RAW = re.compile(r"[a-z0-9.]{1,24}")


class TrainerFile:
    """The folder by which the trainer is asked, and the file in it. Believes nothing that stands there."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        """`clock`: seconds since 1970, to tell how old the file is."""
        self._folder, self._clock = folder, clock
        self._made = False

    def ask(self) -> None:
        """Makes the folder, where it is not there, and says in it that somebody wants to know, for three minutes. Call
        it every minute. A folder that cannot be made asks nobody.
        """
        with contextlib.suppress(OSError):
            around = self._folder.parent.stat()
            self._folder.mkdir()
            self._made = True
            # Who may open the socket's folder may leave a file here.
            self._folder.chmod(0o770 if around.st_mode & 0o050 else 0o700)
            os.chown(self._folder, -1, around.st_gid)
        with contextlib.suppress(OSError):
            (self._folder / ASKED).touch(mode=0o600)

    def stop(self) -> None:
        """Takes the folder away, if it is ours: nobody needs to read any more."""
        if self._made:
            self._made = False
            for name in (ASKED, FILE, f"{FILE}.new"):
                with contextlib.suppress(OSError):
                    (self._folder / name).unlink()
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def report(self) -> JSON | None:
        """A report in the form of the child's; None where there is no fresh and acceptable one."""
        text = self._read()
        if text is None:
            return None
        try:
            told = json.loads(text)
        except (ValueError, RecursionError):
            return None
        gpus = told.get("gpus") if isinstance(told, dict) else None
        if not isinstance(gpus, list) or len(gpus) > _MAX_GPUS:
            return None
        found = [gpu for gpu in map(_gpu, gpus) if gpu is not None]
        return {"driver": str(told.get("driver", ""))[:80], "gpus": found, "calls": {}, "xids": []} if found else None

    def _read(self) -> bytes | None:
        try:
            fd = os.open(self._folder / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            info = os.fstat(fd)
            fresh = abs(self._clock() - info.st_mtime) <= FRESH_S
            if not stat.S_ISREG(info.st_mode) or not fresh or info.st_size > _MAX_SIZE:
                return None
            return os.read(fd, _MAX_SIZE)
        finally:
            os.close(fd)


def _gpu(told: Any) -> JSON | None:
    """One GPU, with every field the child would give; None for anything strange."""
    if not isinstance(told, dict):
        return None
    uuid, index, name = told.get("gpu"), told.get("index"), told.get("name")
    if not (isinstance(uuid, str) and _UUID.fullmatch(uuid)) or not (isinstance(index, str) and index.isdecimal()):
        return None
    if len(index) > 3 or not isinstance(name, str):
        return None
    codes = {k: int(v) for k, v in _numbers(told.get("codes")).items() if v == int(v)}
    return {
        **{"gpu": uuid, "index": index, "name": name[:80], "number": int(index)},
        **{"parent": "", "divided": False, "lost": 0, "slow": None, "moments": []},
        **{"values": _numbers(told.get("values")), "codes": {"xid": 3, **codes}},
    }


def _numbers(told: Any) -> Mapping[str, float]:
    """Finite numbers under names like `mem.used`."""
    if not isinstance(told, dict) or len(told) > 64:
        return {}
    return {
        name: float(value)
        for name, value in told.items()
        if _RAW.fullmatch(name) and isinstance(value, int | float) and abs(value) < 1e19 and math.isfinite(value)
    }

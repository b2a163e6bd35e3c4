"""The newest reading in a small file: a process that restarts does not pay for the same bill again."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from sidecar.model import Sample, labels_of

_log = logging.getLogger(__name__)
_VERSION = 1
_MAX_BYTES = 8 << 20


class Kept:
    """Readings made under other settings are not taken over. A file that cannot be used is as none, and is logged."""

    def __init__(self, path: Path | None, settings: str) -> None:
        """`settings`: everything a reading depends on, as text."""
        self._path = path
        self._settings = hashlib.sha256(settings.encode()).hexdigest()[:16]

    def load(self, now_ms: int, max_age_ms: int) -> tuple[int, list[Sample]] | None:
        """When the reading was made, and what it gave; None where there is none that is young enough."""
        if self._path is None:
            return None
        try:
            if self._path.stat().st_size > _MAX_BYTES:
                raise ValueError(f"larger than {_MAX_BYTES >> 20} MiB")
            told = json.loads(self._path.read_text(encoding="utf-8"))
            if (told["version"], told["settings"]) != (_VERSION, self._settings):
                return None
            read_ms = int(told["read_ms"])
            samples = [Sample(str(m), labels_of(dict(pairs)), float(v)) for m, pairs, v in told["samples"]]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as e:
            _log.warning("the kept reading of the bill cannot be used, it is read again: %s: %s", self._path, e)
            return None
        return (read_ms, samples) if 0 <= now_ms - read_ms < max_age_ms else None

    def save(self, read_ms: int, samples: Sequence[Sample]) -> None:
        """Replaces the file as a whole."""
        if self._path is None:
            return
        told = {
            "version": _VERSION,
            "settings": self._settings,
            "read_ms": read_ms,
            "samples": [(s.metric, s.labels, s.value) for s in samples],
        }
        beside = self._path.with_name(f".{self._path.name}.new")
        try:
            beside.write_text(json.dumps(told), encoding="utf-8")
            os.replace(beside, self._path)
        except OSError as e:
            _log.warning("the reading of the bill cannot be kept: %s: %s", self._path, e)

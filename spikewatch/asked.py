"""A folder beside the socket by which the sidecar asks for what only the trainer's container can see."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from spikewatch.contact import trusted_uids

ASKED, ASKED_FOR = "asked", 180.0  # a file the sidecar touches every minute while it wants to be told; seconds


class AskedFolder:
    """The sidecar makes it, with a file in it that says it wants to be told; the answer is a file beside that."""

    def __init__(self, path: str, answer: str) -> None:
        """`answer`: the name of the file."""
        self._path, self._answer = path, os.path.join(path, answer)

    def wanted(self) -> bool:
        """Whether a sidecar that we would speak to wants to be told now."""
        try:
            asked = os.stat(os.path.join(self._path, ASKED))
        except OSError:
            return False
        return asked.st_uid in trusted_uids(os.environ) and abs(time.time() - asked.st_mtime) < ASKED_FOR

    def tell(self, told: Mapping[str, Any]) -> None:
        """Replaces the answer as a whole. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._answer + ".new", flags, 0o640)
        try:
            os.write(fd, json.dumps(told, allow_nan=False).encode())
        finally:
            os.close(fd)
        os.replace(self._answer + ".new", self._answer)

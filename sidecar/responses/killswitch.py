"""The kill switch: while it is on, nothing leaves for a trainer. A file, so that it outlives us and needs no API.

The sidecar's own file is written by the API and the command line; a second one, which the configuration may name (a
mounted ConfigMap, say), belongs to the platform and is only looked at. A file that cannot be looked at counts as on.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from sidecar.errors import ResponseError, StateError

FILE = "kill-switch"
"""Its name in `state_dir`."""

_MOST = 4096  # bytes of the file that are of interest


@dataclass(frozen=True, slots=True)
class Halt:
    """Why nothing is sent. `own`: whether `release` can end it."""

    file: str
    by: str = ""
    reason: str = ""
    since_ms: int = 0
    own: bool = True


class KillSwitch:
    """Looks at the files each time it is asked: a file that appears counts from the next message on."""

    def __init__(self, own: Path, platform: Path | None = None) -> None:
        self._own, self._platform = own, platform

    def on(self) -> Halt | None:
        """None while messages may leave. Never raises."""
        if self._platform is not None and (halt := _look(self._platform, own=False)):
            return halt
        return _look(self._own, own=True)

    def engage(self, by: str, reason: str, now_ms: int) -> None:
        """Turns it on; on again, the first word stays. Raises StateError when the file cannot be written."""
        text = json.dumps({"by": by, "reason": reason, "since_ms": now_ms})
        try:
            os.makedirs(self._own.parent, exist_ok=True)
            try:
                fd = os.open(self._own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileExistsError:
                return
        except OSError as e:
            raise StateError(f"{self._own}: the kill switch cannot be written: {e.strerror}") from e
        # From here on it is on, whatever becomes of the words.
        try:
            os.write(fd, text.encode())
            os.fsync(fd)
        except OSError:
            pass  # a full disk: an empty file is a kill switch too
        finally:
            os.close(fd)

    def release(self) -> None:
        """Turns it off. Raises ResponseError where the platform's file keeps it on or it is not on, StateError."""
        halt = self.on()
        if halt is None:
            raise ResponseError("the kill switch is not on")
        if not halt.own:
            raise ResponseError(f"the platform's kill switch is on: {halt.file} has to be removed")
        try:
            self._own.unlink()
        except OSError as e:
            raise StateError(f"{self._own}: the kill switch cannot be removed: {e.strerror}") from e


def _look(path: Path, *, own: bool) -> Halt | None:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        return Halt(str(path), reason=f"it cannot be looked at: {e.strerror}", own=own)
    by, reason, since = "", "", int(found.st_mtime * 1000)
    try:
        with open(path, "rb") as file:
            said = json.loads(file.read(_MOST))
        by, reason = str(said.get("by", "")), str(said.get("reason", ""))
        since = int(said.get("since_ms", since))
    except (OSError, ValueError, AttributeError, TypeError):
        pass  # that the file is there is what counts
    return Halt(str(path), by, reason, since, own)

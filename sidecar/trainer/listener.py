"""The listening socket: a path that fits, a folder of our own, and no second sidecar on it."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

from sidecar.errors import ChannelError
from spikewatch.protocol import MAX_PATH

_BACKLOG = 128


class Listener:
    """A non-blocking SEQPACKET listener bound to `path`."""

    def __init__(self, path: Path, *, others: bool) -> None:
        """Makes the folder if it is not there, 0700 and the socket 0600. With `others` 0750 and 0660: users of the
        folder's group get in, and of them those whose uid is allowed. Raises ChannelError when the path cannot be used.
        """
        self.path = path
        size = len(os.fsencode(path))
        if size > MAX_PATH:
            raise ChannelError(f"{path} has {size} bytes, a socket's path holds {MAX_PATH}: set a shorter run_dir")
        try:
            path.parent.mkdir(mode=0o750 if others else 0o700, parents=True, exist_ok=True)
            self._clear()
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        except OSError as error:
            raise ChannelError(f"cannot listen on {path}: {error.strerror}") from None
        try:
            self.socket.setblocking(False)
            self.socket.bind(str(path))
            os.chmod(path, 0o660 if others else 0o600)
            self.socket.listen(_BACKLOG)
            self._inode = self._now()
        except OSError as error:
            self.socket.close()
            raise ChannelError(f"cannot listen on {path}: {error.strerror}") from None

    def _clear(self) -> None:
        try:
            mode = os.lstat(self.path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise ChannelError(f"{self.path} exists and is not a socket: move it away")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(self.path))
            except OSError as error:
                if error.errno not in (errno.ECONNREFUSED, errno.ENOENT):
                    raise ChannelError(f"{self.path} is in use: {error.strerror}") from None
            else:
                raise ChannelError(f"{self.path} is in use: another sidecar listens there")
        self.path.unlink(missing_ok=True)

    def _now(self) -> tuple[int, int] | None:
        try:
            info = os.lstat(self.path)
        except OSError:
            return None
        return info.st_dev, info.st_ino

    def intact(self) -> bool:
        """Whether a trainer that connects to the path still gets to us."""
        return self._now() == self._inode

    def close(self) -> None:
        """Stops listening; removes the path if it is still ours."""
        self.socket.close()
        if self.intact():
            self.path.unlink(missing_ok=True)

"""The child process: started, asked, found hanging, ended. Nothing here waits longer than it is told."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidecar.collectors.nvml import wire
from sidecar.errors import CollectError
from sidecar.model import JSON

_ROOT = Path(__file__).resolve().parents[3]  # where the package `sidecar` lies
_MAX_ANSWER = 8 << 20
_CODE = """\
import sys
sys.path[:0] = sys.argv[2:]
from sidecar.collectors.nvml.child import main
sys.exit(main(sys.argv[1]))
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a child is told at its start; times in milliseconds. `skip`: GPUs that hung, number → UUID."""

    library: str = ""
    fast_ms: int = 200
    slow_ms: int = 10_000
    rare_ms: int = 30_000
    skip: Mapping[int, str] = field(default_factory=dict)


class NvmlChild:
    """One child. Asked from one thread."""

    def __init__(self, settings: Settings, proc_root: Path = Path("/proc")) -> None:
        """Raises CollectError where no process can be made or pynvml is not installed."""
        self._proc_root = proc_root
        self._buffer = b""
        self._asked = False  # a request is under way, the first report without being asked
        self.cpu_seconds = 0.0
        spec = importlib.util.find_spec("pynvml")
        if spec is None or spec.origin is None:
            raise CollectError("nvml", "no_pynvml", "the package nvidia-ml-py is not installed")
        page = os.memfd_create("spikewatch-nvml")
        try:
            os.ftruncate(page, wire.BOARD_SIZE)
            self._board = mmap.mmap(page, wire.BOARD_SIZE, prot=mmap.PROT_READ)
            told = {
                "library": settings.library,
                "fast_ms": settings.fast_ms,
                "slow_ms": settings.slow_ms,
                "rare_ms": settings.rare_ms,
                "skip": {str(number): uuid for number, uuid in settings.skip.items()},
                "board": page,
                "parent": os.getpid(),
            }
            # -I -S: neither the user's packages nor .pth files, which may import anything, only what is named here.
            command = [
                sys.executable,
                "-I",
                "-S",
                "-c",
                _CODE,
                json.dumps(told),
                str(_ROOT),
                str(Path(spec.origin).parent),
            ]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(page,), close_fds=True, bufsize=0
            )
        except OSError as e:
            raise CollectError("nvml", "no_process", f"the NVML process cannot be started: {e}") from e
        finally:
            os.close(page)
        self._asked = True
        self.started = time.monotonic()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, timeout_s: float) -> JSON | None:
        """A report; None where none comes in time: ask again later, the same request stays under way.

        The report may be one that says why the driver failed; after it the child has ended. Raises CollectError where
        the child ended without a word.
        """
        if not self._asked:
            self._send(b"r\n")
            self._asked = True
        answer = self._read(time.monotonic() + timeout_s)
        if answer is not None:
            self._asked = False
            self.cpu_seconds = float(answer.get("cpu", self.cpu_seconds))
        return answer

    def tell(self, request: str) -> None:
        """A request that has no answer."""
        self._send(request.encode() + b"\n")

    def where(self) -> tuple[int, str]:
        """(number of the GPU or −1, name of the call) the child is inside of; ("" outside the driver)."""
        gpu, name = wire.BOARD.unpack_from(self._board, 0)
        return int(gpu), name.rstrip(b"\0").decode("ascii", "replace")

    def state(self) -> str:
        """The kernel's letter for it: R, S, D (cannot be interrupted) …, Z or "" once it has ended."""
        try:
            line = (self._proc_root / str(self.pid) / "stat").read_bytes()
        except OSError:
            return ""
        return line[line.rindex(b")") + 2 :][:1].decode("ascii", "replace")

    def kill(self, wait_s: float = 0.5) -> bool:
        """Ends it. Whether it has ended in time: one in state D does not, and is left to the kernel."""
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def reap(self) -> bool:
        """Whether one that did not end at once has ended by now."""
        return self._process.poll() is not None

    def _send(self, data: bytes) -> None:
        stream = self._process.stdin
        if stream is None or stream.closed:
            raise CollectError("nvml", "child_ended")
        try:
            stream.write(data)
        except OSError:
            pass  # it has ended; what it said last is still to be read

    def _read(self, until: float) -> JSON | None:
        stream = self._process.stdout
        if stream is None or stream.closed:
            raise CollectError("nvml", "child_ended")
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLIN)
        while b"\n" not in self._buffer:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return None
            data = os.read(stream.fileno(), 1 << 16)
            if not data:
                raise CollectError("nvml", "child_ended", "the NVML process ended by itself")
            self._buffer += data
            if len(self._buffer) > _MAX_ANSWER:
                raise CollectError("nvml", "child_garbled", "the NVML process says more than it can have to say")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer: Any = json.loads(line)
        except ValueError as e:
            raise CollectError("nvml", "child_garbled", f"the NVML process does not speak JSON: {line[:80]!r}") from e
        if not isinstance(answer, dict):
            raise CollectError("nvml", "child_garbled", f"the NVML process says {line[:80]!r}")
        return answer

"""Python processes born with torch imported: forked from one that did it once, for seconds of a core each.

For what a script does once it runs. How an interpreter starts and ends is for tests that start one. Run as a program
this is the process that bears the others: JSON lines {argv, env, cwd, out, err} on stdin; on stdout {"born": pid} for
each, in order, and {"died": pid, "code"} for every death. With the end of stdin every child is killed.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).parents[2]


class Process:
    """As far as tests need it, what `subprocess.Popen` is. `returncode` is negative for a signal, None while alive."""

    def __init__(self, pid: int, folder: Path, number: int) -> None:
        self.pid, self.returncode = pid, None
        self.out, self.err = folder / f"{number}.out", folder / f"{number}.err"
        self.died = threading.Event()

    def poll(self) -> int | None:
        """The exit code, None while it lives."""
        return self.returncode

    def wait(self, timeout: float) -> int:
        """The exit code. Raises AssertionError, with what it wrote, when it is still there after `timeout` seconds."""
        assert self.died.wait(timeout), f"process {self.pid} still runs after {timeout} s\n{self.err.read_text()}"
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it wrote to stdout and stderr, once it has ended."""
        self.wait(timeout)
        return self.out.read_text(), self.err.read_text()

    def send_signal(self, number: int) -> None:
        """To this process; nothing where it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """With its own children, and waits for its end."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.died.wait(30)


class Forked:
    """Starts processes; one object for a whole run of the tests."""

    def __init__(self, folder: Path) -> None:
        """`folder` takes what they write."""
        self._folder, self._born = folder, 0
        self._births: SimpleQueue[Process | None] = SimpleQueue()
        self._processes: dict[int, Process] = {}
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._server = subprocess.Popen([sys.executable, __file__], env=env, cwd=ROOT, text=True, **pipes)
        self._reader = threading.Thread(target=self._read, name="forked", daemon=True)
        self._reader.start()

    def start(self, *argv: str, env: Mapping[str, str | None], cwd: Path = ROOT) -> Process:
        """As `python *argv` would: `-c CODE …` or `SCRIPT …`. `env` changes this process's; None removes."""
        given = {name: value for name, value in {**os.environ, **env}.items() if value is not None}
        at = self._folder / str(self._born)
        told = {"argv": argv, "env": given, "cwd": str(cwd), "out": f"{at}.out", "err": f"{at}.err"}
        self._server.stdin.write(json.dumps(told) + "\n")
        self._server.stdin.flush()
        process = self._births.get(timeout=60)
        assert process is not None, "the process that bears the others has ended"
        return process

    def _read(self) -> None:
        for line in self._server.stdout:
            told = json.loads(line)
            if "born" in told:
                process = Process(told["born"], self._folder, self._born)
                self._born += 1
                self._processes[process.pid] = process
                self._births.put(process)
            else:
                process = self._processes.pop(told["died"])
                process.returncode = told["code"]
                process.died.set()
        self._births.put(None)

    def close(self) -> None:
        """Kills whoever is left."""
        self._server.stdin.close()
        self._server.wait(30)
        self._reader.join(30)
        self._server.stdout.close()


# --- the process that bears the others --------------------------------------------------------------------------------


def preload() -> None:
    """What training scripts import. No thread is started by any of it."""
    import torch._dynamo  # the first optimizer of a process does
    import torch.distributed
    import torch.utils.data.distributed  # noqa: F401

    import spikewatch  # noqa: F401

    gc.collect()
    gc.freeze()  # or every collection of a child's goes through all of torch


def bear(order: dict[str, Any]) -> int:
    """Forks; the child never returns from here."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.environ.clear()
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        run(order["argv"])
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:  # noqa: BLE001  the child's own end, told to its stderr
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def run(argv: list[str]) -> None:
    """A script by its path, or code after `-c`, as the program of this process."""
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        exec(compile(argv[1], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.argv = argv
        sys.path.insert(0, str(Path(argv[0]).parent))
        runpy.run_path(argv[0], run_name="__main__")


def main() -> None:
    """Until stdin ends."""
    from bearing import serve  # found beside the script

    preload()
    serve(bear)


if __name__ == "__main__":
    main()

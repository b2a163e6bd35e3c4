"""A process that imports everything once and then bears trainers and sidecars: each a process of its own, at once.

Importing torch takes seconds of a core, and these tests start some fifty processes. JSON lines on stdin:
{"role", "args", "output"}; on stdout: {"born": pid} for each, in order, and {"died": pid, "code"} for every death.
With the end of stdin every child is killed.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))

import e2e_remedy
import e2e_sidecar
import e2e_trainer
from bearing import serve

ROLES = {"trainer": e2e_trainer.train, "sidecar": e2e_sidecar.run, "remedy": e2e_remedy.train}


def preload() -> None:
    """What children would otherwise import themselves. No thread is started by any of it."""
    import httpx  # noqa: F401
    import torch._dynamo
    import torch.utils.data.distributed  # noqa: F401
    import uvicorn.protocols.http.h11_impl  # noqa: F401

    import sidecar.app  # noqa: F401
    import spikewatch  # noqa: F401
    from sidecar.plugins import Registry, allowed

    Registry(allow=allowed(())).discover()
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
        output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        ROLES[order["role"]](**order["args"])
        code = 0
    except BaseException:  # noqa: BLE001  the child's own end, told to its output
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


def main() -> None:
    """Until stdin ends."""
    preload()
    serve(bear)


if __name__ == "__main__":
    main()

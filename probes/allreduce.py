"""`probes allreduce`: how fast the ranks of this job add up together, by message size. Before the trainer only.

Under torchrun it uses that job's ranks; alone it starts `--ranks` processes here. NCCL on GPUs, gloo without. Bus
bandwidth is what nccl-tests call it: bytes ÷ time · 2(n − 1)/n, comparable with a link whatever the number of ranks.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
REPEATS, WARM_UPS = 7, 2
_VIA = re.compile(r"Channel \d+(?:/\d+)? : .* via (\S+)")


def bus_bandwidth(size: int, seconds: float, ranks: int) -> float:
    """Bytes a second over the slowest link of a ring."""
    return size / seconds * 2 * (ranks - 1) / ranks


def transports(log: str) -> dict[str, int]:
    """Channels by transport, as NCCL_DEBUG=INFO names them: `P2P/CUMEM`, `SHM/direct`, `NET/IB/0/GDRDMA`."""
    return dict(Counter(match[1] for match in _VIA.finditer(log)))


def rank_main(sizes: Sequence[int]) -> int:
    """One rank, from the environment that torchrun makes. Rank 0 prints the lines. Needs torch."""
    import torch
    import torch.distributed as dist

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        for size in sizes:
            took = _timed(torch, dist, size, cuda)
            if rank == 0:
                _say(size, took, ranks, "nccl" if cuda else "gloo")
    finally:
        dist.destroy_process_group()
    return 0


def _timed(torch: Any, dist: Any, size: int, cuda: bool) -> list[float]:
    device = "cuda" if cuda else "cpu"
    data = torch.ones(max(1, size // 4), dtype=torch.float32, device=device)
    took = []
    for turn in range(WARM_UPS + REPEATS):
        data.fill_(1.0)
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(data)
        if cuda:
            torch.cuda.synchronize()
        if turn >= WARM_UPS:
            took.append(time.perf_counter() - began)
    if float(data[0]) != dist.get_world_size() or float(data[-1]) != dist.get_world_size():
        raise RuntimeError(f"the sum over {dist.get_world_size()} ranks came to {float(data[0])}")
    return took


def _say(size: int, took: list[float], ranks: int, backend: str) -> None:
    best, median = min(took), statistics.median(took)
    line = {
        "size": size,
        "ranks": ranks,
        "backend": backend,
        "algorithm": os.environ.get("NCCL_ALGO", "auto"),
        "seconds": median,
        "bus_bytes_per_second": bus_bandwidth(size, median, ranks),
        "best_bus_bytes_per_second": bus_bandwidth(size, best, ranks),
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(ranks: int, sizes: Sequence[int], algorithm: str = "", deadline_s: float = 300.0) -> int:
    """Runs every rank that is this machine's to run. Returns 1 when one fails or is late."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return rank_main(sizes)
    with tempfile.TemporaryDirectory(prefix="probes-") as folder:
        log = Path(folder) / "nccl.%h.%p.log"
        given = {
            **os.environ,
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_FILE": str(log),
            **({"NCCL_ALGO": algorithm} if algorithm else {}),
        }
        command = [sys.executable, "-m", "probes.allreduce", *map(str, sizes)]
        children = [
            subprocess.Popen(command, env={**given, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(ranks)
        ]
        failed = _wait(children, deadline_s)
        logs = "\n".join(file.read_text(errors="replace") for file in Path(folder).glob("*.log"))
    if found := transports(logs):
        sys.stdout.write(json.dumps({"transports": found}) + "\n")
    return failed


def _wait(children: list[subprocess.Popen[bytes]], deadline_s: float) -> int:
    """1 when a rank failed or was late; the others are ended then: they would wait for it for ever."""
    until = time.monotonic() + deadline_s
    failed = 0
    while any(child.poll() is None for child in children):
        if failed or time.monotonic() > until:
            failed = 1
            for child in children:
                if child.poll() is None:
                    child.kill()
                    child.wait()
            break
        failed = int(any(child.poll() not in (None, 0) for child in children))
        time.sleep(0.02)
    return int(failed or any(child.returncode for child in children))


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(rank_main([int(size) for size in sys.argv[1:]]))

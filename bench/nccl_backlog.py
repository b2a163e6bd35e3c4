"""How fast a backlog of NCCL's log becomes typed events: what a sidecar does that starts beside a running job.

    python -m bench.nccl_backlog [--json FILE] [--quick]

Through the same path as in the sidecar: files, whole lines, events, counters. Logs of three kinds, 60 MB each: every
line a different collective (subsystem COLL, the worst there is), channels as an initialisation prints them, and a
trainer's log in which one line in ten is NCCL's. The median of five readings, by CPU time: the reader never waits, so
on a core of its own that is the time it takes, and on a busy machine it still says the same.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench._rows import Row, arguments, publish, row
from sidecar.collectors.nccl.grammar import LogParser
from sidecar.collectors.nccl.logbook import Logbook
from sidecar.collectors.nccl.tail import Tail

TARGET = 50.0  # MB/s
SIZE, TIMES = 60_000_000, 5


def collective(n: int) -> str:
    """An all-reduce with buffers of its own."""
    return (
        f"gpu-{n % 2}:{4100 + n % 8}:{4200 + n % 8} [{n % 8}] NCCL INFO AllReduce: opCount {n:x} sendbuff "
        f"0x7f{n * 512:010x} recvbuff 0x7f{n * 512:010x} count {1000 + n % 777} datatype 9 op 0 root 0 "
        f"comm 0x55d35c3a9ec0 [nranks=8] stream 0x55d35d10aa00\n"
    )


def channel(n: int) -> str:
    """A connection."""
    a = n % 8
    return (
        f"gpu-0:{4100 + a}:{4200 + a} [{a}] NCCL INFO Channel {n // 8 % 32:02d}/0 : {a}[{a}] -> "
        f"{(a + 1) % 8}[{(a + 1) % 8}] via P2P/CUMEM/read\n"
    )


def trainer(n: int) -> str:
    """One line in ten is NCCL's."""
    return channel(n) if n % 10 == 0 else f"[rank0] step {n} loss {2 + n % 97 / 100:.4f} lr 3.0e-4 tokens/s 181233\n"


def megabytes_a_second(path: Path) -> float:
    """One reading of the whole file."""
    tail, parser, logbook = Tail([str(path)]), LogParser(), Logbook()
    started = time.process_time()
    for piece in tail.read(1 << 40):
        logbook.see(parser.parse(piece.text), 0)
    seconds = time.process_time() - started
    read = tail.counts.bytes
    tail.close()
    assert read == path.stat().st_size, "nothing may be skipped"
    return read / seconds / 1e6


def main() -> None:
    """Prints the table."""
    args = arguments(__doc__ or "")
    size, times = (1_000_000, 1) if args.quick else (SIZE, TIMES)
    kinds: dict[str, Callable[[int], str]] = {
        "collectives": collective,
        "channels": channel,
        "trainer's log": trainer,
    }
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, line in kinds.items():
            path = Path(folder) / "nccl.log"
            count = size // len(line(1_000_000))
            path.write_text("".join(map(line, range(count))))
            speed = statistics.median(megabytes_a_second(path) for _ in range(times))
            rows[name] = row(speed, "MB/s", f">= {TARGET:g}", None if args.quick else speed >= TARGET)
    publish(rows, args.json)


if __name__ == "__main__":
    main()

"""Records a real training run on the CPU: how many samples and steps it had finished, once a second.

    python -m bench.record_run --seconds 1500 --out bench/recorded/cpu_run.json

A small convolutional network, trained by PyTorch on one core; its images come from a loader with two workers, each of
which waits for every image as for an object store (5 ms and an exponentially distributed rest of 3 ms). Nothing is
changed while it runs. On a machine that others use, `chrt -r 20` before the command keeps their load out of it.
`bench.verdicts` holds stretches of it against each other.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import threading
import time
from pathlib import Path

import torch

BATCH = 16


class Images(torch.utils.data.IterableDataset):
    """Endless images with a label that can be learned, each after a wait."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        rng = random.Random(info.id if info else 0)
        torch.manual_seed(info.id if info else 0)
        while True:
            time.sleep(0.005 + rng.expovariate(1 / 0.003))
            image = torch.randn(3, 24, 24)
            yield image, int(image.mean() > 0)


def train(done: list[int], until: float) -> None:
    """Counts samples and steps in `done` until the time is over."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(6),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 36, 2),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.nn.CrossEntropyLoss()
    for images, labels in torch.utils.data.DataLoader(Images(), batch_size=BATCH, num_workers=2):
        optimizer.zero_grad()
        loss(model(images), labels).backward()
        optimizer.step()
        done[0] += len(images)
        done[1] += 1
        if time.monotonic() >= until:
            return


def main() -> None:
    """Trains, and writes [milliseconds since the start, samples, steps] for each second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=1500)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    done, rows, over = [0, 0], [], threading.Event()
    start = time.monotonic()

    def look() -> None:
        for second in range(1, args.seconds + 1):
            over.wait(max(0.0, start + second - time.monotonic()))
            if over.is_set():
                return
            rows.append([int((time.monotonic() - start) * 1000), *done])

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        train(done, start + args.seconds)
    finally:
        over.set()
        watcher.join()
    what = {"torch": torch.__version__, "machine": platform.machine(), "batch": BATCH}
    text = ",\n".join(json.dumps(row) for row in rows)
    args.out.write_text(f'{{"what": {json.dumps(what)}, "rows": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main()

"""How much GPU time probes may take: a token bucket that survives restarts, and backs off when the trainer suffers."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

PER_MINUTE_S = 2e-3
"""2 ms of GPU time a minute by default: 0.003 % of a GPU."""

WORST_BACKOFF = 64


@dataclass(frozen=True, slots=True)
class Bucket:
    """Pure: every method gives a new one. Times in seconds of wall time, tokens in seconds of GPU time."""

    per_minute_s: float = PER_MINUTE_S
    most_s: float = 10e-3  # one full sweep
    tokens_s: float = 0.0
    at_s: float = 0.0
    slower: int = 1  # doubled each time that step time suffered

    def filled(self, now_s: float) -> Bucket:
        """With what came in until now. A clock that went back adds nothing."""
        gained = max(0.0, now_s - self.at_s) * self.per_minute_s / 60 / self.slower if self.at_s else self.per_minute_s
        return replace(self, tokens_s=min(self.most_s, self.tokens_s + gained), at_s=now_s)

    def allows(self, cost_s: float) -> bool:
        """Whether there is enough for a sweep that is expected to cost so much."""
        return cost_s <= self.tokens_s

    def wait_s(self, cost_s: float) -> float:
        """Seconds until there is; infinite for what never fits."""
        if cost_s > self.most_s:
            return float("inf")
        return max(0.0, cost_s - self.tokens_s) / (self.per_minute_s / 60 / self.slower)

    def spent(self, cost_s: float) -> Bucket:
        """After a sweep. What it took beyond the expected is a debt that comes off later."""
        return replace(self, tokens_s=self.tokens_s - cost_s)

    def judged(self, step_time_ratio: float | None) -> Bucket:
        """After comparing steps beside a sweep with steps without: over 1 % slower halves the rate, else it recovers.

        None: there were too few steps to say.
        """
        if step_time_ratio is None:
            return self
        if step_time_ratio > 1.01:
            return replace(self, slower=min(WORST_BACKOFF, self.slower * 2))
        return replace(self, slower=max(1, self.slower // 2))


def load(file: Path, per_minute_s: float = PER_MINUTE_S) -> Bucket:
    """What was saved, with the rate that is configured now; a full minute's worth where nothing usable was."""
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        found = Bucket(tokens_s=float(saved["tokens_s"]), at_s=float(saved["at_s"]), slower=int(saved["slower"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        found = Bucket()
    if not (math.isfinite(found.tokens_s) and math.isfinite(found.at_s) and 1 <= found.slower <= WORST_BACKOFF):
        found = Bucket()
    return replace(found, per_minute_s=per_minute_s)


def save(file: Path, bucket: Bucket) -> None:
    """In one piece or not at all. Raises OSError."""
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(asdict(bucket)), encoding="utf-8")
    os.replace(beside, file)

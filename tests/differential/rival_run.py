"""One run of the comparison, from start to everything that both sides did."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import rival_prometheus
import rival_recorded
import rival_rules
from rival_alertmanager import Alertmanager
from rival_exporter import Exporter
from rival_ours import Replayed, notifier

from sidecar.clock import FakeClock
from sidecar.history.remote import RemoteHistory

LATENCY_MS = 1500  # after so long an evaluation has written, whatever the machine was doing


@dataclass
class Run:
    """`ours` by face; `messages` of each face and of Prometheus; `rows` is the run read back as a backtest does."""

    seed: int
    recorded: object
    served: list
    ours: dict
    messages: dict
    tail_ms: int  # how long Prometheus went on after the horizon
    rows: list


def play(folder, seconds, seed):
    """Lets both engines watch the same world for a while."""
    rule_file = folder / "rivals.rules.yaml"
    rule_file.write_text(rival_rules.text())
    with Exporter(seed) as exporter, Alertmanager() as alertmanager:
        with rival_prometheus.running(folder, exporter.address, alertmanager.address, rule_file) as api:
            began_ms = now_ms()
            exporter.begin.set()
            time.sleep(seconds)
            horizon_ms = now_ms() - LATENCY_MS
            recorded = rival_recorded.read(api, horizon_ms, horizon_ms - began_ms + 30_000)
            rows = list(RemoteHistory(api, ('{job="world",__name__!~"scrape_.+"}',), 200).rows(began_ms, horizon_ms))
        tail_ms = now_ms() - horizon_ms
        messages = {"theirs": alertmanager.messages("theirs")}
        ours = {}
        for face in ("incremental", "naive"):
            ours[face] = asyncio.run(_ours(rule_file, recorded, exporter.served, alertmanager, face))
            messages[face] = alertmanager.messages("ours")
            alertmanager.heard["ours"].clear()
    return Run(seed, recorded, exporter.served, ours, messages, tail_ms, rows)


async def _ours(rule_file, recorded, served, alertmanager, face):
    sender = notifier(alertmanager.address, FakeClock())
    sender.start()
    made = Replayed(rule_file, recorded, served, sender, face).run()
    await sender.close(drain_s=60)
    return made


def now_ms():
    return time.time_ns() // 1_000_000

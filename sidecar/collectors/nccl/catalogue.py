"""Every metric about NCCL, and what each was checked against."""

from __future__ import annotations

from typing import Literal

from sidecar.model import Evidence, MetricInfo

# No GPU was at hand: the logs are excerpts of real ones, but we saw no NCCL write them.
EXCERPTS = Evidence("fake", "2026-11-29", "excerpts of public logs of NCCL 2.8 to 2.30 and PyTorch 2.4 to 2.5")
INSPECTOR = Evidence("fake", "2026-11-29", "records written after the format of Inspector v4.0")
RECORDER = Evidence("fake", "2026-11-29", "dumps of PyTorch 2.13 with the gloo backend; no NCCL")
RAS = Evidence("fake", "2026-11-29", "a stand-in of the service; text reports of NCCL 2.26")
FILES = Evidence("device", "2026-11-29", "files on Linux 6.18")

_RANK_OP = ("rank", "op")


def _info(
    name: str,
    unit: str,
    text: str,
    labels: tuple[str, ...],
    source: str,
    verified: Evidence,
    quality: Literal["exact", "averaged", "estimated"] = "exact",
) -> MetricInfo:
    kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
    return MetricInfo(f"spikewatch_nccl_{name}", kind, unit, text, labels, source, "pod", quality, verified)


METRICS: tuple[MetricInfo, ...] = (
    _info("info", "", "Always 1: a version of NCCL that runs here.", ("version",), "NCCL log", EXCERPTS),
    _info("channels", "", "Connections set up, by transport.", ("transport",), "NCCL log", EXCERPTS),
    _info(
        "downgraded_routes",
        "",
        "Pairs of ranks whose connection is now worse than in the first initialisation.",
        (),
        "NCCL log",
        EXCERPTS,
    ),
    _info("init_seconds", "seconds", "The longest initialisation of a communicator.", (), "NCCL log", EXCERPTS),
    _info("warnings_total", "", "NCCL WARN lines, by kind.", ("family",), "NCCL log", EXCERPTS),
    _info(
        "buffers_total",
        "",
        "Buffers handed to collectives, by whether their address is a multiple of 512 bytes "
        "(a buffer used in place counts once).",
        ("aligned",),
        "NCCL log, subsystem COLL",
        EXCERPTS,
    ),
    _info(
        "watchdog_timeouts_total",
        "",
        "Collectives that PyTorch's watchdog gave up on.",
        ("op",),
        "trainer log",
        EXCERPTS,
    ),
    _info(
        "last_enqueued_collective",
        "",
        "The newest collective a rank had enqueued when its watchdog fired or it was dumped; the smallest is the "
        "rank that held up the others.",
        ("rank",),
        "trainer log, flight recorder",
        EXCERPTS,
    ),
    _info(
        "last_completed_collective",
        "",
        "The newest collective a rank had completed when its watchdog fired or it was dumped.",
        ("rank",),
        "trainer log, flight recorder",
        EXCERPTS,
    ),
    _info(
        "synthetic_lines_total",
        "",
        "Lines in a form that no NCCL prints: a demonstration wrote them, and nothing else counts them.",
        (),
        "NCCL log",
        EXCERPTS,
    ),
    _info("log_bytes_total", "bytes", "Log text read.", (), "log files", FILES),
    _info("log_lines_total", "", "Log lines read.", (), "log files", FILES),
    _info("log_skipped_bytes_total", "bytes", "Log text skipped because too much had come.", (), "log files", FILES),
    _info("log_gaps_total", "", "How often log text was skipped.", (), "log files", FILES),
    _info("log_files", "", "Log files that are followed.", (), "log files", FILES),
    _info(
        "collectives_total",
        "",
        "Finished collectives, sends and receives; `rank` counts in its communicator.",
        _RANK_OP,
        "Inspector",
        INSPECTOR,
    ),
    _info(
        "collective_seconds_total",
        "seconds",
        "Time of finished collectives, sends and receives.",
        _RANK_OP,
        "Inspector",
        INSPECTOR,
    ),
    _info(
        "collective_bytes_total",
        "bytes",
        "Message sizes of finished collectives, sends and receives.",
        _RANK_OP,
        "Inspector",
        INSPECTOR,
    ),
    _info(
        "collective_waited_seconds_total",
        "seconds",
        "Time beyond the fastest rank of this pod in the same collective.",
        _RANK_OP,
        "Inspector, flight recorder",
        INSPECTOR,
        "estimated",
    ),
    _info(
        "collective_wait_seconds",
        "seconds",
        "The longest wait among the newest collectives: time beyond the fastest rank of this pod.",
        _RANK_OP,
        "Inspector, flight recorder",
        INSPECTOR,
        "estimated",
    ),
    _info(
        "slow_collectives_consecutive",
        "",
        "Collectives in a row that some rank waited in for at least 95 % of the limit; the longest row since the "
        "previous sample.",
        ("op",),
        "Inspector, flight recorder",
        INSPECTOR,
        "estimated",
    ),
    _info("wait_limit_seconds", "seconds", "The limit of a wait, as configured.", (), "configuration", FILES),
    _info(
        "unmatched_records_total",
        "",
        "Inspector lines that were no record, or without a time on the GPU.",
        (),
        "Inspector",
        INSPECTOR,
    ),
    _info("flight_recorder_dumps_total", "", "Dumps read.", (), "flight recorder", RECORDER),
    _info("flight_recorder_refused_total", "", "Dumps that could not be read.", (), "flight recorder", RECORDER),
    _info("flight_recorder_requests_total", "", "Dumps asked for.", (), "flight recorder", RECORDER),
    _info(
        "stuck_collectives",
        "",
        "Collectives of the newest dump that were begun or enqueued and had not completed.",
        ("rank",),
        "flight recorder",
        RECORDER,
    ),
    _info("ras_queries_total", "", "Reports asked of the RAS service, by outcome.", ("outcome",), "RAS", RAS),
    _info("ras_missing_ranks", "", "Ranks that did not answer the RAS service.", (), "RAS", RAS),
    _info(
        "ras_launched_collectives",
        "",
        "Collectives launched, by rank; a rank that is behind holds up the others, equal numbers prove nothing.",
        _RANK_OP,
        "RAS",
        RAS,
    ),
)

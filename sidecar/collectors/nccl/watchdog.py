"""PyTorch's lines about NCCL: collectives that timed out, how far each rank had come, and how the process ended."""

from __future__ import annotations

import re

from sidecar.collectors.nccl.events import Body, WatchdogOther, WatchdogStatus, WatchdogTimeout

# [Rank 0] | [PG 1 Rank 0] | [PG ID 0 PG GUID 0(default_pg) Rank 1]
_WHO = r"\[(?:PG (?:ID )?(?P<group>[^\]]*?) )?Rank (?P<rank>\d+)\]"
_WHO_ALONE = re.compile(_WHO)
_GUID = re.compile(r"PG GUID (\S+)$")
_TIMEOUT = re.compile(
    _WHO + r" ?Watchdog caught collective operation timeout: WorkNCCL\((?P<work>[^()]*(?:\([^()]*\)[^()]*)*)\)"
    r" ran for (?P<ran>\d{1,18}) milliseconds"
)
_FIELD = re.compile(r"(SeqNum|OpType|NumelIn|NumelOut|Timeout)(?:\(ms\))?=(\w+)")
_STATUS = re.compile(
    r"(?:detected by watchdog at work(?: sequence id)?|Timeout at NCCL work): (?P<failed>\d+)\D.*?"
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)"
)
# What ended the watchdog is printed again, by it and by the program that dies of it: the same time-out, not another.
_TERMINATED = "thread terminated with exception"
_TOPICS: tuple[tuple[str, str], ...] = (
    ("terminated", _TERMINATED),
    ("dump_signal", "received a dump signal"),
    ("dump_timeout", "flight recorder dumps"),
    ("data_inconsistent", "might run on corrupted/incomplete data"),
    ("abort", "taking the entire process down"),
    ("heartbeat", "heartbeat"),
)


def meaning(line: str) -> Body | None:
    """What a line of PyTorch's NCCL process group says; None for a line that is not one."""
    if _TERMINATED in line:
        return _other(line)
    if "WorkNCCL(" in line and (found := _timeout(line)) is not None:
        return found
    if "last enqueued" in line and (status := _STATUS.search(line)) is not None:
        who = _WHO_ALONE.search(line)
        if who is not None:
            return WatchdogStatus(
                rank=int(who["rank"]),
                group=_group(who["group"]),
                failed=int(status["failed"]),
                last_enqueued=int(status["enqueued"]),
                last_completed=int(status["completed"]),
            )
    if "ProcessGroupNCCL.cpp:" in line:
        return _other(line)
    return None


def _timeout(line: str) -> WatchdogTimeout | None:
    found = _TIMEOUT.search(line)
    if found is None:
        return None
    work = dict(_FIELD.findall(found["work"]))
    sequence, timeout = _whole(work.get("SeqNum")), _whole(work.get("Timeout"))
    if sequence is None or timeout is None or "OpType" not in work:
        return None
    return WatchdogTimeout(
        rank=int(found["rank"]),
        op=work["OpType"],
        sequence=sequence,
        elements_in=_whole(work.get("NumelIn")),
        elements_out=_whole(work.get("NumelOut")),
        timeout_seconds=timeout / 1000,
        ran_seconds=int(found["ran"]) / 1000,
        group=_group(found["group"]),
    )


def _other(line: str) -> WatchdogOther:
    who = _WHO_ALONE.search(line)
    if who is not None:
        message = line[who.end() :]
    else:
        message = line.partition("ProcessGroupNCCL.cpp:")[2].partition("]")[2] or line
    return WatchdogOther(
        rank=int(who["rank"]) if who else None,
        group=_group(who["group"]) if who else "",
        topic=next((topic for topic, words in _TOPICS if words in line.lower()), "other"),
        message=message.strip(),
    )


def _group(text: str | None) -> str:
    """`1` of `PG 1`, `0(default_pg)` of `PG ID 0 PG GUID 0(default_pg)`."""
    found = _GUID.search(text or "")
    return found[1] if found else (text or "")


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 18 else None

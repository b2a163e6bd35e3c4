"""Every metric about input and output, and what each was checked against."""

from __future__ import annotations

from typing import Literal

from sidecar.model import Evidence, MetricInfo

KERNEL = Evidence("device", "2026-11-29", "Linux 6.18, virtio disk")
LAYOUT = Evidence("fake", "2026-11-29", "files in the kernel's layout; no NFS here, and block delay is not counted")

_Scope = Literal["", "process", "container", "pod", "node", "device", "job", "cluster"]
_Quality = Literal["exact", "averaged", "estimated"]


def _info(
    name: str,
    unit: str,
    text: str,
    labels: tuple[str, ...],
    source: str,
    scope: _Scope = "pod",
    quality: _Quality = "exact",
    verified: Evidence = KERNEL,
) -> MetricInfo:
    kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
    return MetricInfo(f"spikewatch_{name}", kind, unit, text, labels, source, scope, quality, verified)


_COMMAND = ("command",)
_RING = "/proc/<pid>/fdinfo of io_uring"
_IO = "/proc/<pid>/io"
_DISK = "/sys/block/<device>/stat"
_NFS = "/proc/<pid>/mountstats"

METRICS: tuple[MetricInfo, ...] = (
    _info("io_uring_rings", "", "io_uring rings that are open.", _COMMAND, _RING),
    _info(
        "io_uring_in_flight",
        "",
        "Requests under way in all rings; absent while every reading found the rings locked.",
        _COMMAND,
        _RING,
    ),
    _info("io_uring_unreaped_completions", "", "Results that the program has not taken yet.", _COMMAND, _RING),
    _info(
        "io_uring_overflowing_completions",
        "",
        "Results that found the completion queue full and wait for room now: the program is too slow.",
        _COMMAND,
        _RING,
    ),
    _info("io_uring_completions_total", "", "Results the kernel posted.", _COMMAND, _RING),
    _info(
        "io_uring_cq_overflows_total",
        "",
        "Results that found the completion queue full; those that came and went between two readings are missed.",
        _COMMAND,
        _RING,
        "pod",
        "estimated",
    ),
    _info("io_uring_unknown_readings_total", "", "Readings that found a ring locked by its owner.", _COMMAND, _RING),
    _info("io_uring_sqpoll_seconds_total", "seconds", "Time of kernel threads that poll for rings.", _COMMAND, _RING),
    _info("io_uring_sqpoll_busy_seconds_total", "seconds", "As above, spent on requests.", _COMMAND, _RING),
    _info("io_uring_allowed", "", "Whether io_uring may be used in the sidecar's container.", (), "io_uring_setup"),
    _info(
        "io_pressure_seconds_total",
        "seconds",
        "Time in which some or all tasks stood still for input or output; scope is node, or container for the "
        "trainer's control group.",
        ("scope", "kind"),
        "io.pressure",
        "",
    ),
    _info("io_requested_read_bytes_total", "bytes", "Asked for by read() and its like, pipes included.", _COMMAND, _IO),
    _info("io_requested_write_bytes_total", "bytes", "Given to write() and its like.", _COMMAND, _IO),
    _info("io_storage_read_bytes_total", "bytes", "Fetched from storage.", _COMMAND, _IO),
    _info("io_storage_write_bytes_total", "bytes", "Sent to storage.", _COMMAND, _IO),
    _info(
        "io_page_cache_hit_ratio",
        "ratio",
        "Share of what was read that came from memory, since the previous sample; absent where a process fetched more "
        "than it asked for (mmap, io_uring). Too high where it also reads from pipes.",
        _COMMAND,
        _IO,
        "pod",
        "estimated",
    ),
    _info("io_blocked_threads", "", "Threads in uninterruptible sleep now.", _COMMAND, "/proc/<pid>/task"),
    _info(
        "io_block_delay_seconds_total",
        "seconds",
        "Time processes waited for block devices; absent unless kernel.task_delayacct is 1.",
        _COMMAND,
        "/proc/<pid>/stat 42",
        verified=LAYOUT,
    ),
    _info("io_page_cache_sampled_bytes", "bytes", "Size of the data files looked at.", (), "cachestat"),
    _info("io_page_cache_resident_bytes", "bytes", "What of these files is in memory.", (), "cachestat"),
    _info(
        "io_page_cache_recently_evicted_bytes",
        "bytes",
        "What of these files was dropped from memory and would still be wanted.",
        (),
        "cachestat",
    ),
    _info("io_page_cache_unknown_files", "", "Data files that the kernel would not tell about.", (), "cachestat"),
    _info(
        "io_page_cache_refaults_total",
        "",
        "Pages read again soon after they were dropped: the data does not fit into memory.",
        ("scope",),
        "workingset_refault_file",
        "",
    ),
    *(
        _info(f"io_device_{name}", unit, text, ("device",), _DISK, "node")
        for name, unit, text in (
            ("reads_total", "", "Reads completed by devices that hold data files."),
            ("read_bytes_total", "bytes", "Bytes read from devices that hold data files."),
            ("read_seconds_total", "seconds", "Time of all reads, added up."),
            ("writes_total", "", "Writes completed by devices that hold data files."),
            ("write_bytes_total", "bytes", "Bytes written to devices that hold data files."),
            ("write_seconds_total", "seconds", "Time of all writes, added up."),
            ("in_flight", "", "Requests under way."),
            ("busy_seconds_total", "seconds", "Time with at least one request under way."),
            ("weighted_seconds_total", "seconds", "Time of all requests, added up; its rate is the queue's length."),
            ("readahead_bytes", "bytes", "How far the kernel reads ahead."),
        )
    ),
    _info(
        "io_offload_device_bytes_total",
        "bytes",
        "Bytes moved to and from devices that parameters are offloaded to (offload_paths), whoever asked for it: an "
        "upper bound.",
        ("device", "direction"),
        _DISK,
        "node",
        "estimated",
    ),
    *(
        _info(f"io_nfs_{name}", unit, text, labels, _NFS, "node", "exact", LAYOUT)
        for name, unit, text, labels in (
            ("read_bytes_total", "bytes", "Read from the server.", ("mount",)),
            ("written_bytes_total", "bytes", "Written to the server.", ("mount",)),
            ("requests_total", "", "Requests.", ("mount", "op")),
            ("retransmissions_total", "", "Requests sent again.", ("mount", "op")),
            ("timeouts_total", "", "Requests that timed out.", ("mount", "op")),
            ("rtt_seconds_total", "seconds", "Time from sending to the answer.", ("mount", "op")),
            (
                "request_seconds_total",
                "seconds",
                "Time from the request to its end, waiting included.",
                ("mount", "op"),
            ),
        )
    ),
    _info(
        "storage_probe_bytes_per_second",
        "bytes_per_second",
        "What direct reads of data files gave when it was last measured.",
        ("device", "engine"),
        "read probe",
        "device",
        "averaged",
    ),
    _info("storage_probe_timestamp_seconds", "seconds", "When that was.", ("device", "engine"), "read probe", "device"),
    _info("storage_probes_total", "", "Read probes, by outcome.", ("outcome",), "read probe"),
)

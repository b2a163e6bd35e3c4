"""Signals of what training data comes from and goes to: real files on a real disk; Spark as a stand-in answers."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from signals_of_training import training
from signals_rows import Row, Source, fired, pod_on, quiet
from signals_stage import Stage
from spark_server import GB, serving

MIB = 1 << 20


def small_files(stage: Stage, kit: object) -> Sequence[Row]:
    """A dataset of one file that is written anew as many."""
    folder = stage.folder / "corpus"
    folder.mkdir()
    rows = pa.table({"bytes": [os.urandom(MIB) for _ in range(160)]})
    pq.write_table(rows, folder / "0.parquet", compression="none")
    datasets = {
        "enabled": True,
        "refresh": "1m",
        "interval": "5s",
        "datasets": [{"name": "corpus", "path": str(folder)}],
    }
    pod = pod_on(stage, "cluster", collectors={"datasets": datasets})
    pod.until_true('spikewatch_dataset_file_size_bytes{stat="mean"} > 128 * 1024 * 1024')
    time.sleep(5)
    quiet(pod, "SmallParquetFiles")
    for number in range(160):
        pq.write_table(rows.slice(number, 1), folder / f"part-{number}.parquet", compression="none")
    (folder / "0.parquet").unlink()
    since = time.time()
    source = Source("Parquet files on this machine's disk, written by pyarrow", "device")
    cause = "160 MiB are written anew as 160 files (read every minute here, every hour as shipped)"
    return [fired(pod, "SmallParquetFiles", since, source, cause, seconds=300)]


def large_task(stage: Stage, kit: object) -> Sequence[Row]:
    """A stage whose largest task reads more by shuffle than any should."""
    with serving() as (spark, url):
        place = spark.application("app-1", "etl")
        spark.stage(place, 1, most={"shuffle_read": 2 * GB}, median={"shuffle_read": GB})
        pod = pod_on(stage, "cluster", collectors={"spark": {"enabled": True, "urls": [url], "interval": "5s"}})
        pod.until_true('max(spikewatch_spark_task_serialized_bytes{stat="max"}) > 1e9')
        time.sleep(5)
        quiet(pod, "SparkTaskOversized")
        spark.stage(place, 2, most={"shuffle_read": 31 * GB}, median={"shuffle_read": GB})
        since = time.time()
        source = Source("stand-in for Spark's REST API", "fake")
        return [fired(pod, "SparkTaskOversized", since, source, "a stage whose largest task reads 31 GB", seconds=300)]


def offload(stage: Stage, kit: object) -> Sequence[Row]:
    """Parameters that are offloaded in small pieces."""
    folder = stage.folder / "zero"
    folder.mkdir()
    (folder / "params.swp").write_bytes(os.urandom(64 * MIB))
    probe = {"enabled": True, "pressure": 0.0, "every": "1m"}
    pod = pod_on(stage, collectors={"io": {"offload_paths": [str(folder)], "read_probe": probe}})
    lever = stage.lever()
    training(stage, pod, "offloading", lever, SIGNALS_OFFLOAD_FILE=str(folder / "params.swp"))
    pod.until_true("max(spikewatch_storage_probe_bytes_per_second) > 0", seconds=300)
    time.sleep(75)
    quiet(pod, "OffloadBandwidthLow", "IoBlocked")
    source = Source(
        "script that offloads parameters to this machine's virtio disk, past the page cache; read probe", "device"
    )
    cause = "parameters are written in pages of 4 KiB, without a pause, instead of a megabyte at once"
    since = lever.pull(1)
    return [
        fired(pod, "IoBlocked", since, source, cause),
        fired(pod, "OffloadBandwidthLow", since, source, cause, seconds=400),
    ]

"""Block devices: which ones hold given files, how busy they are, how far they read ahead."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sidecar.model import Sample

_SECTOR = 512  # of diskstats, whatever the device's own is


@dataclass(frozen=True, slots=True)
class Device:
    """A whole disk as /sys knows it."""

    name: str
    folder: Path  # /sys/devices/…/block/NAME


def devices_of(numbers: Iterable[tuple[int, int]], sys_root: Path, proc_root: Path = Path("/proc")) -> list[Device]:
    """The disks under file systems with these (major, minor) numbers, each once, and under stacked devices their parts.

    File systems without a block device (NFS, overlay over one that is not visible, FUSE) have none. btrfs and overlay
    show made-up numbers: their source in mountinfo is taken instead.
    """
    sources = _sources(proc_root)
    found: dict[str, Device] = {}
    for number in set(numbers):
        for device in _disks(_folder(number, sys_root, sources), 0):
            found[device.name] = device
    return sorted(found.values(), key=lambda device: device.name)


def device_of(number: tuple[int, int], sys_root: Path, proc_root: Path = Path("/proc")) -> Device | None:
    """The disk, or stacked device, that a file system is on, of a partition the whole disk; None: it is on none."""
    return next(_disks(_folder(number, sys_root, _sources(proc_root)), 0), None)


def _folder(number: tuple[int, int], sys_root: Path, sources: Mapping[str, str]) -> Path:
    name = f"{number[0]}:{number[1]}"
    folder = sys_root / "dev/block" / name
    if folder.exists():
        return folder
    source = sources.get(name, "")
    return sys_root / "class/block" / os.path.basename(source) if source.startswith("/dev/") else folder


def _disks(folder: Path, depth: int) -> Iterator[Device]:
    try:
        real = folder.resolve(strict=True)
    except OSError:
        return
    if (real / "partition").exists():
        real = real.parent
    yield Device(real.name, real)
    try:
        below = sorted(os.listdir(real / "slaves"))  # device mapper and RAID
    except OSError:
        return
    for name in below if depth < 8 else ():
        yield from _disks(real / "slaves" / name, depth + 1)


def _sources(proc_root: Path) -> dict[str, str]:
    """major:minor → source of each mount."""
    found: dict[str, str] = {}
    try:
        text = (proc_root / "self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return found
    for line in text.splitlines():
        words = line.split()
        if len(words) > 6 and "-" in words[6:]:
            after = words.index("-", 6)
            if after + 2 < len(words):
                found.setdefault(words[2], words[after + 2])
    return found


def samples(devices: Iterable[Device]) -> Iterator[Sample]:
    """Counters of each device since boot; they are the node's, other pods' reads included."""
    for device in devices:
        labels = (("device", device.name),)
        try:
            words = [int(word) for word in (device.folder / "stat").read_text().split()]
        except (OSError, ValueError):
            continue  # unplugged
        if len(words) < 11:
            continue
        for name, value in (
            ("reads_total", words[0]),
            ("read_bytes_total", words[2] * _SECTOR),
            ("read_seconds_total", words[3] / 1000),
            ("writes_total", words[4]),
            ("write_bytes_total", words[6] * _SECTOR),
            ("write_seconds_total", words[7] / 1000),
            ("in_flight", words[8]),
            ("busy_seconds_total", words[9] / 1000),
            ("weighted_seconds_total", words[10] / 1000),
        ):
            yield Sample(f"spikewatch_io_device_{name}", labels, value)
        kib = _number(device.folder / "queue/read_ahead_kb")
        if kib is not None:
            yield Sample("spikewatch_io_device_readahead_bytes", labels, kib * 1024)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None

"""Storage that parameters are offloaded to: its devices, what they moved, and files by which it can be measured."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sidecar.collectors.io import devices
from sidecar.collectors.io.files import DataFile, named
from sidecar.collectors.procfs import Process
from sidecar.model import Sample

_SECTOR = 512  # of /sys/block/<device>/stat
_FILES = 200  # looked for in one folder
_LARGE = 1 << 20  # bytes; what is smaller would measure the way to the device, not the device
_PROCESSES = 8  # asked for what they see under a path


@dataclass(frozen=True, slots=True)
class _Place:
    """A configured path: where it opens from here, and the device that its file system is on."""

    folder: str
    device: devices.Device


@dataclass(frozen=True, slots=True)
class _Reading:
    t_ms: int
    busy_ms: int


class Offload:
    """Follows the block devices under folders that an engine offloads to.

    An engine's own requests cannot be told from others' on the same device: what is counted is an upper bound. The
    device is the one that the file system is on, not what it is made of, so that nothing is counted twice.
    """

    def __init__(self, paths: Sequence[Path], sys_root: Path = Path("/sys"), proc_root: Path = Path("/proc")) -> None:
        """`paths` are looked for as the pod's processes see them, else as the sidecar does."""
        self._paths, self._sys, self._proc = tuple(paths), sys_root, proc_root
        self._places: dict[Path, _Place] = {}
        self._files: dict[str, list[DataFile]] = {}
        self._last: dict[str, _Reading] = {}
        self._busy: dict[str, float] = {}

    def look(self, processes: Sequence[Process]) -> None:
        """Finds the devices anew: a trainer may come, and mount them, later than the sidecar."""
        self._places = {path: place for path in self._paths if (place := self._place(path, processes)) is not None}

    def list_files(self) -> None:
        """Looks for files to measure the devices by; few, for an engine may make thousands."""
        self._files = {}
        for place in self._places.values():
            found = named([f"{glob.escape(place.folder)}/**"], limit=_FILES)
            large = [file for file in found if file.size >= _LARGE]
            self._files.setdefault(place.device.name, []).extend(large)

    @property
    def missing(self) -> list[Path]:
        """Paths that nobody here sees, or that are on no block device."""
        return [path for path in self._paths if path not in self._places]

    def devices(self) -> list[devices.Device]:
        """Each once."""
        return list({place.device.name: place.device for place in self._places.values()}.values())

    def measurable(self) -> Iterator[tuple[str, list[DataFile], float]]:
        """(device, files on it, share of the newest interval in which it was busy, 0 to 1)."""
        for device in self.devices():
            yield device.name, self._files.get(device.name, []), self._busy.get(device.name, 0.0)

    def samples(self, now_ms: int) -> Iterator[Sample]:
        """Bytes since boot; a device that was unplugged has none."""
        for device in self.devices():
            try:
                words = [int(word) for word in (device.folder / "stat").read_text().split()]
                read, written, busy_ms = words[2] * _SECTOR, words[6] * _SECTOR, words[9]
            except (OSError, ValueError, IndexError):
                continue
            before, self._last[device.name] = self._last.get(device.name), _Reading(now_ms, busy_ms)
            if before is not None and now_ms > before.t_ms:
                self._busy[device.name] = (busy_ms - before.busy_ms) / (now_ms - before.t_ms)
            for direction, moved in (("read", read), ("write", written)):
                labels = (("device", device.name), ("direction", direction))
                yield Sample("spikewatch_io_offload_device_bytes_total", labels, moved)

    def _place(self, path: Path, processes: Iterable[Process]) -> _Place | None:
        seen = [f"{self._proc}/{p.pid}/root{path}" for p in list(processes)[:_PROCESSES]]
        for folder in (*seen, str(path)):
            try:
                number = os.stat(folder).st_dev
            except OSError:  # another user's process, or one that does not mount it
                continue
            device = devices.device_of((os.major(number), os.minor(number)), self._sys, self._proc)
            if device is not None:
                return _Place(folder, device)
        return None

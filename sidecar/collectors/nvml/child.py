"""(child) The process that talks to the driver. Imports the standard library and pynvml; started by `process.py`."""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import select
import signal
import sys
import time
from typing import Any

from sidecar.collectors.nvml import wire
from sidecar.collectors.nvml.devices import Device
from sidecar.collectors.nvml.driver import Driver, GpuGone, MigChanged
from sidecar.collectors.nvml.events import EventThread
from sidecar.collectors.nvml.inventory import Inventory

_PR_SET_PDEATHSIG = 1
_LOOK_PAUSE_S = 2.0  # between two looks at the inventory because of invalid handles


class Child:
    """Reads fast between requests, everything else when asked."""

    def __init__(self, nvml: Any, board: mmap.mmap, settings: dict[str, Any]) -> None:
        """Raises NVMLError where the GPUs cannot be listed."""
        self.driver = Driver(nvml, board)
        self._inventory = Inventory(self.driver, {int(n): uuid for n, uuid in settings["skip"].items()})
        self._every = {tier: settings[f"{tier}_ms"] / 1000 for tier in ("fast", "slow", "rare")}
        self._stretch = 1
        now = self.driver.now()
        self._next = {"fast": now, "slow": now, "rare": now}
        self._looked_at = now
        self._inventory.look()
        self._events = EventThread(nvml)
        self._events.listen(self._inventory.devices)
        self._version = self._driver_version()
        self.fast()  # the first report tells already whether there is GPM

    # --- reading -----------------------------------------------------------------------------------------------------

    def wait_s(self) -> float:
        """Seconds until the next fast sample."""
        return max(0.0, self._next["fast"] - self.driver.now())

    def fast(self) -> None:
        """The fast sample, if it is due; slots that were missed are skipped."""
        now, every = self.driver.now(), self._every["fast"] * self._stretch
        if now < self._next["fast"]:
            return
        self._next["fast"] += every * (int((now - self._next["fast"]) / every) + 1)
        self._each(lambda device: device.fast())

    def _due(self, tier: str) -> bool:
        now = self.driver.now()
        if now < self._next[tier]:
            return False
        self._next[tier] = now + self._every[tier] * self._stretch - 0.5  # asked once a second, and not to the moment
        return True

    def _each(self, read: Any) -> None:
        """One thing of every GPU that answers. One that is gone is left alone from then on; the others go on."""
        look = False
        for device in self._inventory.devices:
            if device.lost:
                continue
            self.driver.gpu = device.number
            try:
                read(device)
            except GpuGone as e:
                device.lost = e.code
            except MigChanged:
                look = True
        self.driver.gpu = -1
        if look and self.driver.now() - self._looked_at >= _LOOK_PAUSE_S:
            self._look()

    def _look(self) -> None:
        self._looked_at = self.driver.now()
        self._inventory.look()
        self._events.listen(self._inventory.devices)

    # --- requests ----------------------------------------------------------------------------------------------------

    def obey(self, line: str) -> dict[str, Any] | None:
        """The answer to a request, where it has one."""
        if line.startswith("s"):
            self._stretch = max(1, int(line[1:]))
        elif line.startswith("u"):
            self._inventory.skip.pop(int(line[1:]), None)
            self._look()
        elif line == "r":
            return self.report()
        return None

    def report(self) -> dict[str, Any]:
        """Everything known now. Raises NVMLError where the whole driver has to be begun anew."""
        if self._due("rare"):
            self._look()
            self._each(lambda device: device.read_rare())
        if self._due("slow"):
            self._each(lambda device: device.read_slow())
        values: dict[str, dict[str, float]] = {}

        def tick(device: Device) -> None:
            values[device.uuid] = device.tick()

        self._each(tick)
        devices = self._inventory.devices
        codes = {device.lost for device in devices if device.lost != wire.HUNG}
        if devices and 0 not in codes and codes & wire.RESTART:
            raise self.driver.nvml.NVMLError(min(codes & wire.RESTART))
        return {
            "driver": self._version,
            "gpus": [self._gpu(device, values.get(device.uuid, {})) for device in devices],
            "calls": {name: [int(n), seconds] for name, (n, seconds) in self.driver.calls.items()},
            "xids": self._events.take(),
            "cpu": time.process_time(),
        }

    def _gpu(self, device: Device, values: dict[str, float]) -> dict[str, Any]:
        codes = device.codes()
        xid = self._events.codes.get(device.uuid, 0)
        if xid:
            codes["xid"] = xid
        return {
            "gpu": device.uuid,
            "index": device.index,
            "number": device.number,
            "name": device.name,
            "parent": device.parent,
            "divided": device.divided,
            "lost": device.lost,
            "values": {} if device.lost else values,
            "slow": device.take_slow(),
            "moments": device.take_moments(),
            "codes": codes,
        }

    def _driver_version(self) -> str:
        try:
            return str(self.driver.call("nvmlSystemGetDriverVersion"))
        except self.driver.nvml.NVMLError:
            return ""


def main(argument: str) -> int:
    """Serves requests from standard input until it ends. `argument`: settings as JSON, see `process.Settings`."""
    settings = json.loads(argument)
    _die_with(settings["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the sidecar, which then closes our input
    board = mmap.mmap(settings["board"], wire.BOARD_SIZE)
    import pynvml

    try:
        if settings["library"]:
            ctypes.CDLL(settings["library"])  # pynvml asks for the bare name and is given what is loaded already
        wire.BOARD.pack_into(board, 0, -1, b"nvmlInit")
        pynvml.nvmlInit()
        wire.BOARD.pack_into(board, 0, -1, b"")
        child = Child(pynvml, board, settings)
        _answer(child.report())
        gc.freeze()  # what was loaded stays: no collection has to go through it again
        _serve(child)
    except OSError as e:  # the library that was named cannot be loaded, or nobody reads our answers
        _answer({"failed": wire.LIBRARY_NOT_FOUND, "text": str(e)})
        return wire.EXIT_DRIVER
    except pynvml.NVMLError as e:
        _answer({"failed": int(e.value), "text": str(e)})
        return wire.EXIT_DRIVER
    return 0


def _serve(child: Child) -> None:
    requests = b""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while True:
        if poll.poll(child.wait_s() * 1000):
            read = os.read(0, 4096)
            if not read:
                return
            *lines, requests = (requests + read).split(b"\n")
            for line in lines:
                answer = child.obey(line.decode())
                if answer is not None:
                    _answer(answer)
        child.fast()


def _answer(answer: dict[str, Any]) -> None:
    data = json.dumps(answer, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def _die_with(parent: int) -> None:
    """A child whose parent is gone must not stay behind, even inside a call that does not return."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)

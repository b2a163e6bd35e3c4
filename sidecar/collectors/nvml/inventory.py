"""(child) Which GPUs and MIG devices there are: looked at first, every 30 s, and when a handle turns invalid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sidecar.collectors.nvml import wire
from sidecar.collectors.nvml.devices import Device
from sidecar.collectors.nvml.driver import Driver, GpuGone, MigChanged
from sidecar.collectors.nvml.gpm import Gpm

MAX_GPUS = 64


class Inventory:
    """Keeps the devices, with what is known of them, over every look."""

    def __init__(self, driver: Driver, skip: dict[int, str]) -> None:
        """`skip`: GPUs by number that hung before; nothing is called on them. Value: their UUID, as last seen."""
        self.driver, self.skip = driver, skip
        self.devices: list[Device] = []

    def look(self) -> None:
        """Raises NVMLError where not even the number of GPUs can be had."""
        driver = self.driver
        driver.gpu = -1
        count = min(int(driver.call("nvmlDeviceGetCount")), MAX_GPUS)
        before = {device.uuid: device for device in self.devices}
        found: list[Device] = []
        for number in range(count):
            driver.gpu = number
            found += self._gpu(number, before)
        driver.gpu = -1
        for device in before.values():
            if device not in found:
                device.close()
        self.devices = found

    def _gpu(self, number: int, before: dict[str, Device]) -> Iterator[Device]:
        driver = self.driver
        known = next((d for d in before.values() if d.number == number and not d.instance), None)
        if number in self.skip:
            uuid = self.skip[number] or (known.uuid if known else f"unknown-{number}")
            yield self._lost(known or Device(driver, number, str(number), None, uuid), wire.HUNG)
            return
        try:
            handle = driver.call("nvmlDeviceGetHandleByIndex", number)
            uuid = str(driver.call("nvmlDeviceGetUUID", handle))
        except driver.nvml.NVMLError as e:
            # It fell off the bus: it keeps its place, so that its end is seen as such.
            yield self._lost(known or Device(driver, number, str(number), None, f"unknown-{number}"), int(e.value))
            return
        device = before.get(uuid)
        if device is None or device.number != number or device.lost:
            device = self._new(number, handle, uuid)
        try:
            device.divided = self._mig_mode(device)
            instances = list(self._instances(device, before)) if device.divided else []
        except GpuGone as e:
            yield self._lost(device, e.code)
            return
        except MigChanged:
            instances = []
        if device.divided and device.gpm is not None:
            device.gpm.close()
            device.gpm = None
        elif not device.divided and device.gpm is None:
            device.gpm = Gpm(driver, handle)
        yield device
        yield from instances

    def _new(self, number: int, handle: Any, uuid: str) -> Device:
        device = Device(self.driver, number, str(number), handle, uuid)
        try:
            device.name = str(self.driver.call("nvmlDeviceGetName", handle))
        except self.driver.nvml.NVMLError:
            device.name = ""
        return device

    def _lost(self, device: Device, code: int) -> Device:
        device.lost = code
        return device

    def _mig_mode(self, device: Device) -> bool:
        mode = self.driver.attempt(device.ability("mig"), "nvmlDeviceGetMigMode", device.handle)
        return mode is not None and mode[0] == 1

    def _instances(self, gpu: Device, before: dict[str, Device]) -> Iterator[Device]:
        driver, seen = self.driver, set()
        for place in range(driver.attempt(gpu.ability("mig"), "nvmlDeviceGetMaxMigDeviceCount", gpu.handle) or 0):
            try:
                handle = driver.call("nvmlDeviceGetMigDeviceHandleByIndex", gpu.handle, place)
                uuid = str(driver.call("nvmlDeviceGetUUID", handle))
                instance = int(driver.call("nvmlDeviceGetGpuInstanceId", handle))
            except driver.nvml.NVMLError:
                continue  # an empty place
            device = before.get(uuid)
            if device is None or device.lost:
                device = Device(driver, gpu.number, f"{gpu.number}.{place}", handle, uuid)
                device.instance, device.name, device.parent = True, gpu.name, gpu.uuid
            device.handle = handle
            # Memory and GPM belong to the GPU instance: where several compute instances share it, one speaks for all.
            device.silent = instance in seen
            seen.add(instance)
            if device.gpm is None and not device.silent:
                device.gpm = Gpm(driver, gpu.handle, instance)
            yield device

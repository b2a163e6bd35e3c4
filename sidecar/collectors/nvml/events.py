"""(child) Xid errors as they happen: a thread that waits in the driver for the next one."""

from __future__ import annotations

import threading
import time
from typing import Any

from sidecar.collectors.nvml import wire
from sidecar.collectors.nvml.devices import Device

WAIT_MS = 2_000  # an idle wait; TIMEOUT is its normal answer
KEPT = 1_000  # events between two reports; of a storm the number counts, not every one


class EventThread:
    """Has its own event set and makes its own calls. Events from before it registered are not to be had."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, int], int] = {}
        self._set: Any = None
        self._uuids: dict[int, str] = {}  # address of the handle → UUID
        self.codes: dict[str, int] = {}  # UUID → 0 where it is listened to, else why not
        self._thread: threading.Thread | None = None

    def listen(self, devices: list[Device]) -> None:
        """Registers the GPUs that are not yet; MIG devices report through their GPU."""
        for device in devices:
            if device.instance or device.lost or device.uuid in self.codes:
                continue
            self.codes[device.uuid] = self._register(device)
        if self._thread is None and 0 in self.codes.values():
            self._thread = threading.Thread(target=self._run, name="xid", daemon=True)
            self._thread.start()

    def _register(self, device: Device) -> int:
        nvml = self._nvml
        try:
            supported = nvml.nvmlDeviceGetSupportedEventTypes(device.handle)
            wanted = supported & (nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError)
            if not wanted & nvml.nvmlEventTypeXidCriticalError:
                return wire.NOT_SUPPORTED
            if self._set is None:
                self._set = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(device.handle, wanted, self._set)
        except nvml.NVMLError as e:
            return int(e.value)
        self._uuids[_address(device.handle)] = device.uuid
        return 0

    def take(self) -> list[tuple[str, int, int]]:
        """(UUID, Xid, how often) since the last call."""
        with self._lock:
            seen, self._seen = self._seen, {}
        return [(uuid, xid, count) for (uuid, xid), count in seen.items()]

    def _run(self) -> None:
        nvml = self._nvml
        while True:
            try:
                event = nvml.nvmlEventSetWait(self._set, WAIT_MS)
            except nvml.NVMLError as e:
                if int(e.value) != wire.TIMEOUT:
                    time.sleep(WAIT_MS / 1000)  # a GPU is gone: the wait may fail at once, again and again
                continue
            if event.eventType != nvml.nvmlEventTypeXidCriticalError:
                continue
            key = self._uuids.get(_address(event.device), ""), int(event.eventData)
            with self._lock:
                if key in self._seen or len(self._seen) < KEPT:
                    self._seen[key] = self._seen.get(key, 0) + 1


def _address(handle: Any) -> int:
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value or 0

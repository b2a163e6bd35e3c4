"""(child) What is read of one GPU or MIG device, by tier: what cannot be had is left out, the rest goes on."""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

from sidecar.collectors.nvml import wire
from sidecar.collectors.nvml.driver import Ability, Driver
from sidecar.collectors.nvml.gpm import Gpm

MIB = 1 << 20
RATES_FRESH_S = 0.2  # the driver's own sample covers a sixth of a second at least

# What the library answers is taken apart by its layout in nvml.h: structures of nvidia-ml-py translate every access by
# attribute, which takes longer than the call did.
_RATES = struct.Struct("=II")  # gpu, memory
_MEMORY, _MEMORY_V2 = struct.Struct("=QQQ"), struct.Struct("=I4xQQQQ")  # total, free, used; total, reserved, free, used
_FIELD = struct.Struct("=I4x8x8xII8s")  # field, type of the value, return code, value
_UNION = {t: struct.Struct(f"={c}").unpack_from for t, c in enumerate("dIQQqiH")}  # by nvmlValueType_t
_CORE = ("memory", "utilization")
_SLOW_CALLS = (
    ("temp", "temperature", "nvmlDeviceGetTemperatureV", (0,)),  # the die
    ("clk.sm", "clocks", "nvmlDeviceGetClockInfo", (1,)),
    ("clk.mem", "clocks", "nvmlDeviceGetClockInfo", (2,)),
    ("limit", "power", "nvmlDeviceGetEnforcedPowerLimit", ()),
)


def _no_moments() -> deque[list[float | None]]:
    return deque(maxlen=1_200)


class Device:
    """A whole GPU, or with `instance` a MIG device of it: that has memory, and GPM by way of its GPU."""

    def __init__(self, driver: Driver, number: int, index: str, handle: Any, uuid: str) -> None:
        self.driver, self.number, self.index, self.handle, self.uuid = driver, number, index, handle, uuid
        self.name = self.parent = ""
        self.instance = False
        self.silent = False  # another MIG device of the same GPU instance speaks for it
        self.divided = False  # a GPU in MIG mode: what computes are its MIG devices
        self.lost = 0  # the return code, once nothing answers
        self.gpm: Gpm | None = None
        self.moments = _no_moments()  # [time, busy, sm, tensor, dram, link bytes/s], see waiting.Moment
        self.slow: dict[str, float] = {}
        self._fresh = True
        self.abilities: dict[str, Ability] = {}
        self._rates: tuple[int, int] | None = None  # those that `fast` read last
        self._rates_at = 0.0
        self._sums: dict[int, list[float]] = {}  # GPM id → [number, sum]
        self._fields: dict[Any, Ability] = {}

    def ability(self, name: str) -> Ability:
        """The state of one kind of call."""
        found = self.abilities.get(name)
        if found is None:
            found = self.abilities[name] = Ability(self.instance, name in _CORE)
        return found

    def _get(self, ability: str, name: str, *args: Any) -> Any:
        return self.driver.attempt(self.ability(ability), name, self.handle, *args)

    # --- tiers -------------------------------------------------------------------------------------------------------

    def fast(self) -> None:
        """200 ms: activity. Raises GpuGone, MigChanged, as do the others."""
        busy = None
        if not self.divided and not self.instance:
            rates = self._rates = self._read_rates()
            if rates is not None:
                busy, self._rates_at = rates[0] / 100, self.driver.now()
        gpm = self.gpm.read() if self.gpm is not None else None
        if busy is None and gpm is None:
            return
        found = gpm or {}
        for number, value in found.items():
            total = self._sums.setdefault(number, [0, 0.0])
            total[0] += 1
            total[1] += value
        ratios = [found[n] / 100 if n in found else None for n in (wire.SM, wire.TENSOR, wire.DRAM)]
        links = [found[n] for n in (wire.PCIE_TX, wire.PCIE_RX, wire.NVLINK_RX, wire.NVLINK_TX) if n in found]
        self.moments.append([self.driver.now(), busy, *ratios, sum(links) * MIB if links else None])

    def tick(self) -> dict[str, float]:
        """1 s: memory, what holds the clocks down, power, counters of bytes; and what `fast` gathered."""
        values: dict[str, float] = {}
        self._memory(values)
        for number, (count, total) in self._sums.items():
            values[f"g{number}"] = total / count
        self._sums = {}
        if self.instance:
            return values
        if not self.divided:
            fresh = self._rates is not None and self.driver.now() - self._rates_at <= RATES_FRESH_S
            rates = self._rates if fresh else self._read_rates()
            if rates is not None:
                values["util.gpu"], values["util.memory"] = rates
        reasons = self._older(
            "clocks", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
        )
        if reasons is not None:
            values["clk.reasons"] = reasons
        self._read_fields(wire.TICK_FIELDS, values)
        return values

    def read_slow(self) -> None:
        """10 s: temperature, clocks, power limit."""
        if self.instance:
            return
        for key, ability, name, args in _SLOW_CALLS:
            if name == "nvmlDeviceGetTemperatureV":
                value = self._older(ability, name, "nvmlDeviceGetTemperature", *args)
            else:
                value = self._get(ability, name, *args)
            self._keep(key, value)

    def read_rare(self) -> None:
        """30 s: errors, rows, temperature of the memory, processes (a call of several milliseconds)."""
        if self.instance:
            return
        found: dict[str, float] = {}
        self._read_fields(wire.RARE_FIELDS, found)
        for number in wire.RARE_FIELDS:
            self._keep(f"f{number}", found.get(f"f{number}"))
        processes = self._get("processes", "nvmlDeviceGetComputeRunningProcesses")
        self._keep("procs", None if processes is None else len(processes))
        held = None if processes is None else [p.usedGpuMemory for p in processes]
        self._keep("procs.mem", None if held is None or None in held else sum(held))
        mps = self._get("mps", "nvmlDeviceGetMPSComputeRunningProcesses")
        self._keep("mps", None if mps is None else len(mps))

    # --- parts -------------------------------------------------------------------------------------------------------

    def _keep(self, key: str, value: float | None) -> None:
        self._fresh = True
        if value is None:
            self.slow.pop(key, None)
        else:
            self.slow[key] = value

    def _read_rates(self) -> tuple[int, int] | None:
        rates = self._get("utilization", "nvmlDeviceGetUtilizationRates")
        return None if rates is None else _RATES.unpack(rates)

    def _memory(self, values: dict[str, float]) -> None:
        if self.divided or self.silent:
            return
        memory = self._get("memory", "nvmlDeviceGetMemoryInfo", self.driver.nvml.nvmlMemory_v2)
        if memory is not None:
            _, values["mem.total"], values["mem.reserved"], free, used = _MEMORY_V2.unpack(memory)
        elif self.ability("memory").code in wire.NEVER:
            memory = self._get("memory_v1", "nvmlDeviceGetMemoryInfo")
            if memory is None:
                return
            values["mem.total"], free, used = _MEMORY.unpack(memory)
        else:
            return
        values["mem.used"], values["mem.free"] = used, free

    def _older(self, ability: str, name: str, older: str, *args: Any) -> Any:
        """A function that drivers of another age have under another name."""
        own = self.ability(f"{ability}.{name}")
        answer = self.driver.attempt(own, name, self.handle, *args)
        return answer if answer is not None or own.code not in wire.NEVER else self._get(ability, older, *args)

    def _read_fields(self, wanted: tuple[Any, ...], values: dict[str, float]) -> None:
        now = self.driver.now()
        abilities = [self._fields.setdefault(field, Ability()) for field in wanted]
        asked = [f for f, a in zip(wanted, abilities, strict=True) if not a.code or now >= a.retry_at]
        answer = self._get("fields", "nvmlDeviceGetFieldValues", asked) if asked else None
        if answer is None:
            return
        for field, (number, kind, code, value) in zip(asked, _FIELD.iter_unpack(answer), strict=True):
            ability = self._fields[field]
            if code:
                self.driver.refused(ability, code)
            else:
                ability.code = 0
                values[f"f{number}"] = _UNION.get(kind, _UNION[3])(value)[0]

    # --- for the report ----------------------------------------------------------------------------------------------

    def take_moments(self) -> list[list[float | None]]:
        """The fast samples since they were taken last, the newest where nobody has asked for long."""
        moments, self.moments = self.moments, _no_moments()
        return [] if self.lost else list(moments)

    def take_slow(self) -> dict[str, float] | None:
        """What the slow tiers found; None where nothing was read since it was taken last."""
        fresh, self._fresh = self._fresh, False
        return (self.slow if not self.lost else {}) if fresh else None

    def codes(self) -> dict[str, int]:
        """What cannot be had now: kind of call → return code."""
        found = {name: ability.code for name, ability in self.abilities.items() if ability.code}
        if self.gpm is not None and self.gpm.ability.code:
            found["gpm"] = self.gpm.ability.code
        for field, ability in self._fields.items():
            if ability.code:
                found[f"f{field[0] if isinstance(field, tuple) else field}"] = ability.code
        return found

    def close(self) -> None:
        """Gives back what the library holds for it."""
        if self.gpm is not None:
            self.gpm.close()

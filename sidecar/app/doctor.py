"""What this pod can and cannot see, why, and the one change that would help: each collector is tried here and now."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sidecar.app import collecting, records
from sidecar.errors import CollectError
from sidecar.hooks import CollectorSettings, Examinable
from sidecar.model import Availability, Finding, MetricInfo, Status
from sidecar.plugins import Registry
from sidecar.settings import Loaded

_SEEING = (Availability.AVAILABLE, Availability.DEGRADED)
_BETWEEN_S = 1.0  # two samples so far apart: some numbers are differences


@dataclass(slots=True)
class Examined:
    """One collector. `seen`: the metrics of which it gave a sample."""

    name: str
    status: Status
    findings: tuple[Finding, ...] = ()
    seen: frozenset[str] = frozenset()
    samples: int = 0
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Report:
    """What was found out. `catalogue` has every metric there is, also those no collector brings."""

    places: tuple[Finding, ...]
    collectors: tuple[Examined, ...]
    catalogue: tuple[MetricInfo, ...]

    @property
    def fine(self) -> bool:
        """Whether everything that is turned on can be seen, if not all of it."""
        found = [f.status for f in self.places] + [c.status for c in self.collectors]
        return all(status.state in _SEEING for status in found)


def examine(loaded: Loaded, registry: Registry, patience_s: float = 15.0, between_s: float = _BETWEEN_S) -> Report:
    """Tries every collector that is turned on, all at once, each under its own deadline but never longer than
    `patience_s`. Raises ConfigError where their settings are wrong.
    """
    settings = collecting.check(loaded, registry)
    running: list[tuple[Examined, float]] = []
    turned_off: list[Examined] = []
    for name, own in settings.items():
        if not own.enabled:
            off = Status(Availability.UNAVAILABLE, "turned_off", f"set collectors.{name}.enabled: true")
            turned_off.append(Examined(name, off))
            continue
        found = Examined(name, Status(Availability.UNAVAILABLE, "deadline", "look at the node: a system call hangs"))
        make = _maker(registry, name, own)
        threading.Thread(target=_try, args=(found, make, between_s), name=f"doctor-{name}", daemon=True).start()
        running.append((found, min(patience_s, own.deadline / 1000 + between_s)))
    began = time.monotonic()
    for found, allowed in running:
        found.done.wait(max(0.0, began + allowed - time.monotonic()))
    examined = sorted((f for f, _ in running), key=lambda e: e.name)
    return Report(tuple(_places(loaded)), tuple(examined + turned_off), records.catalogue(registry))


def _maker(registry: Registry, name: str, own: CollectorSettings) -> Callable[[], Any]:
    cls: Any = registry.collector(name)
    return lambda: cls(own)


def _try(found: Examined, make: Callable[[], Any], between_s: float) -> None:
    """In a thread of its own. What is known so far is always in `found`, should a later step hang."""
    collector = None
    try:
        collector = make()
        found.status = collector.probe()
        if found.status.state in _SEEING:
            for pause in (0.0, between_s):
                time.sleep(pause)
                samples = list(collector.sample(time.time_ns() // 1_000_000))
                found.seen |= {sample.metric for sample in samples}
                found.samples = len(samples)
            found.status = collector.probe()
        if isinstance(collector, Examinable):
            found.findings = tuple(collector.findings())
    except CollectError as e:
        found.status = Status(Availability.UNAVAILABLE, e.reason, found.status.fix or str(e))
    # Foreign code, as in the collector's thread of a running sidecar: what it raises is its finding.
    except (Exception, SystemExit) as e:  # noqa: BLE001
        found.status = Status(Availability.UNAVAILABLE, "exception", f"report it: {type(e).__name__}: {e}")
    finally:
        found.done.set()
        if collector is not None:
            collector.close()


def _places(loaded: Loaded) -> Iterator[Finding]:
    """The folders that must be shared or kept."""
    settings = loaded.settings
    run_dir, state_dir = loaded.path(settings.run_dir), loaded.path(settings.state_dir)
    socket = run_dir / "trainer.sock"
    what = f"trainer's socket ({socket})"
    if socket.is_socket():
        yield Finding(what, Status(Availability.AVAILABLE), "a sidecar listens, or did")
    elif not run_dir.is_dir():
        fix = f"mount one emptyDir at {run_dir} in both containers, the sidecar's and the trainer's"
        yield Finding(what, Status(Availability.UNAVAILABLE, "no_run_dir", fix))
    else:
        yield Finding(what, Status(Availability.UNAVAILABLE, "nobody_listens", "start the sidecar: spikewatch run"))
    what = f"state ({state_dir})"
    nearest = next(p for p in (state_dir, *state_dir.parents) if p.exists())
    if os.access(nearest, os.W_OK | os.X_OK):
        yield Finding(what, Status(Availability.AVAILABLE))
    else:
        fix = f"mount a volume at {state_dir} that uid {os.getuid()} may write to (fsGroup)"
        yield Finding(what, Status(Availability.DENIED, "state_dir_read_only", fix))

"""Wires the rooms together and runs them: listeners, signals, pace."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from sidecar import __version__
from sidecar.api.routes import full, metrics_only
from sidecar.api.server import Server, UnixServer
from sidecar.api.services import Data, Services
from sidecar.app.files import runbook
from sidecar.app.polling import Polling
from sidecar.app.rulebook import load_rulebook
from sidecar.app.settling import settle
from sidecar.app.sidecar import Sidecar
from sidecar.app.waker import Waker
from sidecar.clock import Clock, SystemClock
from sidecar.errors import ConfigError, Problem, StateError
from sidecar.plugins import Registry, allowed
from sidecar.responses.response import Policy
from sidecar.settings import load

API_SOCKET = "api.sock"
"""In `run_dir`: the whole API, for who may open it."""

_UNKNOWN = ("revision", "branch", "buildUser", "buildDate", "goVersion")  # what Prometheus says of its build, too

_log = logging.getLogger(__name__)


def build(
    config: Path | None,
    clock: Clock | None = None,
    environ: Mapping[str, str] | None = None,
    policy: Policy | None = None,
) -> Sidecar:
    """A sidecar from a configuration file. `policy` replaces the responses' own times.

    Raises ConfigError with every problem, StateError.
    """
    loaded = load(config, environ)
    registry = Registry(allow=allowed(loaded.settings.plugins.allow))
    registry.discover()
    for problem in registry.problems:
        _log.error("plugin left out: %s", problem)
    rulebook = load_rulebook(loaded, registry)
    for warning in rulebook.warnings:
        _log.warning("%s", warning)
    return Sidecar(config, loaded, rulebook, registry, clock or SystemClock(), environ=environ, policy=policy)


Reload = Callable[[], Awaitable[Sequence[Problem]]]


def services(sidecar: Sidecar, reload: Reload) -> Services:
    """What the API may call; `reload` gives warnings, or raises ConfigError and keeps what runs."""
    settings = sidecar.rulebook.loaded.settings
    token = settings.http.token_file
    return Services(
        page=lambda accept: sidecar.exposition.page(accept),
        not_ready=lambda: "" if sidecar.vitals.ticks else "the first evaluation has not run",
        reload=reload,
        alerts=lambda: sidecar.manager.alerts(),
        responses=sidecar.control,
        dumps=sidecar.channel,
        rules=lambda: sidecar.manager.rules(),
        catalogue=sidecar.catalogue,
        runbook=runbook,
        data=Data(
            sidecar.store,
            sidecar.clock.now_ms,
            lambda: sidecar.rulebook.loaded.settings.evaluation_interval,
        ),
        build={"version": __version__, "application": "spikewatch", **dict.fromkeys(_UNKNOWN, "")},
        token_file=sidecar.rulebook.loaded.path(token) if token else None,
    )


async def serve(config: Path | None, environ: Mapping[str, str] | None = None, policy: Policy | None = None) -> None:
    """Runs until SIGTERM or SIGINT. Raises ConfigError or StateError where it cannot start."""
    sidecar = build(config, environ=environ, policy=policy)
    settings = sidecar.rulebook.loaded.settings
    waker = Waker(sidecar.tick, settings.evaluation_interval, sidecar.clock)
    polling = Polling(sidecar.poll, sidecar.clock)

    async def pace() -> None:
        interval = sidecar.rulebook.loaded.settings.evaluation_interval
        waker.retime(interval)
        await polling.adjust(sidecar.collectors.fastest_ms, interval)

    async def reload() -> Sequence[Problem]:
        warnings = await sidecar.reload()
        await pace()
        return warnings

    offered = services(sidecar, reload)
    servers: list[Server] = [Server(full(offered), *settings.http.address)]
    if settings.metrics is not None:
        servers.append(Server(metrics_only(offered), *settings.metrics.address))
    servers.append(UnixServer(full(offered, local=True), sidecar.rulebook.loaded.path(settings.run_dir) / API_SOCKET))
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: loop.create_task(_on_hangup(reload)))
    started: list[Server] = []
    try:
        try:
            await sidecar.start()
            for server in servers:
                await server.start()
                started.append(server)
        except OSError as e:
            raise StateError(e.strerror or str(e)) from e
        waker.start()
        sidecar.tick()
        await pace()
        settle()
        _log.info("running: %s", ", ".join(s.url for s in started))
        await stopping.wait()
    finally:
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # requests that are cut off now are no errors
        await polling.stop()
        await waker.stop()
        await asyncio.gather(sidecar.stop(), *(server.stop() for server in started))


async def _on_hangup(reload: Reload) -> None:
    try:
        await reload()
    except ConfigError as e:
        _log.error("reload refused, the running configuration stays:\n%s", e)
    except Exception:  # noqa: BLE001  nobody else would see it: this is the end of a task
        _log.exception("reload failed, the running configuration stays")
    else:
        _log.info("configuration reloaded")


def run_forever(config: Path | None) -> None:
    """`spikewatch run`. Logs go to stderr, the journal's JSON lines to stdout. Ends the process when it is done."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns once for each connection over the limit
    logging.getLogger("httpx").setLevel(logging.WARNING)
    runner = asyncio.Runner()
    try:
        runner.run(serve(config))
    except BaseException:
        runner.close()
        raise
    # All that lasts is written and closed. What may be left are threads that wait for a name server, for ten seconds
    # and more when it is down; neither asyncio nor the interpreter would end before them.
    logging.shutdown()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(0)

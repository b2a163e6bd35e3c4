"""Starts the demo's parts: object store, sidecar, trainer; each as its own user would, by its command line."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from sidecar.cli.demo.processes import Child, Processes
from sidecar.cli.demo.scenarios import RULES, Scenario
from sidecar.cli.demo.traininglog import TrainingLog
from sidecar.errors import SpikewatchError
from sidecar.model import KnobValue
from sidecar.settings import SHIPPED

IMAGES = 8192  # divides evenly over 1, 2, 4 … ranks
BATCH_SIZE = 8
KNOBS: Mapping[str, KnobValue] = {"num_workers": 2, "prefetch_factor": 2}  # as found by the sidecar
WIDTH = 64  # about 40 ms a step on one core: long against the healthy latency, short against the demo


class DemoError(SpikewatchError):
    """The demo could not be played to its end."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the person chose. `rules` and `responses` stand in for the shipped ones where given; `approve_as` says yes
    to plans in a drill.
    """

    nproc: int = 1
    usd_per_gpu_hour: float = 2.5
    alertmanager: str = ""
    seed: int | None = None
    rules: Path | None = None
    responses: Path | None = None
    approve_as: str = ""


class Launcher:
    """`directory` keeps logs and state; `run_dir` is short, because a socket's path is limited to 107 bytes."""

    def __init__(
        self, processes: Processes, scenario: Scenario, options: Options, directory: Path, run_dir: Path
    ) -> None:
        self._processes, self._scenario, self._options = processes, scenario, options
        self._directory, self._run_dir = directory, run_dir

    def store(self, seed: int) -> Child:
        """The object store; `store_url` tells when it is there."""
        command = [sys.executable, "-m", "sidecar.cli.demo.store", "--images", str(IMAGES), "--seed", str(seed)]
        return self._processes.start("store", command, {})

    def sidecar(self) -> tuple[Child, str]:
        """The sidecar, and the URL where it will answer."""
        url = f"127.0.0.1:{free_port()}"
        config = self._directory / "spikewatch.yaml"
        config.write_text(yaml.safe_dump(self._config(url), sort_keys=False), encoding="utf-8")
        child = self._processes.start("sidecar", [sys.executable, "-m", "sidecar", "run", "--config", str(config)], {})
        return child, f"http://{url}"

    def _config(self, listen: str) -> dict[str, object]:
        options = self._options
        config: dict[str, object] = {
            "state_dir": str(self._directory / "state"),
            "run_dir": str(self._run_dir),
            "rules": [str(options.rules.absolute()) if options.rules else SHIPPED + RULES],
            "responses": [str((options.responses or self._scenario.responses_path).absolute())],
            "evaluation_interval": "1s",
            "http": {"listen": listen},
            "metrics": None,
            "usd_per_gpu_hour": options.usd_per_gpu_hour,
            "gpus": options.nproc,
        }
        if options.alertmanager:
            config["alertmanagers"] = [{"url": options.alertmanager}]
        return config

    def trainer(self, name: str, store: str, seed: int, knobs: Mapping[str, KnobValue], *, attached: bool) -> Child:
        """The training script, on `nproc` ranks; its own log goes to `directory/name`."""
        script = [str(training_script()), "--url", store, "--output", str(self._directory / name)]
        script += ["--workers", str(knobs["num_workers"]), "--prefetch", str(knobs["prefetch_factor"])]
        script += ["--batch-size", str(BATCH_SIZE), "--width", str(WIDTH), "--seed", str(seed)]
        script += self._scenario.trainer_arguments
        command = [sys.executable]
        if self._options.nproc > 1:
            ranks = str(self._options.nproc)
            command += ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
            command += ["--nproc-per-node", ranks]
        environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "no_proxy": "127.0.0.1"}
        if attached:
            environment["SPIKEWATCH_SOCKET"] = str(self._run_dir / "trainer.sock")
        else:
            environment["SPIKEWATCH_DISABLE"] = "1"
        return self._processes.start(name, command + script, environment)

    def stop_trainer(self, child: Child, log: TrainingLog) -> None:
        """Asks every rank to stop, so that all stop after the same step, and waits for it.

        Not through torchrun: it would pass the signal on to the loader workers as well.
        """
        running = self._processes.running()
        for rank in log.ranks.values():
            if rank.start.get("pid") in running:
                os.kill(rank.start["pid"], signal.SIGTERM)
        self._processes.wait(child)


def store_url(child: Child) -> str | None:
    """Where the store listens, None before it does."""
    line, newline, _ = child.output.read_text(encoding="utf-8").partition("\n")
    if not newline:
        return None
    try:
        return str(json.loads(line)["url"])
    except ValueError:
        child.check()
        raise DemoError(f"the store wrote {line!r} instead of its address") from None


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def training_script() -> Path:
    """`examples/train_images.py` as installed. Raises DemoError where it is missing."""
    spec = importlib.util.find_spec("spikewatch_examples")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        script = Path(location) / "train_images.py"
        if script.is_file():
            return script
    raise DemoError("the training script is not installed: reinstall spikewatch with its examples")


def missing(modules: Sequence[str] = ("torch",)) -> list[str]:
    """Which of the modules that the training script needs are not installed."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def inherited(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for every part: the person's own, less what would configure spikewatch or a running job."""
    ours = ("SPIKEWATCH_", "TORCHELASTIC_")
    job = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
    return {name: value for name, value in environ.items() if not name.startswith(ours) and name not in job}

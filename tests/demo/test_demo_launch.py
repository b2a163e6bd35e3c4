"""How the demo's parts are started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sidecar.cli.demo.launch import Launcher, Options, free_port, inherited, missing, store_url, training_script
from sidecar.cli.demo.processes import Child
from sidecar.cli.demo.scenarios import RULES, SCENARIOS
from sidecar.errors import SpikewatchError
from sidecar.settings import SHIPPED, load


class Recorder:
    """Stands in for Processes: keeps what it was told to start."""

    def __init__(self, output):
        self.output, self.started = output, []

    def start(self, name, command, environment):
        self.started.append((name, list(command), dict(environment)))
        return Child(name, None, self.output / f"{name}.log")


def launcher(tmp_path, scenario="data-starvation", **options):
    processes = Recorder(tmp_path)
    return processes, Launcher(processes, SCENARIOS[scenario], Options(**options), tmp_path, Path("/tmp/run"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_sidecar_s_configuration_is_one_that_loads_with_the_shipped_rules(tmp_path, scenario):
    """Nothing listens but on the loopback interface, and the state is in the directory that is kept."""
    processes, launch = launcher(tmp_path, scenario, nproc=2, alertmanager="http://am:9093")
    _, url = launch.sidecar()
    (_, command, _) = processes.started[0]
    settings = load(Path(command[-1]), {}).settings
    assert settings.rules == (SHIPPED + RULES,)
    assert settings.responses == (str(SCENARIOS[scenario].responses_path),)
    assert settings.state_dir.is_relative_to(tmp_path)
    assert (settings.metrics, settings.gpus, settings.usd_per_gpu_hour) == (None, 2, 2.5)
    assert [one.url for one in settings.alertmanagers] == ["http://am:9093"]
    assert url == f"http://{settings.http.listen}"
    assert url.startswith("http://127.0.0.1:")


def test_several_ranks_run_under_torchrun_and_one_runs_plainly(tmp_path):
    """Both with the knobs they are told, attached through the socket in the short directory."""
    knobs = {"num_workers": 3, "prefetch_factor": 5}
    for nproc in (1, 2):
        processes, launch = launcher(tmp_path, nproc=nproc)
        launch.trainer("training", "http://store", 7, knobs, attached=True)
        (_, command, environment) = processes.started[0]
        assert ("torch.distributed.run" in command) == (nproc > 1)
        script = command[command.index(str(training_script())) :]
        options = dict(zip(script[1::2], script[2::2], strict=False))
        assert (options["--workers"], options["--prefetch"], options["--seed"]) == ("3", "5", "7")
        assert environment["SPIKEWATCH_SOCKET"] == "/tmp/run/trainer.sock"


def test_the_comparison_run_is_not_attached(tmp_path):
    """Its speed is what the script can do alone."""
    processes, launch = launcher(tmp_path)
    launch.trainer("comparison", "http://store", 7, {"num_workers": 3, "prefetch_factor": 5}, attached=False)
    (_, _, environment) = processes.started[0]
    assert environment["SPIKEWATCH_DISABLE"] == "1"
    assert "SPIKEWATCH_SOCKET" not in environment


def test_a_person_s_own_spikewatch_settings_and_running_job_do_not_reach_the_demo():
    """The rest of the environment does."""
    theirs = {"SPIKEWATCH_STATE_DIR": "/x", "RANK": "3", "TORCHELASTIC_RUN_ID": "a", "PATH": "/bin", "RANKING": "1"}
    assert inherited(theirs) == {"PATH": "/bin", "RANKING": "1"}


def test_the_store_s_address_is_known_once_its_line_is_whole(tmp_path):
    """And what is no address is an error."""
    child = Child("store", FakeProcess(), tmp_path / "store.log")
    child.output.write_text('{"url": "http://127.0.0.1:1"}')
    assert store_url(child) is None
    child.output.write_text('{"url": "http://127.0.0.1:1"}\n')
    assert store_url(child) == "http://127.0.0.1:1"
    child.output.write_text("address in use\n")
    with pytest.raises(SpikewatchError, match="address in use"):
        store_url(child)


class FakeProcess:
    """A process that runs."""

    def poll(self):
        return None


def test_a_free_port_can_be_listened_on():
    """Right after it was found."""
    with socket.create_server(("127.0.0.1", free_port())):
        pass


def test_a_module_that_is_not_installed_is_named():
    """The command then says what to install instead of failing in a child."""
    assert missing(("json", "no_such_module_here")) == ["no_such_module_here"]

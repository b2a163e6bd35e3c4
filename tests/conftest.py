"""What tests of several rooms share: the real peers, where they can be had."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, not whether what was tested holds.
settings.register_profile("no-deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no-deadline")


def pytest_configure(config):
    config.option.loadscopereorder = False  # xdist would give out groups of many tests first, however short they are


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """One process runs a whole file (its fixtures are costly), and all the stories, which start together.

    What may take longest comes first, so that in the end no process waits for another: first by the largest timeout
    of a test, then by the number of tests.
    """
    groups = {}
    for item in items:
        file = item.nodeid.partition("::")[0]
        group = "stories" if file.startswith("tests/e2e/") else file
        item.add_marker(pytest.mark.xdist_group(group))
        groups.setdefault(group, []).append(item)
    items[:] = [item for group in sorted(groups.values(), key=_length, reverse=True) for item in group]


def _length(items):
    timeouts = [
        m.args[0] for i in items if not i.get_closest_marker("proof") and (m := i.get_closest_marker("timeout"))
    ]
    return max(timeouts, default=30), len(items)


@pytest.fixture(scope="session")
def peer():
    """Gives the path of a peer's binary; skips where there is none."""
    folder = os.environ.get("SPIKEWATCH_PEERS")
    if not folder:
        pytest.skip("SPIKEWATCH_PEERS is not set to the folder with bin/prometheus and the others")

    def path(name):
        file = Path(folder) / "bin" / name
        if not file.exists():
            pytest.skip(f"{file} is missing")
        return str(file)

    return path


@pytest.fixture(scope="session")
def forked(tmp_path_factory):
    """Starts Python processes that have imported torch already: see `forked.Forked.start`."""
    from forked import Forked

    made = Forked(tmp_path_factory.mktemp("forked"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def record_proof():
    """Writes what a long proof found to docs/proof/NAME.json, with the commit it ran on and the date."""
    root = Path(__file__).parent.parent

    def record(name, found):
        git = ["git", "-C", str(root)]
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
        said = {"commit": commit, "date": time.strftime("%Y-%m-%d", time.gmtime())}
        file = root / "docs" / "proof" / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(found | said, indent=1) + "\n")

    return record


@pytest.fixture(scope="session")
def alertmanager_command(peer):
    """Gives a real Alertmanager's command line, from a configuration file, a folder for its data and an address."""

    def command(config, storage, address):
        return (
            *_with_templates(),
            peer("prometheus-alertmanager"),
            f"--config.file={config}",
            f"--storage.path={storage}",
            f"--web.listen-address={address}",
            "--cluster.listen-address=",
        )

    return command


def _with_templates():
    """What to put before Debian's Alertmanager where only its binary was fetched: it does not start without its
    templates at their fixed place, so it gets a mount namespace in which they exist.
    """
    folder = Path("/usr/share/prometheus/alertmanager")
    if (folder / "default.tmpl").exists():
        return ()
    script = f"mount -t tmpfs none /usr/share && mkdir -p {folder} && cd {folder} && : > default.tmpl && : > email.tmpl"
    inside = ("unshare", "--map-root-user", "--mount", "sh", "-c", script + ' && cd / && exec "$@"', "sh")
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"{folder}/default.tmpl is missing and no mount namespace can be made to hold it")
    return inside


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory):
    """Gives the path of a stand-in for libnvidia-ml.so.1; `without`: functions an older driver does not have."""
    import fakenvml

    if fakenvml.compiler() is None:
        pytest.skip("no C compiler to build the stand-in for libnvidia-ml.so.1 with")
    made = {}

    def library(*without):
        if without not in made:
            made[without] = fakenvml.build(tmp_path_factory.mktemp("nvml"), without)
        return made[without]

    return library

"""The process collector, on a committed /proc tree and on the real one."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sidecar.collectors.process import ProcessCollector, ProcessSettings
from sidecar.errors import CollectError
from sidecar.hooks import Collector
from sidecar.model import Availability
from sidecar.plugins import COLLECTORS, Registry

TREE = Path(__file__).parent / "proc"
TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")

# Asked by a process that gave up root: the reason of the probe, then each command whose descriptors are known.
ASK = """
import os, sys
from sidecar.collectors.process import CollectError, ProcessCollector, ProcessSettings
os.setgid(65534)
os.setuid(65534)
collector = ProcessCollector(ProcessSettings(proc_root=sys.argv[1]))
print(collector.probe().reason)
try:
    for sample in collector.sample(0):
        if sample.metric == "spikewatch_command_open_fds":
            print(dict(sample.labels)["command"])
except CollectError as e:
    print(e.reason)
"""


@pytest.fixture
def tree(tmp_path):
    """A copy of the committed tree, to be changed."""
    return Path(shutil.copytree(TREE, tmp_path / "proc", symlinks=True))


def collector(root, **settings):
    return ProcessCollector(ProcessSettings(proc_root=root, **settings))


def read(made, metric, **labels):
    found = {s.labels: s.value for s in made.sample(0) if s.metric == f"spikewatch_{metric}"}
    return found.get(tuple(sorted(labels.items())))


def rewrite_stat(root, pid, field, value):
    """Sets one field of stat, numbered as in proc(5)."""
    path = root / str(pid) / "stat"
    head, _, rest = path.read_text().rpartition(")")
    words = rest.split()
    words[field - 3] = str(value)
    path.write_text(f"{head}) {' '.join(words)}\n")


def test_it_fulfils_the_contract_and_registers():
    registry = Registry()
    registry.register(COLLECTORS, ProcessCollector)
    assert isinstance(collector(TREE), Collector)


def test_everything_it_emits_is_in_its_catalogue_with_the_labels_said_there():
    catalogue = {info.name: set(info.labels) for info in ProcessCollector.metrics}
    emitted = {s.metric: {name for name, _ in s.labels} for s in collector(TREE).sample(0)}
    assert emitted == catalogue


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("process_cpu_seconds_total", 400 / TICKS),
        ("process_resident_memory_bytes", 15000 * PAGE),
        ("process_threads", 4),
        ("process_open_fds", 7),
        ("process_voluntary_context_switches_total", 1234),
        ("process_start_time_seconds", 1_700_000_000 + 5000 / TICKS),
    ],
)
def test_the_sidecar_itself_is_the_process_that_proc_calls_self(metric, value):
    assert read(collector(TREE), metric) == value


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("command_processes", 2),
        ("command_cpu_seconds_total", 3800 / TICKS),
        ("command_resident_memory_bytes", 150000 * PAGE),
        ("command_threads", 4),
        ("command_open_fds", 10),
    ],
)
def test_the_processes_of_a_command_are_summed(metric, value):
    assert read(collector(TREE), metric, command="pt_data_worker", role="pod") == value


def test_children_of_the_sidecar_count_as_sidecar_and_everybody_else_as_pod():
    made = collector(TREE)
    assert read(made, "command_processes", command="python", role="sidecar") == 2
    assert read(made, "command_processes", command="pt_main_thread", role="pod") == 1


def test_a_command_with_parentheses_and_spaces_is_read_whole():
    assert read(collector(TREE), "command_processes", command="my (odd) job", role="pod") == 1


def test_kernel_threads_are_left_out():
    assert read(collector(TREE), "command_processes", command="kthreadd", role="pod") is None


def test_a_zombie_counts_as_no_process():
    assert read(collector(TREE), "command_processes", command="sh", role="pod") == 0


def test_the_cpu_of_a_process_that_exited_stays_in_its_commands_total(tree):
    made = collector(tree)
    before = read(made, "command_cpu_seconds_total", command="pt_data_worker", role="pod")
    shutil.rmtree(tree / "72")
    rewrite_stat(tree, 71, 14, 2100)
    after = read(made, "command_cpu_seconds_total", command="pt_data_worker", role="pod")
    assert after == before + 100 / TICKS
    assert read(made, "command_processes", command="pt_data_worker", role="pod") == 1


def test_a_pid_that_is_used_again_starts_from_zero(tree):
    made = collector(tree)
    before = read(made, "command_cpu_seconds_total", command="pt_data_worker", role="pod")
    rewrite_stat(tree, 72, 14, 30)
    rewrite_stat(tree, 72, 15, 20)
    rewrite_stat(tree, 72, 22, 9999)
    after = read(made, "command_cpu_seconds_total", command="pt_data_worker", role="pod")
    assert after == before + 50 / TICKS


def test_commands_beyond_the_limit_are_summed_as_other():
    made = collector(TREE, max_commands=2)
    commands = {dict(s.labels)["command"] for s in made.sample(0) if ("role", "pod") in s.labels}
    assert len(commands) == 3
    assert "other" in commands


def test_a_command_that_is_gone_makes_room_for_a_new_one(tree):
    made = collector(tree, max_commands=5)
    assert read(made, "command_processes", command="pause", role="pod") == 1
    shutil.rmtree(tree / "90")
    for pid in (71, 72):
        path = tree / str(pid) / "stat"
        path.write_text(path.read_text().replace("pt_data_worker", "renamed"))
    assert read(made, "command_processes", command="renamed", role="pod") == 2
    assert read(made, "command_processes", command="my (odd) job", role="pod") is None


def test_a_process_that_ends_while_it_is_read_is_left_out(tree):
    (tree / "71" / "stat").unlink()
    (tree / "72" / "stat").write_text("72 (cut")
    assert read(collector(tree), "command_processes", command="pt_data_worker", role="pod") is None


def test_the_whole_tree_is_available():
    assert collector(TREE).probe().state is Availability.AVAILABLE


@pytest.mark.parametrize(("keep", "reason"), [({41, 57}, "only_own_processes_visible"), ({70}, "self_not_visible")])
def test_a_tree_that_hides_processes_is_degraded(tree, keep, reason):
    for folder in tree.iterdir():
        if folder.name.isdigit() and int(folder.name) not in keep:
            shutil.rmtree(folder)
    status = collector(tree).probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, reason)
    assert list(collector(tree).sample(0)), "what is visible is still reported"


def test_no_proc_at_all_is_unavailable(tmp_path):
    made = collector(tmp_path / "none")
    assert (made.probe().state, made.probe().reason) == (Availability.UNAVAILABLE, "no_proc")
    with pytest.raises(CollectError) as caught:
        list(made.sample(0))
    assert caught.value.reason == "proc_unreadable"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not look")
@pytest.mark.parametrize(("locked", "reason"), [("70/fd", "descriptors_denied"), (".", "proc_denied")])
def test_what_another_user_may_not_read_is_said_and_absent(tree, locked, reason):
    (tree / locked).chmod(0o700)
    top = Path(tempfile.gettempdir())
    for parent in tree.parents:  # pytest's own folders are closed to others, at any depth
        if parent != top and parent.is_relative_to(top):
            parent.chmod(0o755)
    ask = [sys.executable, "-c", ASK, str(tree)]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    probed, *commands = done.stdout.splitlines()
    assert probed == reason
    if locked == ".":
        assert commands == ["proc_unreadable"]
    else:
        assert "pt_data_worker" in commands
        assert "pt_main_thread" not in commands


def test_the_real_proc_shows_this_process():
    made = collector(Path("/proc"))
    child = subprocess.Popen(["sleep", "30"])
    try:
        assert made.probe().state in (Availability.AVAILABLE, Availability.DEGRADED)
        assert read(made, "process_resident_memory_bytes") > 5_000_000
        assert read(made, "process_open_fds") >= 3
        assert read(made, "command_processes", command="sleep", role="sidecar") == 1
        first = read(made, "process_cpu_seconds_total")
        while read(made, "process_cpu_seconds_total") == first:
            pass  # reading itself spends CPU: the counter moves within a tick or two
    finally:
        child.kill()
        child.wait()

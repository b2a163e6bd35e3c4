"""A sidecar without a GPU learns from the trainer's process what its GPUs do; the file between them is not believed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spikewatch.asked
import spikewatch.gpus
from sidecar.collectors import trainerfile
from sidecar.collectors.nvml import viatrainer, wire
from sidecar.collectors.nvml.collector import NvmlCollector, NvmlSettings
from sidecar.collectors.nvml.viatrainer import TrainerGpus
from sidecar.errors import CollectError
from sidecar.model import Availability

ROOT = Path(spikewatch.gpus.__file__).parents[1]

CLIENT = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from spikewatch.gpus import GpuWatch
stop = threading.Event()
watch = GpuWatch(sys.argv[3], stop, sys.argv[2], every=0.15)
threading.Thread(target=watch.run, daemon=True).start()
print("started", flush=True)
sys.stdin.read()
stop.set()
print(watch.errors, flush=True)
"""


class Pod:
    """A sidecar's collector on a machine without a GPU, and a trainer's process that has two."""

    def __init__(self, tmp_path, library, scenario):
        self.run_dir = tmp_path / "run"
        self.run_dir.mkdir(mode=0o700)
        self.folder = self.run_dir / "gpus"
        self.scenario, self._library = scenario, library
        dev = tmp_path / "dev"
        dev.mkdir()
        self.collector = NvmlCollector(NvmlSettings(dev_root=dev, run_dir=self.run_dir))
        self.trainer = None

    def attach(self):
        command = [sys.executable, "-I", "-S", "-c", CLIENT, str(ROOT), str(self._library), str(self.folder)]
        environ = {**os.environ, **self.scenario.environment}
        pipe = subprocess.PIPE
        self.trainer = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environ)
        assert self.trainer.stdout.readline() == "started\n"

    def detach(self):
        """Ends the trainer; gives how many errors its thread counted."""
        out, _ = self.trainer.communicate("", timeout=20)
        assert self.trainer.returncode == 0
        self.trainer = None
        return int(out)

    def until(self, wanted):
        end = time.monotonic() + 25
        while True:
            status, values = self.collector.probe(), {}
            if status.state is Availability.DEGRADED:
                samples = list(self.collector.sample(0))
                values = {
                    (s.metric.removeprefix("spikewatch_gpu_"), dict(s.labels).get("index")): s.value for s in samples
                }
            if wanted(status, values):
                return values
            assert time.monotonic() < end, (status, values)
            time.sleep(0.05)


@pytest.fixture
def pod(nvml_library, tmp_path):
    import fakenvml

    made = Pod(tmp_path, nvml_library(), fakenvml.Scenario(tmp_path / "scenario", 2))
    yield made
    if made.trainer is not None:
        made.trainer.kill()
        made.trainer.communicate(timeout=20)
    made.collector.close()


def test_the_trainers_process_is_asked_and_what_it_sees_becomes_the_pods_gpus(pod):
    assert pod.collector.probe().reason == "no_device"
    assert pod.folder.is_dir(), "which asks the trainer"
    pod.attach()
    values = pod.until(lambda status, v: ("sm_active_ratio", "1") in v)
    assert pod.collector.probe().reason == "seen_through_trainer"
    assert values["memory_used_bytes", "0"] == 40e9
    assert values["memory_used_ratio", "0"] == pytest.approx(40 / 79.5)
    assert values["busy_ratio", "1"] == 0.9
    assert values["sm_active_ratio", "1"] == pytest.approx(0.8)
    assert values["power_watts", "0"] == pytest.approx(600)
    assert values["up", "0"] == 1
    assert not [name for name, _ in values if name == "xid_errors_total"]
    assert pod.detach() == 0


def test_nobody_asked_means_no_call_into_the_driver(pod):
    pod.scenario.set({"fail.nvmlInitWithFlags": 999})
    pod.attach()
    time.sleep(0.6)
    assert pod.detach() == 0
    assert not pod.folder.exists()


def test_a_trainer_whose_driver_fails_goes_on_counts_and_gives_up(pod):
    pod.scenario.set({"fail.nvmlInitWithFlags": 999})
    pod.collector.probe()
    pod.attach()
    time.sleep(1.5)
    assert pod.collector.probe().reason == "no_device"
    assert pod.detach() == spikewatch.gpus.MOST_FAILURES


def test_what_a_gpu_of_the_trainer_does_not_have_is_left_out(pod):
    pod.scenario.set({"gpm_supported": 0, "fielderr.186": 3, "gpu1.fail.nvmlDeviceGetMemoryInfo_v2": 4})
    pod.collector.probe()
    pod.attach()
    values = pod.until(lambda status, v: ("busy_ratio", "0") in v)
    assert ("memory_used_bytes", "1") not in values
    assert not [name for name, _ in values if name in ("power_watts", "sm_active_ratio")]


def test_a_trainer_that_ends_is_no_gpu_that_stands_still(pod):
    pod.collector.probe()
    pod.attach()
    pod.until(lambda status, v: ("busy_ratio", "0") in v)
    pod.detach()
    file = pod.folder / viatrainer.FILE
    os.utime(file, (time.time() - 60, time.time() - 60))
    with pytest.raises(CollectError) as caught:
        pod.collector.sample(0)
    assert caught.value.reason == "trainer_silent"
    assert pod.collector.probe().reason == "no_device"


def test_a_question_that_nobody_repeats_is_over(pod):
    pod.collector.probe()
    asked = pod.folder / trainerfile.ASKED
    os.utime(asked, (time.time() - 300, time.time() - 300))
    pod.attach()
    time.sleep(0.5)
    assert not (pod.folder / viatrainer.FILE).exists()
    pod.collector.probe()  # as every minute
    pod.until(lambda status, v: ("busy_ratio", "0") in v)


def test_a_sidecar_that_ends_takes_the_question_back(pod):
    pod.collector.probe()
    pod.attach()
    pod.until(lambda status, v: ("busy_ratio", "0") in v)
    pod.collector.close()
    time.sleep(0.3)
    assert not (pod.folder / viatrainer.FILE).exists()
    pod.detach()


def test_only_one_rank_of_a_pod_reads_and_only_where_there_is_a_device(tmp_path):
    import threading

    stop = threading.Event()
    before = threading.active_count()
    assert not spikewatch.gpus.watch(str(tmp_path), stop, local_rank=1, devices=["/dev/null"])
    assert not spikewatch.gpus.watch(str(tmp_path), stop, local_rank=0, devices=["/nowhere"])
    assert threading.active_count() == before
    assert spikewatch.gpus.watch(str(tmp_path / "nobody-asks"), stop, local_rank=0, devices=["/dev/null"])
    (thread,) = [t for t in threading.enumerate() if t.name == spikewatch.gpus.THREAD_NAME]
    stop.set()
    thread.join(20)
    assert not thread.is_alive()


def test_both_ends_agree_on_the_file_and_on_what_is_read():
    assert spikewatch.gpus.FILE == viatrainer.FILE
    assert spikewatch.asked.ASKED == trainerfile.ASKED
    assert spikewatch.gpus.GPM == wire.GPM


GOOD = {"gpu": "GPU-a", "index": "0", "name": "H100", "values": {"mem.used": 1, "util.gpu": 50}, "codes": {"gpm": 3}}


def told(tmp_path, content, *, name=viatrainer.FILE):
    folder = tmp_path / "run" / "gpus"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return TrainerGpus(folder, time.time)


def test_a_good_file_is_a_report(tmp_path):
    (gpu,) = told(tmp_path, {"driver": "570", "gpus": [GOOD]}).report()["gpus"]
    assert gpu["values"] == {"mem.used": 1.0, "util.gpu": 50.0}
    assert gpu["codes"]["gpm"] == 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        [],
        {"gpus": {}},
        {"gpus": [None, 5, "x"]},
        {"gpus": [{**GOOD, "gpu": "../../etc"}]},
        {"gpus": [{**GOOD, "index": "-1"}]},
        {"gpus": [{**GOOD, "index": 0}]},
        {"gpus": [GOOD] * 65},
        b" " * (300 << 10),
    ],
    ids=range(11),
)
def test_a_strange_file_is_no_report(tmp_path, content):
    assert told(tmp_path, content).report() is None


def test_a_link_or_a_pipe_is_not_followed(tmp_path):
    file = told(tmp_path, {"gpus": [GOOD]}, name="elsewhere")
    place = tmp_path / "run" / "gpus" / viatrainer.FILE
    place.symlink_to("elsewhere")
    assert file.report() is None
    place.unlink()
    os.mkfifo(place)
    assert file.report() is None


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers(-(10**30), 10**30) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["mem.used", "g2", "x y"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), json_values, max_size=5))
def test_whatever_stands_in_the_file_gives_numbers_or_nothing(changes):
    found = viatrainer._gpu({**GOOD, **changes})
    if found is not None:
        assert all(isinstance(v, float) for v in found["values"].values())
        assert all(isinstance(v, int) for v in found["codes"].values())


def test_who_found_the_folder_there_leaves_it_there(tmp_path):
    (tmp_path / "run").mkdir(mode=0o750)
    first, second = (TrainerGpus(tmp_path / "run" / "gpus", time.time) for _ in range(2))
    first.ask()
    second.ask()
    second.stop()
    assert (tmp_path / "run" / "gpus").stat().st_mode & 0o777 == 0o770, "the socket's group may write here"
    first.stop()
    assert not (tmp_path / "run" / "gpus").exists()
    first.stop()
    second.ask()
    assert (tmp_path / "run" / "gpus").exists(), "asked again where somebody took it away"

"""Changes in the curves of the real trackers, where they are installed: TensorBoard, W&B offline, MLflow on disk.

`pip install spikewatch[trackers]` brings them; without one of them its test is skipped.
"""

import sys
import threading
from types import SimpleNamespace

import pytest

from spikewatch.notes import Note
from spikewatch.trackers import THREAD_NAME, WAITING, Trackers

NOTE = Note(12, 1_700_000_000.0, "c1", "applied", "", {"num_workers": 4, "precision": "bf16"}, {"num_workers": 2})


@pytest.fixture
def trackers(monkeypatch):
    for name in ("wandb", "mlflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)  # another test may have loaded it
    made = Trackers()
    yield made
    made.finish(20)
    assert not [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


class Writer:
    """A writer that waits until it is told to go on."""

    def __init__(self):
        self.go, self.texts = threading.Event(), []

    def add_scalar(self, *_):
        self.go.wait(20)

    def add_text(self, tag, text, step):
        self.texts.append((tag, text, step))


def test_with_no_tracker_loaded_nothing_is_started(trackers):
    trackers.tell(NOTE)
    assert trackers._thread is None


def test_a_writer_that_hangs_holds_nobody_up_and_what_it_misses_is_counted(trackers):
    writer = Writer()
    trackers.add(writer)
    for _ in range(WAITING + 50):
        trackers.tell(NOTE)  # returns at once
    assert trackers.dropped >= 49
    writer.go.set()
    trackers.finish(20)
    assert len(writer.texts) + trackers.dropped == WAITING + 50


def test_a_writer_that_raises_is_counted_and_the_others_are_told(trackers, caplog):
    writer = Writer()
    writer.go.set()
    trackers.add(SimpleNamespace())
    trackers.add(writer)
    trackers.tell(NOTE)
    trackers.finish(20)
    assert trackers.failed == 1
    assert writer.texts == [("spikewatch/changes", NOTE.text(), 12)]
    assert "could not be written to an experiment tracker" in caplog.text


@pytest.mark.torch
def test_tensorboard_shows_the_change_at_its_step(trackers, tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install spikewatch[trackers]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        trackers.add(writer)
        trackers.tell(NOTE)
        trackers.finish(20)
    found = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in found.Scalars("spikewatch/num_workers")] == [(12, 4.0)]
    (text,) = found.Tensors("spikewatch/changes/text_summary")
    assert text.tensor_proto.string_val[0].decode() == NOTE.text()
    assert trackers.failed == 0


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore")
def test_wandb_shows_the_change_without_moving_the_scripts_own_steps(trackers, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="needs wandb: pip install spikewatch[trackers]")
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with wandb.init(mode="offline", dir=str(tmp_path), project="p") as run:
        run.log({"loss": 1.0})
        trackers.tell(NOTE)
        trackers.finish(60)
        assert run.step == 1  # as without us
        run.log({"loss": 0.5})
        summary = dict(run.summary)
    wandb.teardown()  # its service is a process of its own
    assert trackers.failed == 0
    assert (summary["loss"], summary["spikewatch/num_workers"]) == (0.5, 4.0)
    assert summary["spikewatch/changes"] == NOTE.text()


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore")
def test_mlflow_shows_the_change_in_the_run_of_the_training_thread(trackers, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow: pip install spikewatch[trackers]")
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    mlflow.set_experiment("trackers")
    with mlflow.start_run() as active:
        trackers.tell(NOTE)
        trackers.finish(60)
    assert trackers.failed == 0
    client = mlflow.MlflowClient()
    (metric,) = client.get_metric_history(active.info.run_id, "spikewatch/num_workers")
    assert (metric.step, metric.value) == (12, 4.0)
    assert client.get_run(active.info.run_id).data.tags["spikewatch.change.c1"] == NOTE.text()

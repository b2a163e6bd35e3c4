"""Changes go into the checkpoint: what was changed, when, from what to what, and that it was undone."""

import json
import pickle

import pytest

import spikewatch
from spikewatch import notes
from spikewatch.notes import Notes


def report(change_id, state, values, found, step=7, by=""):
    return {"id": change_id, "state": state, "values": values, "found": found, "step": step, "by": by}


def test_an_applied_change_is_noted_once_with_the_values_before_and_after():
    kept = Notes()
    applied = report("c1", "applied", {"num_workers": 4}, {"num_workers": 2})
    assert kept.look([report("c1", "pending", {"num_workers": 4}, {})], 6, 100.0) == []
    (note,) = kept.look([applied], 7, 101.0)
    assert (note.step, note.time, note.event) == (7, 101.0, "applied")
    assert (note.before, note.values) == ({"num_workers": 2}, {"num_workers": 4})
    assert kept.look([applied], 8, 102.0) == []
    assert kept.look([{**applied, "state": "kept"}], 9, 103.0) == []
    assert note.text() == "spikewatch applied at step 7: num_workers 2 → 4 (change c1)"


def test_an_undone_change_is_noted_as_the_way_back():
    kept = Notes()
    kept.look([report("c1", "applied", {"lr_factor": 0.5}, {"lr_factor": 1.0})], 7, 1.0)
    (note,) = kept.look([report("c1", "reverted", {"lr_factor": 0.5}, {"lr_factor": 1.0}, 9, "lease")], 9, 2.0)
    assert (note.event, note.by, note.values) == ("reverted", "lease", {"lr_factor": 1.0})


def test_a_change_that_was_never_carried_out_leaves_no_note():
    kept = Notes()
    for state in ("refused", "reverted"):
        assert kept.look([report("c1", state, {"num_workers": 4}, {})], 7, 1.0) == []


def test_notes_go_through_a_checkpoint_and_stand_before_those_of_the_new_run():
    first, second = Notes(), Notes()
    first.look([report("a", "applied", {"num_workers": 4}, {"num_workers": 2})], 7, 1.0)
    second.look([report("b", "applied", {"num_workers": 8}, {"num_workers": 4})], 3, 2.0)
    for state in (json.loads(json.dumps(first.state_dict())), pickle.loads(pickle.dumps(first.state_dict()))):
        again = Notes()
        again.load_state_dict(state)
        assert again.state_dict() == first.state_dict()
    second.load_state_dict(first.state_dict())
    assert [entry["change"] for entry in second.state_dict()["changes"]] == ["a", "b"]


@pytest.mark.parametrize(
    "state", [None, 5, {}, {"version": 2, "changes": [1]}, {"version": 1, "changes": [{"what": 1}, "x", None]}]
)
def test_a_state_that_cannot_be_read_is_left_out(state):
    kept = Notes()
    kept.load_state_dict(state)
    assert kept.state_dict() == {"version": 1, "changes": []}


def test_notes_and_what_is_remembered_of_changes_are_bounded():
    kept = Notes()
    for n in range(notes.MOST + 50):
        kept.look([report(str(n), "applied", {"a": n}, {"a": n - 1})], n, 0.0)
    changes = kept.state_dict()["changes"]
    assert len(changes) == notes.MOST
    assert changes[-1]["change"] == str(notes.MOST + 49)
    assert len(kept._states) <= notes._REMEMBERED


@pytest.mark.torch
def test_a_change_of_a_real_run_and_its_end_are_in_the_runs_state(order, indices):
    from torch.utils.data import DataLoader

    run = spikewatch.attach(loader=DataLoader(indices(400), batch_size=2, num_workers=1))
    assert run.state_dict()["changes"] == []
    for number, _ in enumerate(run.loader):
        if number == 5:
            change = order(run, prefetch_factor=4)
        if number == 10:
            run._parts.ledger.revert(change)
        run.step()
        if number == 15:
            break
    run.close()
    changes = run.state_dict()["changes"]
    assert [(c["event"], c["values"], c["step"]) for c in changes] == [
        ("applied", {"prefetch_factor": 4}, 6),
        ("reverted", {"prefetch_factor": 2}, 11),
    ]

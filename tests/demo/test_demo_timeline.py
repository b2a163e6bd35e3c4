"""What the person at the terminal sees."""

from __future__ import annotations

import io

import pytest
from click.testing import CliRunner
from rich.console import Console

from sidecar.cli.demo import demo
from sidecar.cli.demo.command import summary
from sidecar.cli.demo.launch import Options
from sidecar.cli.demo.orchestrate import Result
from sidecar.cli.demo.report import Report
from sidecar.cli.demo.timeline import Frame, LiveTimeline, PlainTimeline, sparkline
from sidecar.cli.demo.traininglog import Accounting


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=110, height=40, force_terminal=True, color_system=None)


def test_without_a_terminal_every_event_is_one_line_and_frames_are_left_out(console):
    """Also a line that holds what rich would take for markup."""
    with PlainTimeline(console) as timeline:
        timeline.frame(Frame(1, "starting"))
        timeline.event(12.34, "planned [red] " + "x" * 150)
    assert console.file.getvalue() == "  12.3 s  planned [red] " + "x" * 150 + "\n"


def test_the_live_picture_holds_throughput_wait_alert_settings_progress_and_events(console):
    """One frame with everything known."""
    knobs = {"num_workers": 4, "prefetch_factor": 2}
    with LiveTimeline(console, "A title") as timeline:
        timeline.event(1.0, "training runs")
        timeline.frame(Frame(30.0, "measuring", 123.4, 0.58, "firing", knobs, (20.0, 60.0)))
    shown = console.file.getvalue()
    for part in ("A title", "123.4 samples/s", "58% of step time", "firing", "num_workers=4", "measuring 20/60 s"):
        assert part in shown
    assert "training runs" in shown


def test_what_is_not_known_is_a_dash_and_not_a_zero(console):
    """Before the first step there is neither a rate nor a wait."""
    with LiveTimeline(console, "A title") as timeline:
        timeline.frame(Frame(1.0, "starting"))
    assert "samples/s" not in console.file.getvalue()
    assert "0%" not in console.file.getvalue()
    assert "–" in console.file.getvalue()


def test_a_curve_reaches_from_the_bottom_at_zero_to_the_top_at_its_largest():
    """A run of zeros is flat, not a division by zero."""
    assert sparkline([0, 50, 100]) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


def ended(differences, **changes):
    report = {
        "scenario": "data-starvation", "samples_per_s_before": 50.0, "samples_per_s_after": 100.0,
        "samples_per_s_best": 105.0, "detection_s": 3.5, "verdict": "helped", "rolled_back": False,
        "knobs_before": {"num_workers": 2}, "knobs_after": {"num_workers": 4}, "samples_lost": 0,
        "samples_repeated": 0,
    }  # fmt: skip
    return lambda path: Result(Report(**{**report, **changes}), Accounting(consumed=9000), differences, path)


def test_the_summary_says_verdict_gain_money_and_where_the_journal_is(console, tmp_path):
    """Half of what two GPUs cost was waiting."""
    summary(console, ended([])(tmp_path), Options(nproc=2, usd_per_gpu_hour=3.0))
    shown = console.file.getvalue()
    for part in (
        "50.0 samples/s", "100.0 samples/s (+50.0)", "105.0 samples/s", "3.5 s", "helped, kept: num_workers 2 → 4",
        "9000 used, 0 lost, 0 repeated", "3.00 $/h no longer wasted", "an assumed 3.00 $/h a GPU",
        str(tmp_path / "state" / "state.db"), "It ended as it should.",
    ):  # fmt: skip
        assert part in shown


def test_a_change_that_was_undone_is_not_counted_as_money_saved(console, tmp_path):
    """It is told what it would have cost."""
    undone = ended([], samples_per_s_after=25.0, verdict="did not help", rolled_back=True)
    summary(console, undone(tmp_path), Options(usd_per_gpu_hour=2.0))
    assert "would have wasted 1.00 $/h" in console.file.getvalue()
    assert "did not help, rolled back" in console.file.getvalue()


def test_everything_that_differs_is_listed_and_what_was_not_measured_is_said(console, tmp_path):
    """And the good ending is not claimed."""
    broken = ended(["verdict 'none', expected 'helped'"], samples_per_s_after=None, detection_s=None, verdict="")
    summary(console, broken(tmp_path), Options())
    shown = console.file.getvalue()
    assert "It did not end as it should" in shown
    assert "verdict 'none', expected 'helped'" in shown
    assert "not measured" in shown
    assert "It ended as it should." not in shown


@pytest.mark.parametrize(("load", "said"), [(30.0, True), (3.0, False)])
def test_other_work_on_the_machine_is_named_as_what_may_have_spoilt_it(console, tmp_path, monkeypatch, load, said):
    monkeypatch.setattr("sidecar.cli.demo.command.os.getloadavg", lambda: (load, load, load))
    monkeypatch.setattr("sidecar.cli.demo.command.os.sched_getaffinity", lambda pid: {0, 1})
    summary(console, ended(["verdict 'none', expected 'helped'"], verdict="")(tmp_path), Options())
    assert ("load 30 on 2 cores" in console.file.getvalue()) is said


@pytest.mark.parametrize("option", ["--json", "--picture"])
def test_a_file_that_could_not_be_written_at_the_end_is_refused_at_the_start(tmp_path, option):
    result = CliRunner().invoke(demo, [option, str(tmp_path / "none" / "file")])
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': there is no folder {tmp_path / 'none'}" in result.output

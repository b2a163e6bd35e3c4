"""Kills for memory are counted where a control group counts them, and unknown where none does."""

from __future__ import annotations

import pytest

from sidecar.collectors.cgroup import OomKills


def machine(tmp_path, group, files):
    proc = tmp_path / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(group)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"cgroup_root": tmp_path / "cgroup", "proc_root": tmp_path / "proc"}


EVENTS = "low 0\nhigh 0\nmax 7\noom 4\noom_kill {}\noom_group_kill 0\n"


@pytest.mark.parametrize(
    ("group", "files", "kills"),
    [
        ("0::/\n", {"memory.events": EVENTS.format(3)}, 3),
        ("0::/pod/c1\n", {"pod/c1/memory.events": EVENTS.format(1), "pod/memory.events": EVENTS.format(5)}, 5),
        ("0::/pod/c1\n", {"pod/c1/memory.events": EVENTS.format(0)}, 0),
        ("4:memory:/c1\n", {"memory/c1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"}, 2),
        ("4:memory:/c1\n", {"memory/c1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"}, None),
        ("0::/\n", {"memory.events": "oom_kill many\n"}, None),
        ("0::/\n", {}, None),
    ],
    ids=["v2", "the outermost group", "none yet", "v1", "an old v1", "nonsense", "nothing"],
)
def test_kills_are_those_of_the_outermost_group_that_counts_them(tmp_path, group, files, kills):
    assert OomKills(**machine(tmp_path, group, files))() == kills


def test_kills_are_read_anew_each_time_and_looked_for_elsewhere_once_their_file_is_gone(tmp_path):
    inner, outer = "pod/c1/memory.events", "pod/memory.events"
    kills = OomKills(**machine(tmp_path, "0::/pod/c1\n", {inner: EVENTS.format(1), outer: EVENTS.format(5)}))
    assert kills() == 5
    (tmp_path / "cgroup" / outer).write_text(EVENTS.format(6))
    assert kills() == 6
    (tmp_path / "cgroup" / outer).unlink()
    assert kills() == 1
    (tmp_path / "cgroup" / inner).unlink()
    assert kills() is None

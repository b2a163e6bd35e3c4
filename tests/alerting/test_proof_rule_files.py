"""Thousands of random rule files: none crashes or hangs the loader, and each gets promtool's verdict."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from random_rule_files import rule_files

from sidecar.alerting.loader import load_rules
from sidecar.errors import ConfigError

COUNT = 20_000
AT_A_TIME = 400


def read(path):
    """None when the file loads, else its problems: at least one, all of this file, on lines the file has."""
    try:
        load_rules([path])
    except ConfigError as e:
        problems = e.problems
    else:
        return None
    lines = len(re.split("\r\n|[\r\n\x85\u2028\u2029]", path.read_bytes().decode()))  # what YAML calls a line
    assert problems
    assert all(p.file == str(path) and 0 <= p.line <= lines + 1 and p.message for p in problems), problems
    return problems


def promtool_takes(promtool, paths):
    """One verdict a file, and the files whose YAML it cannot read."""
    found, unreadable = {}, set()
    for start in range(0, len(paths), AT_A_TIME):
        some = [str(path) for path in paths[start : start + AT_A_TIME]]
        run = subprocess.run(
            [promtool, "check", "rules", "--lint=none", *some],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
            check=False,
        )
        current = ""
        for line in run.stdout.splitlines():
            if line.startswith("Checking "):
                current = line.removeprefix("Checking ")
                found[current] = False
            elif "SUCCESS" in line:
                found[current] = True
        for line in run.stderr.splitlines():
            path, _, said = line.partition(": ")
            if said.startswith("yaml: ") and "unmarshal errors" not in said:
                unreadable.add(path)
    return [found[str(path)] for path in paths], {path for path in paths if str(path) in unreadable}


def written(folder, seed, count):
    paths = []
    for number, text in enumerate(itertools.islice(rule_files(seed), count)):
        path = folder / f"{number}.yaml"
        path.write_text(text, encoding="utf-8", newline="")
        paths.append(path)
    return paths


def differing(paths, problems, theirs, unreadable):
    """Files with another verdict than promtool's: for reasons that count, and where two YAML readers disagree."""
    odd = [i for i, (ours, taken) in enumerate(zip(problems, theirs, strict=True)) if (ours is None) != taken]
    grammar = [
        i
        for i in odd
        if (paths[i] in unreadable if problems[i] is None else problems[i][0].message.startswith("not valid YAML"))
    ]
    return [paths[i].read_text() for i in odd if i not in grammar], [paths[i].read_text() for i in grammar]


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_twenty_thousand_rule_files(tmp_path, record_proof):
    paths = written(tmp_path, 20_260_102, COUNT)
    problems, slowest = [], 0.0
    for path in paths:
        started = time.perf_counter()
        problems.append(read(path))
        slowest = max(slowest, time.perf_counter() - started)
    assert slowest < 5.0
    report = {"rule_files": COUNT, "accepted": problems.count(None), "slowest_s": round(slowest, 3)}
    if "SPIKEWATCH_PEERS" in os.environ:
        theirs, unreadable = promtool_takes(Path(os.environ["SPIKEWATCH_PEERS"]) / "bin" / "promtool", paths)
        differ, grammar = differing(paths, problems, theirs, unreadable)
        assert not differ, differ[:5]
        assert len(grammar) <= COUNT // 1000, grammar[:5]
        report |= {"verdicts_compared_with_promtool": COUNT, "the_two_yaml_readers_disagree": len(grammar)}
    record_proof("rule_files", report)


def test_some_hundred_rule_files(tmp_path, peer):
    paths = written(tmp_path, 5, 400)
    problems = [read(path) for path in paths]
    assert differing(paths, problems, *promtool_takes(peer("promtool"), paths)) == ([], [])
    assert 20 < problems.count(None) < 380, "both kinds are among them"

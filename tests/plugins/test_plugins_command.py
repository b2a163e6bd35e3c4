"""`spikewatch plugins`: what is there, what one does, and a start for one's own that works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli.plugins import plugins
from sidecar.plugins import installed

ROOT = Path(__file__).parents[2]


def run(*args):
    return CliRunner().invoke(plugins, [str(a) for a in args], catch_exceptions=False)


def test_every_installed_plugin_is_listed_with_its_state():
    result = run("list", "--json")
    assert result.exit_code == 0
    found = {(row["kind"], row["name"]): row for row in json.loads(result.stdout)}
    assert {name for _, name in found} == {name for _, name, _ in installed()}
    prefetch = found["remediation", "dataloader_prefetch"]
    assert (prefetch["state"], prefetch["package"]) == ("loaded", "spikewatch")
    assert prefetch["touches"] == ["num_workers", "prefetch_factor"]
    assert prefetch["what"].startswith("Feeds a starved trainer")


def test_the_list_for_people_names_every_plugin():
    result = run("list")
    assert all(name in result.stdout for _, name, _ in installed())


@pytest.fixture
def elsewhere(tmp_path):
    """Another package with a remediation, seen by a Python that starts now; gives a command in that Python."""
    (tmp_path / "other.py").write_text(
        "from remediations.precision_bf16 import PrecisionBf16\nclass Other(PrecisionBf16):\n    name = 'other'\n"
    )
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[spikewatch.remediations]\nother = other:Other\n")

    def command(*args):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        line = [sys.executable, "-m", "sidecar", "plugins", *map(str, args)]
        return subprocess.run(line, capture_output=True, text=True, env=environment, timeout=120, check=False)

    return command


def test_a_plugin_of_another_package_is_loaded_when_the_configuration_allows_it_and_only_then(elsewhere, tmp_path):
    states = []
    for settings in ("", "plugins: {allow: [other]}", "plugins: {allow: [other, lost]}"):
        config = tmp_path / "spikewatch.yaml"
        config.write_text(settings)
        result = elsewhere("list", "--json", "--config", config)
        rows = {row["name"]: row["state"] for row in json.loads(result.stdout)}
        states.append((rows["other"], rows["precision_bf16"], result.returncode))
    assert states == [("not allowed", "loaded", 0), ("loaded", "loaded", 0), ("loaded", "loaded", 1)]
    assert "lost: allowed, but no installed package brings a plugin of this name" in result.stderr


def test_a_remediation_is_described_with_parameters_permissions_and_cases_that_hold():
    result = run("describe", "loss_scale", "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 0
    assert told["knobs"] == ["loss_scale", "loss_scale_growth_interval"]
    assert told["permissions"]
    assert told["parameters"]["properties"]["floor"]["minimum"] == 1
    assert [case["holds"] for case in told["cases"]] == [True, True]


@pytest.mark.parametrize("name", [name for group, name, of in installed() if "remediations" in group])
def test_the_page_for_people_shows_everything_there_is(name):
    told = json.loads(run("describe", name, "--json").stdout)
    result = run("describe", name)
    page = " ".join(result.stdout.split())
    assert result.exit_code == 0
    for text in (*told["knobs"], *told["permissions"], *told["reads"].values(), *told["parameters"]["properties"]):
        assert text in page
    assert page.count("holds: ") == len(told["cases"])


def test_an_unknown_name_is_answered_with_the_known_ones():
    result = run("describe", "los_scale")
    assert result.exit_code == 1
    assert "no such remediation (there are: annotate_only, batch_size" in result.stderr


def test_a_wrong_configuration_is_told_with_its_place(tmp_path):
    config = tmp_path / "spikewatch.yaml"
    config.write_text("plugins: {allow: 3}")
    result = run("list", "--config", config)
    assert result.exit_code == 1
    assert f"{config}:1:18: error:" in result.stderr


def test_a_new_plugin_has_a_test_that_passes_and_code_that_needs_no_change(tmp_path):
    result = run("new", "shrink_it", "--into", tmp_path)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "spikewatch-shrink-it"
    assert sorted(p.name for p in folder.iterdir()) == ["pyproject.toml", "shrink_it.py", "test_shrink_it.py"]
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(folder)],
        capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False,
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout
    assert "67 passed" in tested.stdout
    config = ROOT / "pyproject.toml"
    ruff = [sys.executable, "-m", "ruff", "check", "--no-cache", "--config", str(config), "--ignore", "I", str(folder)]
    assert subprocess.run(ruff, capture_output=True, text=True, timeout=60, check=False).returncode == 0


def test_a_new_plugin_whose_plan_is_broken_fails_its_test(tmp_path):
    run("new", "shrink_it", "--into", tmp_path)
    folder = tmp_path / "spikewatch-shrink-it"
    plugin = folder / "shrink_it.py"
    plugin.write_text(plugin.read_text().replace("now // 2", "now * 2"))
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    assert subprocess.run(line, capture_output=True, cwd=tmp_path, timeout=120, check=False).returncode == 1


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("Shrink", "lower case"),
        ("2fast", "lower case"),
        ("class", "lower case"),
        ("loss_scale", "the name is taken by a plugin of spikewatch"),
        ("pytest", "there is a module of this name already"),
        ("json", "there is a module of this name already"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(tmp_path, name, complaint):
    result = run("new", name, "--into", tmp_path)
    assert result.exit_code == 1
    assert complaint in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_already_is_not_overwritten(tmp_path):
    run("new", "shrink_it", "--into", tmp_path)
    kept = tmp_path / "spikewatch-shrink-it" / "shrink_it.py"
    kept.write_text("mine")
    assert run("new", "shrink_it", "--into", tmp_path).exit_code == 1
    assert kept.read_text() == "mine"

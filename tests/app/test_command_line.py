"""The command line: exit codes, and nothing imported that a command does not need."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from sidecar import __version__
from sidecar.cli import _spikewatch


def invoke(*args):
    return CliRunner().invoke(_spikewatch, list(args), prog_name="spikewatch")


def imported(*args):
    """Modules that the command has loaded when it ends."""
    code = (
        "import sys\nfrom sidecar.cli import main\n"
        f"try:\n    main({list(args)!r})\nexcept SystemExit as e:\n    assert e.code == 0, e.code\n"
        "import json; print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("bogus",),
        ("--bogus",),
        ("check",),
        ("check", "--bogus", "x"),
        ("test",),
        ("test", "--face", "sad", "x"),
        ("run", "--bogus"),
        ("run", "--config", "/"),
        ("run", "extra"),
        ("version", "extra"),
        ("demo", "--bogus"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_how_it_goes(args):
    result = invoke(*args)
    assert result.exit_code == 2
    assert "Usage: spikewatch" in result.output


@pytest.mark.parametrize("args", [("-h",), ("check", "-h"), ("run", "--help"), ("test", "-h"), ("demo", "-h")])
def test_help_exits_with_0(args):
    result = invoke(*args)
    assert result.exit_code == 0
    assert "Usage: spikewatch" in result.output


def test_version_says_which():
    result = invoke("version")
    assert result.exit_code == 0
    assert result.output.startswith(f"spikewatch {__version__} (Python ")


def test_version_loads_neither_numbers_nor_an_http_stack():
    heavy = {"numpy", "starlette", "uvicorn", "httpx", "pydantic", "yaml", "promql_parser", "apscheduler", "torch"}
    assert imported("version") & heavy == set()


def test_a_wrong_configuration_ends_run_with_1_and_every_problem(tmp_path):
    path = tmp_path / "spikewatch.yaml"
    path.write_text("evaluation_interval: soon\nfoo: 1\nhttp: {listen: nowhere}\n")
    result = invoke("run", "--config", str(path))
    assert result.exit_code == 1
    assert {line.split(": ")[0].rpartition("/")[2] for line in result.stderr.splitlines()} == {
        "spikewatch.yaml:1:22",
        "spikewatch.yaml:2:1",
        "spikewatch.yaml:3:16",
    }


def test_a_missing_configuration_ends_run_with_1(tmp_path):
    result = invoke("run", "--config", str(tmp_path / "missing.yaml"))
    assert result.exit_code == 1
    assert "No such file" in result.stderr

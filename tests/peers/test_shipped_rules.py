"""promtool has no objection to any rule file we ship, and its verdict on their unit tests is ours."""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers

RULES = Path(__file__).parents[2] / "rules"


def names(pattern):
    found = sorted(str(path.relative_to(RULES)) for path in RULES.rglob(pattern))
    assert found, f"no {pattern} under {RULES}"
    return found


def promtool(peer, *arguments):
    return subprocess.run([peer("promtool"), *arguments], cwd=RULES, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", names("*.rules.yaml"))
def test_promtool_accepts_the_rule_file_and_every_lint_is_content(peer, name):
    done = promtool(peer, "check", "rules", "--lint=all", "--lint-fatal", name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", names("*.test.yaml"))
def test_the_rules_pass_their_unit_tests_in_promtool(peer, name):
    done = promtool(peer, "test", "rules", name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_does_refuse_a_rule_file_that_is_wrong(peer, tmp_path):
    """The tests above could not fail if this did not."""
    text = (RULES / "data_pipeline.rules.yaml").read_text()
    (tmp_path / "bad.rules.yaml").write_text(text.replace("rate(", "raet(", 1))
    assert promtool(peer, "check", "rules", str(tmp_path / "bad.rules.yaml")).returncode == 1

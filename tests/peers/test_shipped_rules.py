"""promtool has no objection to any rule file we ship, and its verdict on their unit tests is ours."""

import subprocess
from pathlib import Path

import pytest
import yaml

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


def those_that_show_something_new(tests):
    """Of a file's tests those in which an alert fires or stays silent for the first time.

    promtool takes a third of a second of a core for each, whatever is in it. All of them are played by our own runner
    in tests/rules, whose verdicts are promtool's (tests/alerting), and by promtool in the long proof.
    """
    seen, kept = set(), []
    for test in tests:
        shown = {(check["alertname"], bool(check["exp_alerts"])) for check in test.get("alert_rule_test", [])}
        if shown - seen or not shown:
            kept.append(test)
            seen |= shown
    return kept


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", names("*.test.yaml"))
def test_each_alert_fires_and_is_silent_in_promtool_where_the_unit_tests_say_so(peer, tmp_path, name):
    file = yaml.safe_load((RULES / name).read_text())
    file["rule_files"] = [str((RULES / name).parent / rules) for rules in file["rule_files"]]
    file["tests"] = those_that_show_something_new(file["tests"])
    (tmp_path / "some.test.yaml").write_text(yaml.safe_dump(file))
    done = promtool(peer, "test", "rules", str(tmp_path / "some.test.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.proof
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", names("*.test.yaml"))
def test_the_rules_pass_all_their_unit_tests_in_promtool(peer, name):
    done = promtool(peer, "test", "rules", name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_does_refuse_a_rule_file_that_is_wrong(peer, tmp_path):
    """The tests above could not fail if this did not."""
    text = (RULES / "data_pipeline.rules.yaml").read_text()
    (tmp_path / "bad.rules.yaml").write_text(text.replace("rate(", "raet(", 1))
    assert promtool(peer, "check", "rules", str(tmp_path / "bad.rules.yaml")).returncode == 1

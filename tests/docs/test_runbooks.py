"""Every shipped alert has a runbook, and what a runbook says about its alert is what the rule says."""

import re
import runpy
from pathlib import Path

import pytest

from sidecar import durations, promql
from sidecar.alerting.loader import load_rules
from sidecar.alerting.overrides import apply_overrides, load_overrides
from sidecar.app import records
from sidecar.app.files import runbook
from sidecar.app.rulepack import read_pack, shipped_files
from sidecar.cli import _COMMANDS
from sidecar.cli.rules_text import EVALUATED
from sidecar.plugins import Registry
from sidecar.responses.loader import load_responses
from sidecar.yamlfile import Document

ROOT = Path(__file__).parents[2]
BOOKS = {page.stem: page for page in sorted((ROOT / "docs" / "runbooks").glob("*.md")) if page.stem != "README"}
HEADINGS = ["Confirm by hand", "What is done, and what to do", "Tune", "False alarms"]


@pytest.fixture(scope="module")
def registry():
    found = Registry()
    found.discover()
    return found


@pytest.fixture(scope="module")
def pack(registry):
    responses = load_responses(Document.read(ROOT / "rules" / "responses.yaml"), registry.remediations).responses
    return read_pack(shipped_files(extra=True), responses)


@pytest.fixture(scope="module")
def alerts(pack):
    return {alert.rule.name: alert for alert in pack.alerts}


@pytest.fixture(scope="module")
def groups():
    return load_rules(shipped_files(extra=True)).groups


@pytest.fixture(scope="module")
def series(registry, pack):
    """Every name that may be asked for; those that alerts read and nobody exports are made by rules of one's own."""
    made = {metric for alert in pack.alerts for metric in alert.metrics}
    return {info.name for info in records.catalogue(registry)} | set(pack.recorded) | made | {"ALERTS"}


def shell(text):
    return "\n".join(re.findall(r"```sh\n(.*?)```", text, re.S))


def test_every_shipped_alert_has_its_runbook_and_every_runbook_its_alert(alerts):
    assert set(BOOKS) == set(alerts)


def test_the_list_of_runbooks_is_up_to_date():
    page = runpy.run_path(str(ROOT / "docs" / "generate.py"))["PAGES"]["runbooks/README.md"]
    assert (ROOT / "docs" / "runbooks" / "README.md").read_text() == page(), "run `make docs`"


def test_every_signal_has_one_page_that_tells_its_whole_story(pack):
    for signal in pack.signals():
        others = [BOOKS[a.rule.name].read_text() for a in signal.alerts]
        whole = [text for text in others if "More about the signal" not in text]
        assert len(whole) == 1, signal.name
        main = whole[0].splitlines()[0].removeprefix("# ")
        assert all(
            f"More about the signal: [{main}]({main}.md)" in " ".join(t.split()) for t in others if t not in whole
        )


@pytest.mark.parametrize("name", BOOKS)
def test_a_runbook_says_of_its_alert_what_the_rule_says(name, alerts):
    text, alert = BOOKS[name].read_text(), alerts[name]
    plain = " ".join(text.split())
    assert text.startswith(f"# {name}\n")
    place = EVALUATED[alert.at or "pod"]
    assert f"Signal `{alert.labels['signal']}`, {alert.labels['severity']}, evaluated {place}." in plain
    assert re.findall(r"^## (.+)$", text, re.M) == HEADINGS


@pytest.mark.parametrize("name", BOOKS)
def test_the_numbers_that_a_runbook_quotes_are_those_of_the_rule(name, alerts):
    fires = re.search(r"\*\*Fires when\*\*(.+?)\n\n", BOOKS[name].read_text(), re.S)[1]
    quoted = set(re.findall(r"`(\d[\w.]*)`", fires))
    rule = alerts[name].rule
    compared = set(re.findall(r"[<>]=? ([0-9.]+)", rule.expr)) - {"0"}
    held = {durations.text(rule.for_ms)} - {"0s"}
    assert compared | held <= quoted
    assert quoted <= compared | held | {t.value for t in alerts[name].thresholds}


@pytest.mark.parametrize("name", BOOKS)
def test_the_override_that_a_runbook_shows_can_be_used_and_changes_its_alert(name, groups):
    (block,) = re.findall(r"```yaml\n(.*?)```", BOOKS[name].read_text(), re.S)
    (override,) = load_overrides(Document("overrides.yaml", block), groups)
    assert override.alert == name
    (before,) = [rule for group in groups for rule in group.rules if rule.is_alert and rule.name == name]
    changed = next(
        (r for g in apply_overrides(groups, [override]) for r in g.rules if r.is_alert and r.name == name), None
    )
    assert changed != before
    if changed is not None and changed.expr != before.expr:
        program = promql.compile([changed.expr, before.expr])
        assert program.metrics(changed.expr) == program.metrics(before.expr), "the rule has changed since"


@pytest.mark.parametrize("name", BOOKS)
def test_what_a_runbook_asks_exists(name, series):
    commands = shell(BOOKS[name].read_text())
    assert commands
    for expr in re.findall(r"^spikewatch query '(.+?)'$", commands, re.M):
        assert promql.compile([expr]).metrics(expr) <= series, expr
    assert set(re.findall(r"^spikewatch ([\w-]+)", commands, re.M)) <= set(_COMMANDS)


@pytest.mark.parametrize("name", BOOKS)
def test_a_runbook_names_the_response_that_may_change_something(name, alerts):
    text = BOOKS[name].read_text()
    for response in alerts[name].responses:
        if response.remediation == "annotate_only":
            assert "note in the journal" in " ".join(text.split())
        else:
            assert f"`{response.name}`" in text


@pytest.mark.parametrize("name", BOOKS)
def test_every_link_of_a_runbook_leads_somewhere(name):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[\w-]*)?\)", BOOKS[name].read_text()):
        assert (BOOKS[name].parent / target).exists(), target


def test_the_sidecar_finds_the_page_that_an_alert_links_to_and_nothing_else():
    for name, page in BOOKS.items():
        assert runbook(name) == page.read_text()
    assert [runbook(name) for name in ("Other", "../cost", "..%2Fcost", "__init__", "", "TrainerStarvedOfData.md")] == [
        None
    ] * 6


def test_runbooks_are_short():
    assert max(len(page.read_text().splitlines()) for page in BOOKS.values()) <= 75

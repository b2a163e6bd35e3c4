"""The pages keep up with the program: what exists is documented, and what is documented exists."""

import re
import runpy
import statistics
from pathlib import Path

import pytest
import yaml

from sidecar.plugins import Registry

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
CODE = [
    p for room in ("spikewatch", "sidecar", "remediations", "examples", "bench") for p in (ROOT / room).rglob("*.py")
]


@pytest.fixture(scope="module")
def registry():
    found = Registry()
    found.discover()
    return found


@pytest.mark.parametrize("name", ["metrics.md", "rules.md"])
def test_a_page_that_comes_from_the_program_is_up_to_date(name):
    page = runpy.run_path(str(ROOT / "docs" / "generate.py"))["PAGES"][name]
    assert (ROOT / "docs" / name).read_text() == page(), "run `make docs`"


def test_every_remediation_has_a_section_with_each_of_its_parameters(registry):
    text = (ROOT / "docs" / "remediations.md").read_text()
    for name, plugin in registry.remediations.items():
        _, _, section = text.partition(f"## `{name}`")
        section = section.partition("\n## ")[0]
        rows = set(re.findall(r"^\| `(\w+)` \|", section, re.M))
        assert rows == set(plugin.params.model_fields), name


def test_every_decision_reason_is_explained():
    from sidecar.responses.episode import FINAL, PASSING

    table = (ROOT / "docs" / "responses.md").read_text().partition("## When a response does not act")[2]
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table, re.M))))
    assert (FINAL | PASSING) - {"acted"} == named


def test_every_kind_of_journal_entry_is_explained():
    from sidecar.responses.journal import KINDS

    table = (ROOT / "docs" / "journal.md").read_text()
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.M)) == KINDS


def test_every_reason_for_which_an_alertmanagers_alert_is_left_out_is_explained():
    source = (ROOT / "sidecar" / "responses" / "inbox.py").read_text()
    page = (ROOT / "docs" / "http-api.md").read_text().partition("## Alertmanager's webhook")[2]
    said = set(re.findall(r'(?:return None, |return )"(\w+)"', source))
    assert said == set(re.findall(r"^\| `(\w+)` \|", page.partition("\n## ")[0], re.M))


def test_every_shipped_response_only_suggests(registry):
    text = yaml.safe_load((ROOT / "rules" / "responses.yaml").read_text())
    assert {r["mode"] for r in text["responses"]} <= {"observe", "suggest"}


def test_the_table_of_shipped_responses_is_the_file():
    text = yaml.safe_load((ROOT / "rules" / "responses.yaml").read_text())
    table = (ROOT / "docs" / "responses.md").read_text().partition("## What ships")[2].partition("\n## ")[0]
    rows = set(re.findall(r"^\| `([\w-]+)` \|", table, re.M))
    assert rows == {r["name"] for r in text["responses"] if r["remediation"] != "annotate_only"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_to_a_file_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[\w-]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_command_that_a_page_shows_exists():
    from sidecar.cli import _COMMANDS

    for page in PAGES:
        shown = set(re.findall(r"^(?:\$ )?spikewatch ([\w-]+)", page.read_text(), re.M))
        shown |= set(re.findall(r"`spikewatch ([\w-]+)", page.read_text()))
        assert shown <= set(_COMMANDS), f"{page.name}: {shown - set(_COMMANDS)}"


def test_the_rooms_of_the_architecture_page_are_those_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:sidecar/)?\w+)/`", page))
    rooms = {f"sidecar/{p.parent.name}" for p in (ROOT / "sidecar").glob("*/__init__.py")}
    assert rooms <= named
    assert all((ROOT / name).is_dir() for name in named)


def test_no_room_is_large():
    sizes = {p: len(p.read_text().splitlines()) for p in CODE if p.name != "__init__.py"}
    too_large = {str(p.relative_to(ROOT)): n for p, n in sizes.items() if n > 500}
    assert not too_large
    assert statistics.median(sizes.values()) <= 150


def test_no_module_is_a_drawer_for_everything():
    assert not [p for p in CODE if p.stem in ("utils", "util", "common", "helpers", "misc")]


def test_every_end_of_an_experiment_and_every_word_of_its_engine_for_a_verdict_is_explained():
    from sidecar.responses.experiment import Result

    page = (ROOT / "docs" / "responses.md").read_text().partition("## Reasons of a verdict")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", page))
    assert {r.value for r in Result} - {"interrupted"} <= named
    sources = [
        (ROOT / "sidecar" / "responses" / f"{name}.py").read_text() for name in ("experiment", "trial", "trials")
    ]
    found = set(re.findall(r'(?:_concluded\(x, (?:seen\.broken or )?|broken=|return )"([a-z_]+)"', "\n".join(sources)))
    assert found
    assert found <= named


def test_the_front_page_says_what_each_folder_is_for():
    rooms = re.findall(r"^(  )?(\w+)/ +\S", (ROOT / "README.md").read_text(), re.M)
    inner = {p.parent.name for p in (ROOT / "sidecar").glob("*/__init__.py")}
    assert {name for indent, name in rooms if indent} == inner
    outer = {name for indent, name in rooms if not indent}
    assert {"rules", "docs", "tests"} < outer
    assert outer - {"rules", "docs", "tests"} == {p.parent.name for p in ROOT.glob("*/__init__.py")} - {"rules", "docs"}

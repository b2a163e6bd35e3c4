"""Everything the configuration names is loaded as one, and every problem of every file is told at once."""

import copy
import os

import pytest
from pydantic import BaseModel

from sidecar.app.files import matching, shipped_folder
from sidecar.app.rulebook import load_rulebook
from sidecar.errors import ConfigError
from sidecar.responses.response import Mode

BAD_RULES = {
    "groups": [{"name": "g", "rules": [{"alert": "A", "expr": "rat(x)"}, {"alert": "B", "expr": "x", "for": "1y1"}]}]
}


def problems(folder, registry, **changes):
    with pytest.raises(ConfigError) as caught:
        load_rulebook(folder.loaded(**changes), registry)
    return [(p.file.rpartition("/")[2], p.level, p.message) for p in caught.value.problems]


def response(folder, **changes):
    document = {
        "name": "feed",
        "match": ['alertname="Late"'],
        "remediation": "dataloader_prefetch",
        "with": {"factor": 2},
        "verify": {"expr": "sum(rate(x[10s]))", "goal": "increase"},
        **changes,
    }
    return {"responses": [document]}


def test_rules_responses_caps_and_overrides_become_one_rulebook(folder, registry):
    folder.write("caps.yaml", {"caps": {"dataloader_prefetch": "suggest"}})
    folder.write("over.yaml", {"overrides": {"Late": {"for": "3m"}, "Early": {"disabled": True}}})
    book = load_rulebook(folder.loaded(caps="caps.yaml", overrides="over.yaml"), registry)
    assert [(rule.name, rule.for_ms) for group in book.groups for rule in group.rules] == [("Late", 180_000)]
    assert [r.name for r in book.responses] == ["feed"]
    assert book.caps == {"dataloader_prefetch": Mode.SUGGEST}
    assert book.collectors["process"].enabled is False
    assert book.warnings == ()


def test_problems_of_all_files_are_told_at_once(folder, registry):
    folder.write("two.rules.yaml", BAD_RULES)
    folder.write("three.rules.yaml", "groups: [")
    folder.write("responses.yaml", response(folder, remediation="prayer", modee="act"))
    folder.write("caps.yaml", {"caps": {"prayer": "act", "dataloader_prefetch": "perhaps"}})
    folder.write("over.yaml", {"overrides": {"Late": {"expr": "sum("}}})
    found = problems(
        folder,
        registry,
        rules=["*.rules.yaml", "missing.yaml"],
        caps="caps.yaml",
        overrides="over.yaml",
        collectors={"bogus": {}, "process": {"intervall": "1s"}},
    )
    expected = [
        ("two.rules.yaml", "unknown function"),
        ("two.rules.yaml", "for: not a valid duration"),
        ("three.rules.yaml", "not valid YAML"),
        ("spikewatch.yaml", "no such file"),
        ("spikewatch.yaml", "no such collector: bogus"),
        ("spikewatch.yaml", "unknown key 'intervall'"),
        ("responses.yaml", "unknown remediation 'prayer'"),
        ("responses.yaml", "unknown key 'modee'"),
        ("caps.yaml", "unknown remediation 'prayer'"),
        ("caps.yaml", "'observe', 'suggest' or 'act'"),
        ("over.yaml", "could not parse expression"),
    ]
    for file, text in expected:
        assert any(f == file and text in message for f, _, message in found), (file, text)
    assert len(found) == len(expected)


def test_alerts_of_a_file_that_is_wrong_are_not_missed_in_the_files_that_name_them(folder, registry):
    folder.write("two.rules.yaml", BAD_RULES)
    folder.write("over.yaml", {"overrides": {"InTheWrongFile": {"for": "1m"}}})
    folder.write("responses.yaml", response(folder, match=['alertname="InTheWrongFile"']))
    files = {file for file, _, _ in problems(folder, registry, overrides="over.yaml")}
    assert files == {"two.rules.yaml"}


def test_a_name_given_twice_in_two_response_files_is_refused(folder, registry):
    folder.write("more.yaml", response(folder))
    found = problems(folder, registry, responses=["responses.yaml", "more.yaml"])
    assert len(found) == 1
    assert found[0][0] == "more.yaml"
    assert "is also in" in found[0][2]


def test_what_is_probably_a_mistake_is_a_warning_and_loads(folder, registry):
    folder.write("responses.yaml", response(folder, match=['alertname="Nope"']))
    book = load_rulebook(folder.loaded(), registry)
    assert [w.level for w in book.warnings] == ["warning"]
    assert "will never act" in book.warnings[0].message


@pytest.mark.parametrize("name", ["one.rules.yaml", "responses.yaml", "caps.yaml", "over.yaml", "spikewatch.yaml"])
def test_the_hash_follows_the_content_of_every_file(folder, registry, name):
    folder.write("caps.yaml", {"caps": {}})
    folder.write("over.yaml", {"overrides": {}})
    settings = {"caps": "caps.yaml", "overrides": "over.yaml"}
    before = load_rulebook(folder.loaded(**settings), registry).hash
    assert load_rulebook(folder.loaded(**settings), registry).hash == before
    if name == "spikewatch.yaml":
        settings["resend_delay"] = "7s"
    else:
        path = folder.path / name
        path.write_text(path.read_text() + "\n# changed\n")
    assert load_rulebook(folder.loaded(**settings), registry).hash != before


def test_a_remediation_that_is_not_installed_is_refused_with_those_that_are(folder):
    class Nothing(BaseModel):
        pass

    class Bare:
        remediations: dict[str, object] = {}
        collectors: dict[str, object] = {}

    found = problems(folder, Bare(), collectors={})
    assert [m for _, _, m in found] == ["unknown remediation 'dataloader_prefetch'; there are: none"]


# --- which files ----------------------------------------------------------------------------------------------------


def test_globs_name_each_file_once_in_order_and_may_match_nothing(folder):
    for name in ("b.rules.yaml", "a.rules.yaml", "sub/c.rules.yaml"):
        folder.write(name, {"groups": []})
    loaded = folder.loaded(rules=["b.rules.yaml", "*.rules.yaml", "**/*.rules.yaml", "nothing-*.yaml"])
    found, wrong = matching(loaded, "rules")
    assert [str(path.relative_to(folder.path)) for path in found] == [
        "b.rules.yaml",
        "a.rules.yaml",
        "one.rules.yaml",
        "sub/c.rules.yaml",
    ]
    assert wrong == []


def test_a_name_without_wildcards_must_exist_and_its_place_is_told(folder):
    found, wrong = matching(folder.loaded(rules=["one.rules.yaml", "missing.yaml"]), "rules")
    assert [path.name for path in found] == ["one.rules.yaml"]
    assert [(p.line, "no such file" in p.message, str(folder.path / "missing.yaml") in p.message) for p in wrong] == [
        (3, True, True)
    ]


def test_one_pattern_needs_no_list(folder):
    assert [p.name for p in matching(folder.loaded(rules="one.rules.yaml"), "rules")[0]] == ["one.rules.yaml"]


def test_shipped_names_files_of_the_installation(folder):
    found, wrong = matching(folder.loaded(rules=["shipped:*.rules.yaml"]), "rules")
    assert found
    assert {path.parent for path in found} == {shipped_folder()}
    assert wrong == []


def test_a_folder_is_no_rule_file(folder):
    (folder.path / "dir.rules.yaml").mkdir()
    assert [p.name for p in matching(folder.loaded(), "rules")[0]] == ["one.rules.yaml"]


def test_what_is_shipped_loads_without_a_warning(folder, registry):
    book = load_rulebook(folder.loaded(rules=["shipped:*.rules.yaml"], responses=["shipped:responses.yaml"]), registry)
    assert book.groups
    assert book.responses
    assert book.warnings == ()
    assert max(r.mode for r in book.responses) <= Mode.SUGGEST


def test_a_loaded_rulebook_does_not_change_with_its_files(folder, registry):
    book = load_rulebook(folder.loaded(), registry)
    before = copy.deepcopy([(r.name, r.expr) for g in book.groups for r in g.rules])
    folder.write("one.rules.yaml", {"groups": []})
    assert [(r.name, r.expr) for g in book.groups for r in g.rules] == before


@pytest.mark.parametrize("what", ["dangling", "loop", "pipe"])
def test_what_a_glob_matches_and_cannot_be_read_is_told_and_not_left_out(folder, what):
    path = folder.path / "a.rules.yaml"
    if what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.name if what == "loop" else "nowhere.yaml")
    found, wrong = matching(folder.loaded(rules="*.rules.yaml"), "rules")
    assert [p.name for p in found] == ["one.rules.yaml"]
    assert [p.message.partition("a.rules.yaml: ")[2].split(":")[0] for p in wrong] == ["cannot be read"]


def test_a_folder_that_is_named_itself_is_refused_with_the_pattern_to_write(folder):
    (folder.path / "more").mkdir()
    found, wrong = matching(folder.loaded(rules="more"), "rules")
    assert found == []
    assert [p.message for p in wrong] == [f"rules: {folder.path}/more: a folder: write {folder.path}/more/*.yaml"]


def test_rules_that_match_no_file_at_all_are_a_warning(folder, registry):
    book = load_rulebook(folder.loaded(rules="none*.yaml", responses=[]), registry)
    assert [(p.level, p.message) for p in book.warnings] == [("warning", "rules: no file matches: no alert will fire")]

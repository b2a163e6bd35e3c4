"""Every complaint about a YAML file says where."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from sidecar.errors import ConfigError
from sidecar.yamlfile import Document

TEXT = """\
groups:
- name: a
  rules:
  - alert: Up
    expr: up == 0
    labels: {severity: 1.0}
"""


def problems(text):
    with pytest.raises(ConfigError) as caught:
        Document("f.yaml", text)
    return caught.value.problems


def test_values_and_positions_of_nested_keys_are_found():
    doc = Document("f.yaml", TEXT)
    assert doc.value["groups"][0]["rules"][0]["expr"] == "up == 0"
    mark = doc.at(("groups", 0, "rules", 0, "expr"))
    assert (mark.line, mark.column) == (5, 11)
    key = doc.key_at(("groups", 0, "rules", 0, "expr"))
    assert (key.line, key.column) == (5, 5)


def test_a_scalar_can_be_read_as_written():
    doc = Document("f.yaml", TEXT)
    assert doc.raw(("groups", 0, "rules", 0, "labels", "severity")) == "1.0"
    assert doc.raw(("groups", 0)) is None
    assert doc.raw(("nothing", 3)) is None


def test_a_position_that_does_not_exist_falls_back_to_the_nearest_one():
    doc = Document("f.yaml", TEXT)
    assert doc.at(("groups", 0, "rules", 0, "for")) == doc.at(("groups", 0, "rules", 0))


def test_a_key_given_twice_is_refused_at_the_second_one():
    (problem,) = problems("a: 1\nb: 2\na: 3\n")
    assert (problem.line, problem.column) == (3, 1)
    assert "'a' is given twice" in problem.message


def test_broken_yaml_is_located():
    (problem,) = problems("a: [1, 2\nb: 3\n")
    assert problem.line == 2
    assert str(problem).startswith("f.yaml:2:")


def test_only_the_first_document_counts():
    assert Document("f.yaml", "a: 1\n---\nb: 2\n").value == {"a": 1}


def test_an_empty_file_is_nothing_not_an_error():
    assert Document("f.yaml", "").value is None


def test_a_list_as_key_is_refused():
    (problem,) = problems("? [1, 2]\n: x\n")
    assert "plain text" in problem.message


def test_a_file_that_is_missing_or_not_utf8_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        Document.read(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigError, match=r"latin.yaml:1:4: error: not UTF-8 at byte 3"):
        Document.read(tmp_path / "latin.yaml")


def test_deep_nesting_is_refused_not_a_crash():
    assert "nest" in problems("[" * 5000 + "]" * 5000)[0].message
    assert "nest" in problems("[" * 900 + "]" * 900)[0].message


def test_an_alias_that_contains_itself_is_refused():
    (problem,) = problems("a: &x [*x]\n")
    assert (problem.line, problem.message) == (1, "not valid YAML: an alias that contains itself")


def test_aliases_that_multiply_are_cut_off():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "more values than make sense" in problems("\n".join(lines))[0].message


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int
    name: str = ""


def test_every_finding_of_a_model_is_listed_with_its_place():
    doc = Document("f.yaml", "size: big\nnmae: x\n")
    with pytest.raises(ConfigError) as caught:
        doc.validate(Model)
    assert [(p.line, p.column) for p in caught.value.problems] == [(1, 7), (2, 1)]
    assert "unknown key 'nmae'" in caught.value.problems[1].message


@given(st.text(max_size=200))
def test_no_text_crashes_the_reader(text):
    with suppress(ConfigError):
        Document("f.yaml", text)


def test_a_character_that_yaml_does_not_allow_is_located():
    (problem,) = problems("a: 1\nb: x\0y\n")
    assert (problem.line, problem.column) == (2, 5)
    assert "U+0000" in problem.message


@pytest.mark.parametrize("text", ["!!bool maybe", "!!timestamp never", "!!int x", "!!float x", "!!null x"])
def test_a_tag_that_does_not_fit_is_text_for_the_schema_to_refuse(text):
    assert Document("f.yaml", f"size: {text}").value == {"size": text.split()[-1]} or text == "!!null x"
    with pytest.raises(ConfigError, match=r"f.yaml:1:7: error: size: "):
        Document("f.yaml", f"size: {text}").validate(Model)


def test_deep_nesting_says_where():
    assert problems("a: 1\nb: " + "[" * 900 + "]" * 900)[0].line == 2


def test_a_second_document_is_refused_where_a_schema_is_asked_for():
    doc = Document("f.yaml", "size: 1\n---\nsize: 2\n")
    with pytest.raises(ConfigError, match=r"f.yaml:2:1: error: a second document is not read"):
        doc.validate(Model)
    assert Document("f.yaml", "---\nsize: 1\n").validate(Model).size == 1


def test_windows_line_ends_do_not_move_positions(tmp_path):
    (tmp_path / "crlf.yaml").write_bytes(b"size: 1\r\nnmae: 2\r\n")
    with pytest.raises(ConfigError, match=r"crlf.yaml:2:1: error: unknown key"):
        Document.read(tmp_path / "crlf.yaml").validate(Model)


def test_a_pipe_that_nobody_writes_to_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match="not a regular file"):
        Document.read(tmp_path / "pipe.yaml")


def test_of_a_file_that_is_far_too_large_no_more_is_read_than_shows_it(tmp_path):
    path = tmp_path / "core"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: more than any memory
    with pytest.raises(ConfigError, match="larger than 4 MiB"):
        Document.read(path)


def test_a_name_that_no_file_can_have_is_reported():
    with pytest.raises(ConfigError, match="cannot be read"):
        Document.read(Path("a\0b"))

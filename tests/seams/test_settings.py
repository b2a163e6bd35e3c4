"""Configuration: one file and the environment, every mistake located."""

import pytest

from sidecar.errors import ConfigError
from sidecar.settings import load


def write(tmp_path, text):
    path = tmp_path / "spikewatch.yaml"
    path.write_text(text)
    return path


def test_no_file_gives_the_documented_defaults():
    s = load(None, {}).settings
    assert str(s.state_dir) == "/var/lib/spikewatch"
    assert s.http.address == ("127.0.0.1", 9478)
    assert s.metrics.address == ("0.0.0.0", 9479)
    assert s.evaluation_interval == 1000
    assert s.store.min_keep == 900_000


def test_the_environment_overlays_the_file(tmp_path):
    path = write(tmp_path, "evaluation_interval: 5s\nhttp: {listen: '127.0.0.1:1'}\n")
    loaded = load(path, {"SPIKEWATCH_HTTP__LISTEN": "127.0.0.1:2", "SPIKEWATCH_SOCKET": "/x", "OTHER": "1"})
    assert loaded.settings.http.address == ("127.0.0.1", 2)
    assert loaded.settings.evaluation_interval == 5000


def test_every_problem_of_file_and_environment_is_listed_with_its_place(tmp_path):
    path = write(tmp_path, "evaluation_interval: 5\nsate_dir: /x\nstore:\n  max_series: many\n")
    with pytest.raises(ConfigError) as caught:
        load(path, {"SPIKEWATCH_HTTP__LISTEN": "nowhere"})
    text = [str(p) for p in caught.value.problems]
    assert any(
        t.startswith(f"{path}:1:22: error: evaluation_interval: write a duration with its unit, like 5s") for t in text
    )
    assert any(t.startswith(f"{path}:2:1: error: unknown key 'sate_dir'") for t in text)
    assert any(t.startswith(f"{path}:4:15: error: store.max_series") for t in text)
    assert any(t.startswith("environment SPIKEWATCH_HTTP__LISTEN: error: http.listen: not an address") for t in text)
    assert len(text) == 4


def test_a_list_at_the_top_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="must be a mapping"):
        load(write(tmp_path, "- a\n"), {})


def test_one_glob_may_stand_without_a_list(tmp_path):
    assert load(write(tmp_path, "rules: /etc/r/*.yaml\n"), {}).settings.rules == ("/etc/r/*.yaml",)


def test_paths_are_relative_to_the_file(tmp_path):
    loaded = load(write(tmp_path, "state_dir: state\n"), {})
    assert loaded.path(loaded.settings.state_dir) == tmp_path / "state"


def test_the_hash_follows_the_content_not_the_spelling(tmp_path):
    a = load(write(tmp_path, "evaluation_interval: 1m\n"), {}).hash
    b = load(write(tmp_path, "# a comment\nevaluation_interval: 60s\n"), {}).hash
    c = load(write(tmp_path, "evaluation_interval: 61s\n"), {}).hash
    assert a == b != c


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alertmanagers: [{url: 'http://'}]", "not an http"),
        ("alertmanagers: [{url: 'http://host:99999'}]", "not an http"),
        ("alertmanagers: [{url: 'http://[::1'}]", "not an http"),
        ('alertmanagers: [{url: "http://host/\\n"}]', "not an http"),
        ("alertmanagers: [{url: 'http://user:secret@host'}]", "basic_auth"),
        ("external_labels: {'': z}", "not a label name"),
        ("gpus: true", "gpus"),
        ("gpus: 0", "gpus"),
        ("usd_per_gpu_hour: .inf", "usd_per_gpu_hour"),
        ('state_dir: "/var/\\0"', "NUL"),
        ("http: {listen: '127.0.0.1:9'}\nmetrics: {listen: '127.0.0.1:9'}", "cannot both listen"),
        ("metrics: {listen: '127.0.0.1:0'}\n---\ngpus: 1", "second document"),
    ],
)
def test_a_value_that_could_not_work_is_refused_before_anything_runs(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load(write(tmp_path, text), {})


@pytest.mark.parametrize("text", ["!!bool x", "[" * 2000, "{a: [", "\0", "&a [*a]"])
def test_no_environment_variable_crashes_the_reader(text):
    with pytest.raises(ConfigError, match="environment SPIKEWATCH_(RULES|GPUS): error"):
        load(None, {"SPIKEWATCH_RULES": text, "SPIKEWATCH_GPUS": "none at all"})

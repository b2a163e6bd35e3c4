"""The configuration page names every setting there is, and no other."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from sidecar import durations
from sidecar.settings import Alertmanager, Settings

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()


def names(model, prefix=""):
    for name, field in model.model_fields.items():
        inner = next((t for t in (field.annotation, *getattr(field.annotation, "__args__", ())) if is_model(t)), None)
        if inner and inner is not Alertmanager:
            yield from names(inner, f"{prefix}{name}.")
        else:
            yield prefix + name


def is_model(kind):
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def rows():
    return dict(re.findall(r"^\| `([a-z_.]+)` \| (.+?) \|", PAGE, re.M))


def test_every_setting_has_a_row_and_every_row_a_setting():
    assert set(rows()) == set(names(Settings)) | set(names(Alertmanager))


@pytest.mark.parametrize("name", ["evaluation_interval", "resend_delay", "store.min_keep"])
def test_the_durations_on_the_page_are_the_defaults(name):
    value = Settings()
    for part in name.split("."):
        value = getattr(value, part)
    assert rows()[name].strip("`") == durations.text(value)


@pytest.mark.parametrize(
    "name", ["state_dir", "run_dir", "http.listen", "store.max_series", "store.max_series_per_metric"]
)
def test_the_other_defaults_on_the_page_are_the_defaults(name):
    value = Settings()
    for part in name.split("."):
        value = getattr(value, part)
    assert rows()[name].strip("`") == str(value)

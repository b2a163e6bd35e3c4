"""The page about data sources names every setting and only series that exist."""

import re
from pathlib import Path

import pytest

from sidecar import durations
from sidecar.collectors.cost.catalogue import METRICS as COST
from sidecar.collectors.datasets.collector import DatasetsCollector, DatasetsSettings
from sidecar.collectors.spark.collector import SparkCollector, SparkSettings
from sidecar.collectors.spark.stages import KINDS
from sidecar.hooks import CollectorSettings

PAGE = (Path(__file__).parents[2] / "docs" / "data-sources.md").read_text()


def rows(heading):
    """name → default, of the table of settings below a heading."""
    part = PAGE.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    found = {}
    for names, defaults in re.findall(r"^\| ((?:`(?!spikewatch_)\w+`(?:, )?)+) \| (.+?) \|", part, re.M):
        found |= dict(zip(re.findall(r"`(\w+)`", names), defaults.split(", "), strict=True))
    return found


@pytest.mark.parametrize(("heading", "model"), [("## Parquet datasets", DatasetsSettings), ("## Spark", SparkSettings)])
def test_every_setting_has_a_row_with_its_default(heading, model):
    shown = rows(heading)
    assert set(shown) == set(model.model_fields) - set(CollectorSettings.model_fields)
    for name, default in shown.items():
        value = getattr(model(), name)
        if default == "none":
            assert value == (), name
        elif default.isdigit():
            assert value == int(default), name
        else:
            assert value == durations.parse(default), name


def test_every_series_that_the_page_names_exists():
    known = {info.name for info in (*DatasetsCollector.metrics, *SparkCollector.metrics, *COST)}
    assert set(re.findall(r"spikewatch_\w+", PAGE)) <= known


def test_every_kind_of_serialised_data_is_on_the_page():
    assert all(f"`{kind}`" in PAGE for kind in KINDS)

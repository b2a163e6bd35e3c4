"""What the built-in collectors may emit, taken together: names that fit one page."""

from collections import Counter

import pytest

from sidecar.collectors.io.collector import IoCollector
from sidecar.collectors.machine.collector import CgroupCollector
from sidecar.collectors.machine.network import NetworkCollector
from sidecar.collectors.nccl.collector import NcclCollector
from sidecar.collectors.scrape.collector import ScrapeCollector
from sidecar.plugins import COLLECTORS, Registry

ALL = (IoCollector, CgroupCollector, NetworkCollector, NcclCollector, ScrapeCollector)


@pytest.mark.parametrize("collector", ALL, ids=lambda c: c.name)
def test_the_contract_of_a_plugin_is_kept(collector):
    Registry().register(COLLECTORS, collector)


def test_no_two_metrics_are_one_family_in_openmetrics():
    """There a counter's family has no _total: a gauge of that name would make both untyped."""
    families = Counter(info.name.removesuffix("_total") for collector in ALL for info in collector.metrics)
    assert [name for name, count in families.items() if count > 1] == []


def test_every_metric_says_whose_number_it_is_where_from_and_what_it_was_checked_against():
    for collector in ALL:
        for info in collector.metrics:
            assert info.source, info.name
            assert info.scope or "scope" in info.labels, info.name
            assert info.verified is not None, info.name
            assert info.verified.date, info.name

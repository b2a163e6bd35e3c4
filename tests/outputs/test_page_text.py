"""Pages from memory are byte for byte what prometheus_client writes, whatever series come, go and change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from sidecar.outputs.pagetext import Family, PageText

ACCEPTED = (
    "",
    "text/plain;version=0.0.4",
    "text/plain;version=1.0.0;escaping=allow-utf-8",
    "application/openmetrics-text;version=1.0.0",
    "application/openmetrics-text;version=1.0.0;escaping=underscores",
    "application/openmetrics-text;version=0.0.1",
)
KINDS = {"spikewatch_steps_total": "counter", "spikewatch_wait_ratio": "gauge", "spikewatch_odd": "unknown"}
label_values = st.text(alphabet='ab\\"\n\u2028 {}=,é', max_size=4)
series = st.dictionaries(
    st.lists(st.tuples(st.sampled_from(("a", "le", "rank")), label_values), max_size=2, unique_by=lambda p: p[0]).map(
        lambda pairs: tuple(sorted(pairs))
    ),
    st.floats(),
    max_size=5,
)
pages = st.lists(
    st.tuples(st.sampled_from(ACCEPTED), st.dictionaries(st.sampled_from(sorted(KINDS)), series)),
    min_size=1,
    max_size=5,
)


def empty(name):
    return Metric(name.removesuffix("_total") if KINDS[name] == "counter" else name, "What\nit is.", KINDS[name])


class Registry:
    """The same page as prometheus_client is given it."""

    def __init__(self, page):
        self._page = page

    def collect(self):
        for name, values in sorted(self._page.items()):
            family = empty(name)
            for labels in sorted(values):
                family.add_sample(name, dict(labels), values[labels])
            yield family


@given(pages)
def test_every_page_is_what_the_library_would_write(several):
    text = PageText()
    for accept, page in several:
        encoder, content_type = choose_encoder(accept)
        families = [Family(name, lambda name=name: empty(name), values) for name, values in sorted(page.items())]
        assert text.page(encoder, content_type, families) == encoder(Registry(page))


def test_series_that_went_away_are_forgotten():
    text = PageText()
    encoder, content_type = choose_encoder("")
    for turn in range(40):
        values = {(("rank", f"{turn}-{n}"),): 1.0 for n in range(100)}
        page = text.page(encoder, content_type, [Family("spikewatch_odd", lambda: empty("spikewatch_odd"), values)])
        assert page.count(b"rank=") == 100
    (known,) = text._formats.values()
    assert len(known.starts["spikewatch_odd"]) <= 1200


def test_content_types_a_client_makes_up_are_not_all_remembered():
    text = PageText()
    for version in range(100):
        encoder, content_type = choose_encoder(f"application/openmetrics-text;version={1 + version}.0.0")
        text.page(encoder, content_type, [])
    assert len(text._formats) <= 8

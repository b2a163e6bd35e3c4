"""Scraping real servers on the loopback: what their pages say, under which labels, and what is refused."""

import gzip
import shutil
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

sys.path.insert(0, str(Path(__file__).parent))

from scraped_page import serving

from sidecar.collectors.scrape.collector import ScrapeCollector
from sidecar.collectors.scrape.fetch import samples
from sidecar.collectors.scrape.jobs import Job, ScrapeSettings, targets
from sidecar.collectors.scrape.page import PageError, parse
from sidecar.collectors.scrape.relabel import RelabelConfig, relabel
from sidecar.model import Availability

PAGE = """# HELP cache_hits_total Hits.
# TYPE cache_hits_total counter
cache_hits_total{cache="prompt"} 30
cache_misses_total{cache="prompt"} 10 1700000000000
temperature 3.5
"""


@pytest.fixture
def server():
    with serving(PAGE) as running:
        yield running


@pytest.fixture
def scraper():
    """Makes collectors; `once` scrapes every target and waits for all of them."""
    made = []

    class Scraper:
        def __init__(self, jobs, **more):
            self.done = threading.Semaphore(0)
            settings = ScrapeSettings.model_validate({"jobs": jobs, **more})
            self.collector = ScrapeCollector(settings, on_done=self.done.release)
            made.append(self.collector)

        def once(self, now_ms=0, targets=1):
            list(self.collector.sample(now_ms))
            for _ in range(targets):
                assert self.done.acquire(timeout=25)
            return self.now(now_ms)

        def now(self, now_ms=0):
            declared = {info.name: set(info.labels) for info in self.collector.metrics}
            found = {}
            for s in self.collector.sample(now_ms):
                if s.metric in declared:
                    assert {name for name, _ in s.labels} == declared[s.metric]
                found[s.metric, *(f"{n}={v}" for n, v in s.labels)] = s.value
            return found

    yield Scraper
    for collector in made:
        collector.close()


def job(address, **more):
    return {"job_name": "gw", "static_configs": [{"targets": [address]}], **more}


def test_samples_get_the_labels_of_their_job_and_target(server, scraper):
    page, address = server
    found = scraper([job(address)]).once()
    assert found["cache_hits_total", "cache=prompt", f"instance={address}", "job=gw"] == 30
    assert found["temperature", f"instance={address}", "job=gw"] == 3.5
    assert found["spikewatch_scrape_up", f"instance={address}", "job=gw"] == 1
    assert found["spikewatch_scrape_samples", f"instance={address}", "job=gw"] == 3
    assert page.requests[0][0] == "/metrics"


def test_between_two_scrapes_the_values_stay_and_the_server_is_left_alone(server, scraper):
    page, address = server
    one = scraper([job(address, scrape_interval="15s")])
    one.once()
    page.body = b"temperature 4\n"
    assert one.now(14_999)["temperature", f"instance={address}", "job=gw"] == 3.5
    assert len(page.requests) == 1
    assert one.once(15_000)["temperature", f"instance={address}", "job=gw"] == 4


def test_a_server_that_is_gone_ends_its_series_and_comes_back(server, scraper):
    page, address = server
    one = scraper([job(address)])
    one.once()
    page.status = 503
    found = one.once(15_000)
    assert found["spikewatch_scrape_up", f"instance={address}", "job=gw"] == 0
    assert found["spikewatch_scrape_errors_total", f"instance={address}", "job=gw"] == 1
    assert not [key for key in found if key[0] == "temperature"]
    status = one.collector.probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, "target_http_status")
    page.status = 200
    assert one.once(30_000)["temperature", f"instance={address}", "job=gw"] == 3.5
    assert one.collector.probe().state is Availability.AVAILABLE


def test_a_server_that_hangs_delays_no_other(server, scraper):
    page, address = server
    with serving("other 1\n") as (_, other):
        page.hold = threading.Event()
        one = scraper([job(address, scrape_timeout="20s"), {**job(other), "job_name": "b"}])
        found = one.once(targets=1)
        assert found["other", f"instance={other}", "job=b"] == 1
        assert ("spikewatch_scrape_up", f"instance={address}", "job=gw") not in found, "not known is not down"
        page.hold.set()
        assert one.done.acquire(timeout=25)


def failure(scraper, address, **more):
    one = scraper([job(address, **more)])
    one.once()
    (finding,) = one.collector.findings()
    return finding.status.reason


def test_a_page_that_drips_for_ever_ends_at_the_timeout(server, scraper):
    page, address = server
    page.drip, page.hold = True, threading.Event()
    assert failure(scraper, address, scrape_timeout="300ms") == "timeout"


def test_a_server_that_does_not_answer_ends_at_the_timeout(server, scraper):
    page, address = server
    page.hold = threading.Event()
    assert failure(scraper, address, scrape_timeout="300ms") == "timeout"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"sample_limit": 2}, "too_many_samples"),
        ({"body_size_limit": "50B"}, "too_large"),
        ({"label_limit": 3}, "too_many_labels"),
        ({"label_value_length_limit": 5}, "label_too_long"),
        ({"scheme": "https"}, "unreachable"),
        ({"authorization": {"credentials_file": "/nowhere/token"}}, "credentials"),
    ],
)
def test_a_page_over_a_limit_or_out_of_reach_is_refused_with_a_reason(server, scraper, more, reason):
    assert failure(scraper, server[1], **more) == reason


def test_the_size_of_a_compressed_page_is_what_it_unpacks_to(server, scraper):
    page, address = server
    page.headers["Content-Encoding"] = "gzip"
    page.body = gzip.compress(b"#" * 1_000_000)
    assert failure(scraper, address, body_size_limit="100KB") == "too_large"
    page.body = gzip.compress(b"temperature 9\n")
    assert scraper([job(address)]).once()["temperature", f"instance={address}", "job=gw"] == 9


@pytest.mark.parametrize("body", [b"<html>", b"a{ 3", b"a 3 4 5", b"a 0x1p3", b'a{b="c",b="d"} 1', b"\xff\xfe"])
def test_what_is_no_page_of_metrics_is_refused_as_a_whole(server, scraper, body):
    page, address = server
    page.body = b"good 1\n" + body
    assert failure(scraper, address) == "not_metrics"


def test_a_page_cannot_pass_itself_off_as_the_sidecar(server, scraper):
    page, address = server
    page.body = b'spikewatch_trainer_steps_total 7\n{"na.me"} 3\ngood 1\n'
    found = scraper([job(address)]).once()
    assert found["spikewatch_scrape_refused_samples_total", f"instance={address}", "job=gw"] == 2
    assert [key[0] for key in found if not key[0].startswith("spikewatch_scrape")] == ["good"]


def test_relabelling_may_give_a_sample_a_name_of_the_sidecar(server, scraper):
    rules = [
        {"source_labels": ["__name__"], "regex": "temperature", "action": "keep"},
        {"target_label": "__name__", "replacement": "spikewatch_trace_sampling_ratio"},
        {"regex": "instance|job", "action": "labeldrop"},
    ]
    found = scraper([job(server[1], metric_relabel_configs=rules)]).once()
    assert found["spikewatch_trace_sampling_ratio",] == 3.5


def test_labels_of_the_page_that_clash_are_renamed_or_honoured(server):
    (target,) = targets(Job.model_validate(job("a:1")))
    text = 'x{job="theirs",exported_job="older"} 1\n'
    (one,) = samples(target, text).samples
    assert dict(one.labels) == {
        "job": "gw",
        "exported_job": "older",
        "exported_exported_job": "theirs",
        "instance": "a:1",
    }
    (target,) = targets(Job.model_validate(job("a:1", honor_labels=True)))
    (one,) = samples(target, text).samples
    assert dict(one.labels)["job"] == "theirs"


def test_targets_are_relabelled_before_they_are_asked(server, scraper):
    page, address = server
    rules = [
        {"source_labels": ["__address__"], "regex": "skip:.*", "action": "drop"},
        {"source_labels": ["__address__"], "target_label": "__param_target"},
        {"source_labels": ["__address__"], "target_label": "instance"},
        {"target_label": "__address__", "replacement": address},
        {"target_label": "__metrics_path__", "replacement": "/probe"},
    ]
    config = {
        "job_name": "blackbox",
        "static_configs": [{"targets": ["skip:1", "example:80"], "labels": {"zone": "a"}}],
        "params": {"module": ["http"]},
        "relabel_configs": rules,
    }
    found = scraper([config]).once()
    assert page.requests[0][0] == "/probe?module=http&target=example%3A80"
    assert found["temperature", "instance=example:80", "job=blackbox", "zone=a"] == 3.5


def test_credentials_are_sent_and_a_token_file_is_read_anew(server, scraper, tmp_path):
    page, address = server
    token = tmp_path / "token"
    token.write_text("first\n")
    one = scraper([job(address, authorization={"credentials_file": str(token)})])
    one.once()
    token.write_text("second\n")
    one.once(15_000)
    basic = scraper([job(address, basic_auth={"username": "u", "password": "p"})])
    basic.once()
    assert [headers["Authorization"] for _, headers in page.requests] == ["Bearer first", "Bearer second", "Basic dTpw"]


def test_a_server_with_a_certificate_is_trusted_by_its_authority_only(scraper, tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("the openssl command makes the certificate")
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-subj", "/CN=metrics.test", "-addext", "subjectAltName=DNS:metrics.test", "-days", "2", *files]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with serving("secure 1\n", context) as (_, address):
        assert failure(scraper, address, scheme="https") == "unreachable"
        tls = {"ca_file": str(tmp_path / "cert.pem"), "server_name": "metrics.test"}
        found = scraper([job(address, scheme="https", tls_config=tls)]).once()
        assert found["secure", f"instance={address}", "job=gw"] == 1
        found = scraper([job(address, scheme="https", tls_config={"insecure_skip_verify": True})]).once()
        assert found["secure", f"instance={address}", "job=gw"] == 1
        assert failure(scraper, address, scheme="https", tls_config={"ca_file": "/nowhere"}) == "credentials"


def test_a_configured_source_is_declared_even_while_its_target_is_down(scraper):
    found = scraper([job("127.0.0.1:1", source="gateway")]).once()
    assert found["spikewatch_source_configured", "source=gateway"] == 1
    assert scraper([]).now() == {}


def test_a_closed_collector_leaves_no_thread_behind(server, scraper):
    one = scraper([job(server[1])])
    one.once()
    one.collector.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("scrape-")]


@pytest.mark.parametrize(
    ("jobs", "text"),
    [
        ([job("a"), job("b")], "twice"),
        ([job("a", sample_limit=0)], "sample_limit"),
        ([job("a", basic_auth={"username": "u"}, authorization={})], "not both"),
        ([job("a", surprise=1)], "surprise"),
        ([job("a", body_size_limit="5 parsecs")], "not a size"),
        ([job("a", relabel_configs=[{"regex": "("}])], "bad regular expression"),
        ([job("a", relabel_configs=[{"action": "replace"}])], "needs a target_label"),
        ([job("a", relabel_configs=[{"action": "hashmod", "target_label": "x"}])], "modulus"),
        ([job("a", relabel_configs=[{"action": "labeldrop", "regex": "x", "target_label": "y"}])], "regex only"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_reason(jobs, text):
    with pytest.raises(ValidationError, match=text):
        ScrapeSettings.model_validate({"jobs": jobs})


# --- pages ------------------------------------------------------------------------------------------------------------


def test_openmetrics_with_exemplars_and_quoted_names_is_read():
    text = (
        '# TYPE a counter\na_total{x="1"} 5 1700000000.5 # {trace_id="ab # c"} 0.5 1.0\n'
        '{"b",y="\\"q\\"\\n"} +Inf\n# EOF\nrest'
    )
    assert list(parse(text)) == [
        ({"__name__": "a_total", "x": "1"}, 5.0),
        ({"__name__": "b", "y": '"q"\n'}, float("inf")),
    ]


names = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,8}", fullmatch=True)
pages = st.lists(
    st.tuples(names, st.dictionaries(names, st.text(max_size=12), max_size=3), st.floats()),
    max_size=5,
)


def escaped(value):
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pages)
def test_pages_are_read_as_prometheus_own_client_library_reads_them(rows):
    rows = [(n, {k: v.replace("\r", "") for k, v in ls.items()}, x) for n, ls, x in rows]
    text = "".join(
        f"{name}{{{','.join(f'{k}={chr(34)}{escaped(v)}{chr(34)}' for k, v in labels.items())}}} {value!r}\n"
        for name, labels, value in rows
    )
    ours = [(labels, repr(value)) for labels, value in parse(text)]
    theirs = [
        ({**s.labels, "__name__": s.name}, repr(s.value))
        for family in text_string_to_metric_families(text)
        for s in family.samples
    ]
    assert sorted(map(str, [(sorted(a.items()), b) for a, b in ours])) == sorted(
        map(str, [(sorted(a.items()), b) for a, b in theirs])
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(alphabet='a1{}="\\, \n#.eE+-\t', max_size=60))
def test_no_text_makes_the_reader_raise_anything_but_its_own_error(text):
    try:
        list(parse(text))
    except PageError:
        pass


# --- relabelling ------------------------------------------------------------------------------------------------------


def step(labels, **config):
    return relabel(labels, [RelabelConfig.model_validate(config)])


def test_a_replacement_knows_groups_by_number_and_name():
    labels = {"path": "/v1/chat"}
    for replacement, wanted in {
        "$1-$2": "v1-chat",
        "${1}x": "v1x",
        "$1x": "",
        "$name": "chat",
        "$$1": "$1",
        "$9": "",
        "100%": "100%",
    }.items():
        config = {
            "source_labels": ["path"],
            "regex": "/(.*)/(?P<name>.*)",
            "target_label": "t",
            "replacement": replacement,
        }
        assert step(labels, **config).get("t", "") == wanted, replacement


def test_a_regex_must_match_the_whole_value():
    assert step({"a": "xby"}, source_labels=["a"], regex="b", action="keep") is None
    assert step({"a": "x\ny"}, source_labels=["a"], regex="x.y", action="keep") is not None


def test_several_labels_are_joined_and_missing_ones_are_empty():
    found = step({"a": "1", "b": "2"}, source_labels=["a", "none", "b"], separator="-", target_label="c")
    assert found["c"] == "1--2"


def test_a_hash_is_prometheus_hash():
    """The last eight bytes of the MD5, as a number: the value was computed by hand with md5sum."""
    found = step({"a": "abc"}, source_labels=["a"], modulus=1000, target_label="shard", action="hashmod")
    assert found["shard"] == str(int("d6963f7d28e17f72", 16) % 1000)


def test_an_empty_result_removes_the_label():
    assert step({"a": "1"}, target_label="a", replacement="") == {}

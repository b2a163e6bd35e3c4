"""A gateway and a tracing backend on the loopback, scraped by a whole sidecar: when they go blind, alerts tell."""

import asyncio
import json
import re
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "collectors"))

from scraped_page import serving

from sidecar.app.rulebook import load_rulebook
from sidecar.app.sidecar import Sidecar
from sidecar.clock import FakeClock
from sidecar.collectors.scrape.collector import ScrapeCollector
from sidecar.plugins import COLLECTORS, Registry
from sidecar.settings import load

PAGE = (Path(__file__).parents[2] / "docs/scrape.md").read_text()
STEP_MS = 30_000  # from one scrape to the next, and from one evaluation to the next


def examples(heading):
    """The configuration and the rules of a section of docs/scrape.md."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    config, rules, *_ = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", section, re.S))
    return config["collectors"]["scrape"]["jobs"][0], rules["groups"][0]


class World:
    """The sidecar, its two pages, and a clock that moves when told."""

    def __init__(self, sidecar, pages, scraped):
        self.sidecar, self.gateway, self.tracing, self._scraped = sidecar, *pages, scraped
        self.hits = self.kept = self.dropped = 0
        self.gateway_metric, self.kept_a_step = "gateway_cache_requests_total", 50

    def pass_minutes(self, minutes):
        """Each step both backends serve some requests, are scraped, and the rules are evaluated."""
        for _ in range(minutes * 60_000 // STEP_MS):
            self.hits += 60
            self.kept += self.kept_a_step
            self.dropped += 1000 - self.kept_a_step
            self.gateway.body = (
                f'{self.gateway_metric}{{result="hit"}} {self.hits}\n{self.gateway_metric}{{result="miss"}} 40\n'
            ).encode()
            name = "otelcol_processor_probabilistic_sampler_count_traces_sampled_total"
            self.tracing.body = (
                f'{name}{{sampled="true"}} {self.kept}\n{name}{{sampled="false"}} {self.dropped}\n'.encode()
            )
            self.sidecar.clock.advance(STEP_MS)
            self.sidecar.tick()
            assert self.sidecar.collectors.settle(30)
            for _ in range(2):
                assert self._scraped.acquire(timeout=30)

    def firing(self):
        return sorted(a.name for a in self.sidecar.manager.alerts() if a.state.value == "firing")


@pytest.fixture
def world(tmp_path):
    scraped = threading.Semaphore(0)

    class Scrape(ScrapeCollector):
        """The real one; a test knows when each of its scrapes is done."""

        def __init__(self, settings):
            super().__init__(settings, on_done=scraped.release)

    with ExitStack() as stack:
        jobs, groups, pages = [], [], []
        for heading in ("Gateway cache hits", "Trace sampling"):
            job, group = examples(heading)
            page, address = stack.enter_context(serving())
            jobs.append({**job, "static_configs": [{"targets": [address]}]})
            groups.append({**group, "interval": "30s"})
            pages.append(page)
        (tmp_path / "ratios.rules.yaml").write_text(json.dumps({"groups": groups}))
        settings = {
            "state_dir": "state",
            "run_dir": "run",
            "rules": ["shipped:observability.rules.yaml", "ratios.rules.yaml"],
            "responses": [],
            "evaluation_interval": "30s",
            "collectors": {"scrape": {"jobs": jobs}},
        }
        (tmp_path / "spikewatch.yaml").write_text(json.dumps(settings))
        registry = Registry()
        registry.register(COLLECTORS, Scrape)
        loaded = load(tmp_path / "spikewatch.yaml", {})
        clock = FakeClock(1_500_000)
        lines = []
        sidecar = Sidecar(
            None, loaded, load_rulebook(loaded, registry), registry, clock, environ={}, write_line=lines.append
        )
        with asyncio.Runner() as runner:
            runner.run(sidecar.start())
            yield World(sidecar, pages, scraped)
            runner.run(sidecar.stop())


def test_a_gateway_and_a_sampler_that_go_blind_are_told_and_let_go_when_they_can_be_seen_again(world):
    world.pass_minutes(7)
    assert world.firing() == []
    # An upgrade of the gateway renames its counter, and somebody turns the sampler down to one trace in two hundred.
    world.gateway_metric, world.kept_a_step = "gateway_prompt_cache_total", 5
    world.pass_minutes(12)
    assert world.firing() == ["BlindGatewayCache", "BlindTraceSampling"]
    world.gateway_metric, world.kept_a_step = "gateway_cache_requests_total", 50
    world.pass_minutes(3)
    assert world.firing() == []


def test_a_page_that_is_gone_is_told_by_its_target_first_and_as_a_blind_gateway_later(world):
    world.pass_minutes(3)
    world.gateway.status = 503
    world.pass_minutes(3)
    assert world.firing() == ["ScrapeTargetDown"]
    world.pass_minutes(9)
    assert world.firing() == ["BlindGatewayCache", "ScrapeTargetDown"]

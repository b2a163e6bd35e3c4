"""The page about the HTTP API names every endpoint there is, and no other."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest

from sidecar.alerting.history import KEPT
from sidecar.api import routes
from sidecar.api.queries import MAX_MATCHERS, MAX_REGEXES, MAX_STEPS, MAX_TEXT, Bounds
from sidecar.api.services import Services

PAGE = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()


async def no_reload():
    return ()


SILENT = Services(lambda accept: (b"", "text/plain"), lambda: "", no_reload, lambda: (), runbook=lambda alert: "a page")


def documented():
    """Path → methods, and whether the open listener has it."""
    rows = re.findall(r"^\| `(/\S+)` \| ([A-Z, ]+) \| (yes)? ?\|", PAGE, re.M)
    return {path: (set(methods.split(", ")), bool(is_open)) for path, methods, is_open in rows}


def test_every_endpoint_has_a_row_with_its_methods_and_every_row_an_endpoint():
    offered = {route.path: set(route.methods) - {"HEAD"} for route in routes.everything(SILENT)}
    assert {path: methods for path, (methods, _) in documented().items()} == offered


@pytest.mark.parametrize("path", sorted(documented()))
def test_the_open_listener_has_exactly_what_is_marked_so(path):
    async def get():
        transport = httpx.ASGITransport(routes.metrics_only(SILENT))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path)

    assert (asyncio.run(get()).status_code == 200) == documented()[path][1]


def test_the_limits_on_the_page_are_the_limits():
    bounds = Bounds()
    assert (bounds.timeout_ms, bounds.max_samples, bounds.max_points) == (10_000, 1_000_000, 500_000)
    for text in (
        "One query may take 10 s, hold a million samples while it is worked out, and give half a million points",
        f"{MAX_STEPS:,} points a series",
        f"{MAX_TEXT >> 10} KiB, {MAX_REGEXES} regular expressions and {MAX_MATCHERS} matchers",
        f"last {KEPT} evaluations",
    ):
        assert text in " ".join(PAGE.split())

"""Plays the stories of these tests at the same time, each in a world of its own, and hands out what came of them.

A story lasts some ten seconds, nearly all of them waiting. So the first test that is run starts the stories of all
tests that were selected; each test then waits for its own and says what must be true of it.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from e2e_nursing import Nursery
from e2e_world import World

AT_ONCE = 10  # worlds; together they take about one core
PLAYS = 3  # of a story in which speed is judged, where noise let nobody tell; a wrong verdict is never played again


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "story(play, args, long, wanted): `told` is what play(world, *args) gives back; the long ones begin first. "
        "Where `wanted` is a clear verdict and the machine was too busy to tell, it is played again.",
    )


@pytest.fixture(scope="session")
def _stories(request):
    """The result of each story to come, by node id."""
    nursery = Nursery()
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="story")
    stories: dict[str, Future[Any]] = {}
    marked = [(item.nodeid, m.kwargs) for item in request.session.items if (m := item.get_closest_marker("story"))]
    for name, story in sorted(marked, key=lambda pair: not pair[1].get("long")):
        stories[name] = pool.submit(_play, nursery, story["play"], story.get("args", ()), story.get("wanted", ""))
    yield stories
    pool.shutdown(cancel_futures=True)
    nursery.close()


def _play(nursery, play, args, wanted):
    for _ in range(PLAYS):
        world = World(nursery)
        try:
            told = play(world, *args)
        finally:
            world.close()
        if wanted in ("", "inconclusive") or "inconclusive" not in str(told["verdict"]):
            break
    return told


@pytest.fixture
def told(request, _stories):
    """What the story of this test came to."""
    return _stories[request.node.nodeid].result(timeout=230)

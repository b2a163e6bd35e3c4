"""A scene: some series at one pace, and questions about them with the answers they must get."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scene:
    """`series` in promtool's notation, one a line; `ask` are (expression, seconds, answer)."""

    name: str
    series: str
    ask: tuple
    interval_s: int = 10

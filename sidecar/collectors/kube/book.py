"""The price book as a running collector has it: read again when the file changes, kept when the new one is wrong."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

from sidecar.collectors.cost.pricebook import Price, PriceBook, load_prices
from sidecar.collectors.kube.objects import Node
from sidecar.errors import ConfigError


class Book:
    """Prices of nodes. `problem` tells what is wrong with the file now; empty where nothing is."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._prices = PriceBook()
        self._used: dict[tuple[str, str, str], Price] = {}
        self.missing: set[tuple[str, str, str]] = set()  # asked for since `begin`, and not there
        self.problem = ""

    def begin(self) -> None:
        """Before a reading: takes in a file that has changed."""
        self._used, self.missing = {}, set()
        if self._path is None:
            return
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                self._prices, self.problem = load_prices(self._path), ""
                self._stamp = stamp
        except (ConfigError, OSError) as e:
            self._stamp, self.problem = None, str(e)

    def of(self, node: Node) -> float | None:
        """USD per hour of a whole node; None where the book does not tell."""
        if self._path is None:
            return None
        key = (node.instance_type, node.region, node.capacity)
        price = self._used.get(key) or self._prices.find(*key)
        if price is None:
            self.missing.add(key)
            return None
        self._used[key] = price
        return price.usd_per_hour

    def old(self, today: date) -> list[Price]:
        """Prices in use that are older than prices stay right."""
        return [price for price in self._used.values() if price.old(today)]

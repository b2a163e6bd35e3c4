"""Which URLs requests may go to: prefixes compared by scheme, host, port and whole path segments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class _Place:
    scheme: str
    host: str
    port: int
    path: str


class EgressList:
    """Prefixes as in `egress.allow`; one without a path allows everything on its host and port."""

    def __init__(self, prefixes: Iterable[str]) -> None:
        self.prefixes = tuple(prefixes)
        self._places = [place for prefix in self.prefixes if (place := _place(prefix)) is not None]

    def __bool__(self) -> bool:
        return bool(self._places)

    def allows(self, url: str) -> bool:
        """Whether a request may go there. What servers may read in two ways is refused."""
        wanted = _place(url)
        return wanted is not None and any(_inside(wanted, prefix) for prefix in self._places)


def _place(url: str) -> _Place | None:
    try:
        parts = urlsplit(url)
        port = parts.port if parts.port is not None else _PORTS.get(parts.scheme)
    except ValueError:
        return None
    if port is None or not port or not parts.hostname or "@" in parts.netloc or not url.isprintable():
        return None
    # `..` and `\` lead out of a prefix at servers that resolve them, percent-encoded or not, also twice.
    path = unquote(unquote(parts.path))
    if "\\" in url or " " in url or ".." in path.split("/") or "." in path.split("/") or "//" in path:
        return None
    return _Place(parts.scheme, parts.hostname.rstrip("."), port, parts.path)


def _inside(wanted: _Place, prefix: _Place) -> bool:
    if (wanted.scheme, wanted.host, wanted.port) != (prefix.scheme, prefix.host, prefix.port):
        return False
    start = prefix.path.rstrip("/")
    return wanted.path == start or wanted.path.startswith(start + "/") or not start

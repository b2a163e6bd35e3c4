"""Who may change something: the holder of the token or, where none is set, a program on this machine."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from sidecar.api.replies import failure


@dataclass(frozen=True, slots=True)
class Guard:
    """Who may ask one site for a change. `local`: it is on a Unix socket, and its mode has decided already."""

    token_file: Path | None = None
    local: bool = False

    def refusal(self, request: Request) -> Response | None:
        """None for a request that may go on."""
        return None if self.local else refusal(request, self.token_file)

    def named(self, request: Request) -> Response | None:
        """The same where being on this machine is not enough: the token, or the Unix socket."""
        if not self.local and self.token_file is None:
            return failure(403, "set http.token_file and send the token, or use the Unix socket in run_dir")
        return self.refusal(request)


def refusal(request: Request, token_file: Path | None) -> Response | None:
    """None for a request that may go on.

    Without a token the sender must be on this machine. A browser there can be made to send requests by any page,
    and to read the answers if the page's host name is rebound to 127.0.0.1; such requests carry the page's host in
    Host or Origin, so both have to name this machine.
    """
    if token_file is not None:
        return _by_token(request, token_file)
    client = request.client.host if request.client else ""
    if not _is_local(client):
        return failure(403, "without http.token_file only this machine may POST: set a token, or ask from the pod")
    origin = request.headers.get("origin")
    named = [f"//{request.headers.get('host', '')}", *([] if origin is None else [origin])]
    if not all(_is_local(_host_of(url)) for url in named):
        return failure(403, "the Host or Origin header names another machine: set http.token_file to allow it")
    return None


def _by_token(request: Request, token_file: Path) -> Response | None:
    try:
        token = token_file.read_bytes().strip()
    except OSError as e:
        return failure(503, f"http.token_file cannot be read: {e.strerror}")
    if not token:
        return failure(503, "http.token_file is empty")
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # compared in constant time: how long the answer takes says nothing about the token
    if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), token):
        return None
    return failure(401, "a valid `Authorization: Bearer` token is needed", headers={"WWW-Authenticate": "Bearer"})


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_local(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        address = ip_address(host or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:127.0.0.1, on a socket for both families
    return bool((mapped or address).is_loopback)

"""How commands ask a running sidecar: over HTTP with its token, or through its Unix socket."""

from __future__ import annotations

import functools
import getpass
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import click

from sidecar.errors import shown_url

_F = TypeVar("_F", bound=Callable[..., Any])
_TIMEOUT_S = 10.0


class Asking:
    """One sidecar. What it refuses, and that it cannot be reached, is printed; the exit status is then 1."""

    def __init__(self, url: str, socket: Path | None, token_file: Path | None) -> None:
        self._url, self._socket, self._token_file = url.rstrip("/"), socket, token_file

    def but(self, url: str | None, socket: Path | None, token_file: Path | None) -> Asking:
        """The same, with what is given in the place of what was."""
        return Asking(url or self._url, socket or (None if url else self._socket), token_file or self._token_file)

    def __call__(self, method: str, path: str, form: Mapping[str, str] | None = None, **params: str) -> Any:
        """The `data` of the answer."""
        import httpx

        where = f"the socket {self._socket}" if self._socket else shown_url(self._url)
        if self._socket and not self._socket.is_socket():
            fail(f"{where} cannot be reached: there is no such socket (is the sidecar running? --url, --socket)")
        headers = {} if self._token_file is None else {"Authorization": bearer(self._token_file)}
        transport = httpx.HTTPTransport(uds=str(self._socket)) if self._socket else None
        base = "http://localhost" if self._socket else self._url
        try:
            with httpx.Client(transport=transport, trust_env=False, timeout=_TIMEOUT_S, headers=headers) as client:
                sent = {k: v.encode(errors="replace").decode() for k, v in (form or {}).items() if v}
                answer = client.request(method, base + path, data=sent or None, params=params or None)
                said = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as e:
            why = "not an address" if isinstance(e, httpx.InvalidURL) else str(e)  # its text may hold a password
            fail(f"{where} cannot be reached: {why} (is the sidecar running? --url, --socket)")
        except ValueError:
            fail(f"{where} does not answer like a sidecar")
        if answer.status_code != 200:
            fail(str(said.get("error", f"HTTP {answer.status_code}") if isinstance(said, dict) else said))
        return said["data"]


def fail(message: str) -> Any:
    """Prints it and leaves with status 1."""
    click.echo(f"spikewatch: {message}", err=True)
    sys.exit(1)


def bearer(token_file: Path) -> str:
    """What `Authorization` says with the token of a file. Leaves with status 1 where there is none in it; a message
    never shows what the file holds."""
    try:
        found = token_file.read_bytes().decode("ascii").strip()
    except OSError as e:
        fail(f"{token_file} cannot be read: {e.strerror}")
    except UnicodeDecodeError:
        found = ""
    if not found or not found.isprintable():
        fail(f"{token_file} holds no token: it must be one line of ASCII text")
    return f"Bearer {found}"


def sidecar_options(command: _F) -> _F:
    """Which sidecar is asked."""
    return _options("http://127.0.0.1:9478", command)


def asking_too(command: Callable[..., Any]) -> Callable[..., Any]:
    """For a command below one with `sidecar_options`: they may stand behind it as well. Gives it the Asking."""

    @click.pass_obj
    @functools.wraps(command)
    def asked(before: Asking, /, url: str | None, socket: Path | None, token_file: Path | None, **given: Any) -> Any:
        return command(before.but(url, socket, token_file), **given)

    return _options(None, asked)


def _options(url: str | None, command: _F) -> _F:
    for option in (
        click.option("--token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its token."),
        click.option("--socket", type=click.Path(path_type=Path), help="Its Unix socket, run_dir/api.sock: no token."),
        click.option("--url", default=url, show_default=url is not None, help="Its address."),
    ):
        command = option(command)
    return command


def in_path(text: str) -> str:
    """A name as one part of an address, whatever is in it, also bytes that are no text."""
    return quote(text, safe="", errors="replace")


def who() -> str:
    """The name a decision is recorded under, where none is given."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as containers have
        return "cli"

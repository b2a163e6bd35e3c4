"""How one Alertmanager is reached: address, credentials, TLS."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.errors import ConfigError, Problem
from sidecar.settings import Alertmanager, Tls

if TYPE_CHECKING:
    import httpx

PATH = "/api/v2/alerts"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One Alertmanager of the configuration; its relative paths start at `folder`."""

    settings: Alertmanager
    folder: Path = Path()

    @property
    def url(self) -> str:
        """Where alerts are posted."""
        return self.settings.url + PATH

    def headers(self) -> Mapping[str, str]:
        """Of one request. Secrets are read anew each time, because they rotate. Raises OSError."""
        found = {"Content-Type": "application/json", "User-Agent": "spikewatch"}
        basic, bearer = self.settings.basic_auth, self.settings.bearer_token_file
        if basic is not None:
            password = basic.password.get_secret_value() if basic.password else ""
            if basic.password_file is not None:
                password = self._secret(basic.password_file)
            found["Authorization"] = "Basic " + base64.b64encode(f"{basic.username}:{password}".encode()).decode()
        if bearer is not None:
            found["Authorization"] = "Bearer " + self._secret(bearer)
        return found

    def extensions(self) -> Mapping[str, str]:
        """httpx request extensions: the name to expect in the server's certificate."""
        tls = self.settings.tls
        return {"sni_hostname": tls.server_name} if tls is not None and tls.server_name else {}

    def check(self) -> None:
        """Raises ConfigError when a TLS file cannot be used."""
        self._context()

    def client(self, transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
        """A client for this endpoint alone. Raises ConfigError when a TLS file cannot be used."""
        import httpx  # 10 MB of resident memory that only a sidecar with an Alertmanager pays

        return httpx.AsyncClient(
            transport=transport,
            verify=self._context(),
            trust_env=False,  # neither a proxy variable nor a .netrc may redirect alerts
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1),
        )

    def _context(self) -> ssl.SSLContext | bool:
        if not self.url.startswith("https:"):
            return False  # nothing to verify, and loading the authorities costs memory
        tls = self.settings.tls or Tls()
        try:
            context = ssl.create_default_context(cafile=tls.ca_file and self.folder / tls.ca_file)
            if tls.cert_file is not None and tls.key_file is not None:
                context.load_cert_chain(self.folder / tls.cert_file, self.folder / tls.key_file)
        except (OSError, ssl.SSLError) as e:
            raise ConfigError([Problem(f"alertmanagers: {self.url}", 0, 0, f"a tls file cannot be used: {e}")]) from e
        if tls.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _secret(self, path: Path) -> str:
        return (self.folder / path).read_text(encoding="utf-8").strip()

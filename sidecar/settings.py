"""What the user sets: one YAML file, overlaid by the environment (`SPIKEWATCH_HTTP__LISTEN=…`).

Everything here is documented in docs/configuration.md; a test compares the two.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from sidecar import durations
from sidecar.errors import ConfigError, Problem
from sidecar.yamlfile import Document

SHIPPED = "shipped:"
"""Prefix of a glob that names files shipped with spikewatch, e.g. `shipped:**/*.rules.yaml`."""

_ENV = "SPIKEWATCH_"
_NOT_SETTINGS = frozenset(
    f"SPIKEWATCH_{name}"
    for name in ("SOCKET", "JOB", "DISABLE", "SEARCH", "TRUSTED_UIDS", "AUTOATTACH")  # the trainer's
    + ("PEERS", "CORPUS")  # the tests'
)


def _milliseconds(value: object) -> object:
    if isinstance(value, str) or (value == 0 and not isinstance(value, bool)):
        return durations.parse(str(value))
    if isinstance(value, int | float):
        raise ValueError(f"write a duration with its unit, like {value}s")
    return value


Duration = Annotated[int, BeforeValidator(_milliseconds)]
"""A Prometheus duration in the file, milliseconds in the program."""


def _no_nul(value: Path) -> Path:
    if "\0" in str(value):
        raise ValueError("a path holds no NUL character")
    return value


FilePath = Annotated[Path, AfterValidator(_no_nul)]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Listen(_Closed):
    """A listener's address, `host:port`."""

    listen: str

    @field_validator("listen")
    @classmethod
    def _address(cls, value: str) -> str:
        host, colon, port = value.rpartition(":")
        if not colon or not host or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"not an address: {value!r} (write host:port, like 127.0.0.1:9478)")
        return value

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


class Http(Listen):
    """The full listener: API, page, reload. Keep it on loopback."""

    listen: str = "127.0.0.1:9478"
    token_file: FilePath | None = None


class Metrics(Listen):
    """The listener Prometheus scrapes: /metrics and health only."""

    listen: str = "0.0.0.0:9479"


class BasicAuth(_Closed):
    """User and password of an HTTP server; the password here or, better, in a file of its own."""

    username: str
    password: SecretStr | None = None
    password_file: FilePath | None = None

    @model_validator(mode="after")
    def _one_password(self) -> BasicAuth:
        if self.password is not None and self.password_file is not None:
            raise ValueError("give password or password_file, not both")
        return self


class Tls(_Closed):
    """How to trust, and be trusted by, an https server. Without `ca_file` the system's authorities are trusted."""

    ca_file: FilePath | None = None
    cert_file: FilePath | None = None
    key_file: FilePath | None = None
    server_name: str | None = None
    insecure_skip_verify: bool = False

    @model_validator(mode="after")
    def _pair(self) -> Tls:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together")
        return self


class Alertmanager(_Closed):
    """One Alertmanager; every one of them gets every alert."""

    url: str
    basic_auth: BasicAuth | None = None
    bearer_token_file: FilePath | None = None
    tls: Tls | None = None

    @model_validator(mode="after")
    def _one_identity(self) -> Alertmanager:
        if self.basic_auth is not None and self.bearer_token_file is not None:
            raise ValueError("give basic_auth or bearer_token_file, not both")
        return self

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port beyond 65535, a bracket that does not close
            usable = False
        if not usable or not value.isprintable() or " " in value:
            raise ValueError(f"not an http(s) URL: {value!r}")
        if "@" in value.partition("//")[2].partition("/")[0]:
            raise ValueError("credentials belong into basic_auth, not into the URL")
        return value.rstrip("/")


class StoreSettings(_Closed):
    """Bounds of the in-memory store."""

    max_series: int = Field(50_000, ge=100)
    max_series_per_metric: int = Field(10_000, ge=10)
    min_keep: Duration = Field(900_000, ge=60_000)


class PluginSettings(_Closed):
    """Which plugins of other packages may be loaded; the code of any other is never imported."""

    allow: tuple[str, ...] = ()


class Egress(_Closed):
    """Where responses may send requests: URL prefixes. Empty, they may send none."""

    allow: tuple[str, ...] = ()
    timeout: Duration = Field(5_000, ge=100, le=60_000)
    token_file: FilePath | None = None

    @field_validator("allow")
    @classmethod
    def _prefixes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for prefix in value:
            parts = urlsplit(prefix)
            if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
                raise ValueError(f"not a URL prefix: {prefix!r} (write https://host/path/)")
            if parts.query or parts.fragment or not prefix.isprintable() or " " in prefix:
                raise ValueError(f"a URL prefix has no query and no blanks: {prefix!r}")
        return value


class Settings(_Closed):
    """spikewatch.yaml. Paths and globs are relative to the file's folder."""

    state_dir: FilePath = Path("/var/lib/spikewatch")
    run_dir: FilePath = Path("/run/spikewatch")
    trainer_uids: tuple[Annotated[int, Field(ge=0, strict=True)], ...] = ()
    rules: tuple[str, ...] = (SHIPPED + "**/*.rules.yaml",)
    responses: tuple[str, ...] = (SHIPPED + "responses.yaml",)
    caps: FilePath | None = None
    kill_switch: FilePath | None = None
    overrides: FilePath | None = None
    external_labels: Mapping[str, str] = Field(default_factory=dict)
    evaluation_interval: Duration = Field(1_000, ge=50)
    http: Http = Field(default_factory=Http)
    metrics: Metrics | None = Field(default_factory=Metrics)
    alertmanagers: tuple[Alertmanager, ...] = ()
    resend_delay: Duration = Field(60_000, ge=1_000)
    silence_interval: Duration = Field(15_000, ge=1_000)
    external_url: str = ""
    collectors: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    dcgm_names: bool = False
    collector_cpu_budget: float | None = Field(0.01, gt=0, le=64, allow_inf_nan=False)
    store: StoreSettings = Field(default_factory=StoreSettings)
    plugins: PluginSettings = Field(default_factory=PluginSettings)
    egress: Egress = Field(default_factory=Egress)
    usd_per_gpu_hour: float | None = Field(None, ge=0, allow_inf_nan=False)
    gpus: int | None = Field(None, ge=1, strict=True)

    @field_validator("external_labels")
    @classmethod
    def _label_names(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        if wrong := [name for name in value if not name or name == "__name__"]:
            raise ValueError(f"not a label name: {wrong[0]!r}")
        return value

    @model_validator(mode="after")
    def _two_listeners(self) -> Settings:
        if self.metrics is not None and self.metrics.listen == self.http.listen and self.http.address[1]:
            raise ValueError(f"http and metrics cannot both listen on {self.http.listen}")
        return self

    @field_validator("rules", "responses", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value


class Loaded:
    """Settings with where they came from: positions for later complaints, the folder, and a hash of the content."""

    def __init__(self, settings: Settings, document: Document, folder: Path) -> None:
        self.settings, self.document, self.folder = settings, document, folder
        content = json.dumps(settings.model_dump(mode="json"), sort_keys=True)
        self.hash = hashlib.sha256(content.encode()).hexdigest()[:16]

    def path(self, value: Path | str) -> Path:
        """A path of the file, made absolute."""
        return self.folder / Path(value).expanduser()


def load(path: Path | None, environ: Mapping[str, str] | None = None) -> Loaded:
    """Reads file (None: defaults only) and environment. Raises ConfigError listing every problem of both."""
    document = Document("(defaults)", "") if path is None else Document.read(path)
    folder = Path.cwd() if path is None else path.resolve().parent
    if document.value is not None and not isinstance(document.value, dict):
        raise ConfigError([document.problem((), "the configuration must be a mapping of settings")])
    value: dict[str, Any] = dict(document.value or {})
    origin: dict[tuple[str, ...], str] = {}
    problems: list[Problem] = document.surplus()
    for name, text in sorted((os.environ if environ is None else environ).items()):
        if name.startswith(_ENV) and name not in _NOT_SETTINGS:
            _overlay(value, origin, problems, name, text)
    try:
        settings = Settings.model_validate(value)
    except ValidationError as e:
        for item, located in zip(e.errors(include_url=False), document.located(e), strict=True):
            loc = tuple(str(p) for p in item["loc"])
            source = next((origin[loc[:n]] for n in range(len(loc), 0, -1) if loc[:n] in origin), None)
            problems.append(Problem(f"environment {source}", 0, 0, located.message) if source else located)
    if problems:
        raise ConfigError(sorted(problems, key=lambda p: (p.line, p.column)))
    return Loaded(settings, document, folder)


def _overlay(
    value: dict[str, Any], origin: dict[tuple[str, ...], str], problems: list[Problem], name: str, text: str
) -> None:
    path = tuple(part.lower() for part in name.removeprefix(_ENV).split("__"))
    try:
        parsed = Document(f"environment {name}", text).value
    except ConfigError as e:
        problems.extend(Problem(p.file, 0, 0, p.message) for p in e.problems)
        return
    target = value
    for part in path[:-1]:
        inner = target.get(part)
        target[part] = dict(inner) if isinstance(inner, dict) else {}
        target = target[part]
    target[path[-1]] = parsed
    origin[path] = name

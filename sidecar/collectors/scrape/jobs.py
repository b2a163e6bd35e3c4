"""What to scrape: jobs with Prometheus's key names, and limits that hold where nobody set any."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from sidecar.collectors.scrape.relabel import RelabelConfig, relabel
from sidecar.hooks import CollectorSettings
from sidecar.settings import BasicAuth, Duration, Tls

_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "KIB": 1 << 10, "MIB": 1 << 20, "GB": 1 << 30, "GIB": 1 << 30}


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StaticConfig(_Closed):
    """Targets and labels they all have."""

    targets: tuple[str, ...]
    labels: Mapping[str, str] = Field(default_factory=dict)


class Authorization(_Closed):
    """The Authorization header; the credentials here or, better, in a file, which is read before each scrape."""

    type: str = "Bearer"
    credentials: SecretStr | None = None
    credentials_file: Path | None = None


class Job(_Closed):
    """One entry of Prometheus's `scrape_configs`, as far as it fits a sidecar, and what it is the `source` of."""

    job_name: str = Field(min_length=1)
    source: str = ""  # e.g. gateway: declares this signal's source as configured
    static_configs: tuple[StaticConfig, ...]
    scheme: Literal["http", "https"] = "http"
    metrics_path: str = "/metrics"
    params: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    scrape_interval: Duration = Field(15_000, ge=1_000)
    scrape_timeout: Duration = Field(10_000, ge=100, le=60_000)
    honor_labels: bool = False
    basic_auth: BasicAuth | None = None
    authorization: Authorization | None = None
    tls_config: Tls | None = None
    relabel_configs: tuple[RelabelConfig, ...] = ()
    metric_relabel_configs: tuple[RelabelConfig, ...] = ()
    body_size_limit: int = Field(10 << 20, ge=1)  # bytes, uncompressed
    sample_limit: int = Field(1_000, ge=1, le=10_000)  # after relabelling; a page with more is refused
    label_limit: int = Field(64, ge=1)
    label_name_length_limit: int = Field(256, ge=1)
    label_value_length_limit: int = Field(1_024, ge=1)

    @field_validator("body_size_limit", mode="before")
    @classmethod
    def _size(cls, value: object) -> object:
        found = re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", value.strip()) if isinstance(value, str) else None
        if found is None:
            return value
        if found[2].upper() not in _UNITS:
            raise ValueError(f"not a size: {value!r} (write bytes, or a number with KB, MB, GB)")
        return int(found[1]) * _UNITS[found[2].upper()]

    @model_validator(mode="after")
    def _one_identity(self) -> Job:
        if self.basic_auth is not None and self.authorization is not None:
            raise ValueError("give basic_auth or authorization, not both")
        return self


class ScrapeSettings(CollectorSettings):
    """`collectors: {scrape: {jobs: […]}}`."""

    jobs: tuple[Job, ...] = ()
    max_targets: int = Field(32, ge=1, le=256)

    @field_validator("jobs")
    @classmethod
    def _distinct(cls, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
        names = [job.job_name for job in jobs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"job_name {name!r} is there twice")
        return jobs


@dataclass(frozen=True, slots=True)
class Target:
    """One page to fetch, and the labels its samples get."""

    job: Job
    url: str
    labels: Mapping[str, str]  # job, instance, and what the configuration adds

    def headers(self) -> dict[str, str]:
        """Of one request. Secrets are read anew each time, for they rotate. Raises OSError."""
        seconds = self.job.scrape_timeout / 1000
        found = {
            "Accept": "application/openmetrics-text;version=1.0.0;q=0.9,text/plain;version=0.0.4;q=0.8,*/*;q=0.1",
            "User-Agent": "spikewatch",
            "X-Prometheus-Scrape-Timeout-Seconds": f"{seconds:g}",
        }
        basic, authorization = self.job.basic_auth, self.job.authorization
        if basic is not None:
            password = _secret(basic.password, basic.password_file)
            found["Authorization"] = "Basic " + base64.b64encode(f"{basic.username}:{password}".encode()).decode()
        elif authorization is not None:
            secret = _secret(authorization.credentials, authorization.credentials_file)
            found["Authorization"] = f"{authorization.type} {secret}"
        return found

    def context(self) -> ssl.SSLContext | bool:
        """Raises OSError (of which an SSL error is one) when a file cannot be used."""
        if not self.url.startswith("https:"):
            return False
        tls = self.job.tls_config or Tls()
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file is not None and tls.key_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        if tls.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def targets(job: Job) -> Iterator[Target]:
    """The targets that `relabel_configs` leaves, with their addresses as it made them."""
    for group in job.static_configs:
        for address in group.targets:
            labels = {
                "job": job.job_name,
                "__scheme__": job.scheme,
                "__metrics_path__": job.metrics_path,
                **{f"__param_{name}": values[0] for name, values in job.params.items() if values},
                **group.labels,
                "__address__": address,
            }
            found = relabel(labels, job.relabel_configs)
            if found is None or not found.get("__address__"):
                continue
            parameters = {name: list(values) for name, values in job.params.items()}
            for name in [name for name in found if name.startswith("__param_")]:
                parameters[name.removeprefix("__param_")] = [
                    found[name],
                    *parameters.get(name.removeprefix("__param_"), [])[1:],
                ]
            query = urlencode(parameters, doseq=True)
            path = "/" + found.get("__metrics_path__", "/metrics").lstrip("/")
            url = f"{found.get('__scheme__', 'http')}://{found['__address__']}{path}{'?' + query if query else ''}"
            kept = {name: value for name, value in found.items() if not name.startswith("__")}
            yield Target(job, url, {"instance": found["__address__"], **kept})


def _secret(value: SecretStr | None, file: Path | None) -> str:
    if file is not None:
        return file.read_text(encoding="utf-8").strip()
    return value.get_secret_value() if value is not None else ""

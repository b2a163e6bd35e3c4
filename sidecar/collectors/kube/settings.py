"""What the kube collector can be told."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from sidecar.collectors.kube.objects import INSTANCE_TYPE
from sidecar.hooks import CollectorSettings
from sidecar.settings import Duration

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class KubeSettings(CollectorSettings):
    """`collectors: {kube: …}`. Off unless switched on: one process of a cluster asks its API, not every pod."""

    enabled: bool = False
    interval: Duration = Field(5_000, ge=1_000)  # only looks whether it is time; slowed 32 times it is still found
    worth: int = Field(60, ge=0, le=100)
    deadline: Duration = Field(60_000, ge=1_000)
    refresh: Duration = Field(60_000, ge=10_000)  # from one list of all pods to the next
    server: str = ""  # base URL of the API; empty: as the kubelet tells every pod by its environment
    token_file: Path = _ACCOUNT / "token"
    ca_file: Path = _ACCOUNT / "ca.crt"
    namespaces: tuple[str, ...] = ()  # empty: all
    page_size: int = Field(250, ge=10, le=5_000)  # objects of one answer: memory while it is read
    max_pages: int = Field(400, ge=1, le=10_000)  # of one list
    max_pods: int = Field(2_000, ge=1, le=2_400)  # with series; the costliest
    prices: Path | None = None  # the price book
    pod_cost_limit_usd_per_hour: float | None = Field(None, gt=0, allow_inf_nan=False)
    instance_type_label: str = Field(INSTANCE_TYPE, min_length=1)

    @field_validator("server")
    @classmethod
    def _url(cls, value: str) -> str:
        if value and not value.startswith(("https://", "http://")):
            raise ValueError(f"not an http(s) URL: {value!r}")
        return value.rstrip("/")

    @field_validator("namespaces")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not name or not all(c.isascii() and (c.isalnum() or c == "-") for c in name):
                raise ValueError(f"not a namespace: {name!r}")
        return value

"""What an AWS account has in a region: volumes with IOPS that cost extra, instances that run. Asking EC2 is free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sidecar.collectors.cost.aws import called
from sidecar.errors import CollectError

PAGES = 100  # of a thousand
INCLUDED = {"gp3": 3_000.0}
"""IOPS that come with a volume of a type, whoever uses them; more is billed."""


def provisioned(client: Any) -> dict[str, float]:
    """IOPS by volume, of attached volumes that pay for some. `client` is EC2's. Raises CollectError."""
    filters = [{"Name": "volume-type", "Values": ["io1", "io2", "gp3"]}, {"Name": "status", "Values": ["in-use"]}]
    found = {}
    for volume in _all(client.describe_volumes, "Volumes", filters):
        iops = float(volume.get("Iops") or 0)
        if iops > INCLUDED.get(str(volume.get("VolumeType")), 0.0):
            found[str(volume["VolumeId"])] = iops
    return found


def running(client: Any) -> list[str]:
    """Ids of the instances that run. `client` is EC2's. Raises CollectError."""
    filters = [{"Name": "instance-state-name", "Values": ["running"]}]
    reservations = _all(client.describe_instances, "Reservations", filters)
    return sorted(str(one["InstanceId"]) for r in reservations for one in r.get("Instances", ()))


def _all(method: Any, what: str, filters: list[dict[str, Any]]) -> Iterator[Mapping[str, Any]]:
    token = ""
    for _ in range(PAGES):
        page = called(method, Filters=filters, MaxResults=1000, **({"NextToken": token} if token else {}))
        yield from page.get(what, ())
        token = page.get("NextToken") or ""
        if not token:
            return
    raise CollectError("cost", "too_many_pages", f"EC2 has more than {PAGES} pages of {what}")

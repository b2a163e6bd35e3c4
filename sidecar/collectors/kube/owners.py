"""Who owns a pod, as people know it: the Deployment behind its ReplicaSet, the CronJob behind its Job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sidecar.collectors.kube.api import JOBS, REPLICA_SETS, Api
from sidecar.collectors.kube.objects import Owner, Pod, owner
from sidecar.errors import CollectError

_BEHIND = {"ReplicaSet": REPLICA_SETS, "Job": JOBS}

_Key = tuple[str, str]  # namespace, name


class Owners:
    """Remembers what is behind each ReplicaSet and Job: a list is asked for only when there is a new one."""

    def __init__(self) -> None:
        self._behind: dict[str, dict[_Key, Owner]] = {kind: {} for kind in _BEHIND}
        self.failures: list[CollectError] = []  # of the newest `resolved`

    def resolved(self, pods: Iterable[Pod], api: Api, namespaces: Sequence[str]) -> list[Pod]:
        """The pods with their outermost owner; with the nearest where we may not ask. Raises CollectError."""
        pods, self.failures = list(pods), []
        for kind in _BEHIND:
            wanted = {(pod.namespace, pod.owner.name) for pod in pods if pod.owner.kind == kind}
            if wanted - self._behind[kind].keys():
                self._learn(kind, wanted, api, namespaces)
            else:
                self._behind[kind] = {key: self._behind[kind][key] for key in wanted}  # not those that are gone
        return [replace(pod, owner=self._of(pod)) for pod in pods]

    def _of(self, pod: Pod) -> Owner:
        return self._behind.get(pod.owner.kind, {}).get((pod.namespace, pod.owner.name), pod.owner)

    def _learn(self, kind: str, wanted: set[_Key], api: Api, namespaces: Sequence[str]) -> None:
        found: dict[_Key, Owner] = {}

        def keep(item: Mapping[str, Any]) -> None:
            try:
                metadata = item["metadata"]
                key = str(metadata["namespace"]), str(metadata["name"])
                if key in wanted:
                    found[key] = _outer(owner(metadata), Owner(kind, key[1]))
            except (KeyError, TypeError, AttributeError):
                pass  # its pods keep the owner they name

        try:
            api.listed(_BEHIND[kind], keep, namespaces)
        except CollectError as e:
            if e.reason != "forbidden":
                raise  # a pod must not change its owner for a minute
            self.failures.append(e)
            return
        # One that is deleted while its pods still end is not looked for again each minute.
        self._behind[kind] = {key: found.get(key, Owner(kind, key[1])) for key in wanted}


def _outer(behind: Owner, itself: Owner) -> Owner:
    return behind if behind.kind else itself

"""A Kubernetes API server for the tests, on the loopback: lists in pages, tokens, permissions, field selectors."""

from __future__ import annotations

import json
import re
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_PATH = re.compile(r"(?:/api/v1|/apis/(?P<group>[a-z.]+)/v1)(?:/namespaces/(?P<namespace>[a-z0-9-]+))?/(?P<plural>\w+)")


class Cluster:
    """Objects by plural. What a test changes counts from the next request on."""

    def __init__(self):
        self.objects = {"pods": [], "nodes": [], "replicasets": [], "jobs": []}
        self.tokens = {"first"}
        self.granted = {("", "pods"), ("", "nodes"), ("apps", "replicasets"), ("batch", "jobs")}
        self.asked = []  # (plural, namespace, query, Accept)
        self.expire = 0  # so many continuations are answered with 410 Gone
        self.answer = None  # (status, body) for everything
        self.url = ""

    def pod(self, name, node="n1", namespace="train", owner=None, phase="Running", containers=None, **requests):
        spec = {"containers": containers or [{"name": "main", "resources": {"requests": requests}}]}
        if node:
            spec["nodeName"] = node
        self.objects["pods"].append(
            {"metadata": _metadata(name, namespace, owner), "spec": spec, "status": {"phase": phase}}
        )

    def node(self, name="n1", instance_type="m5.xlarge", region="eu-west-1", labels=(), **allocatable):
        own = {"node.kubernetes.io/instance-type": instance_type, "topology.kubernetes.io/region": region}
        labels = {k: v for k, v in {**own, **dict(labels)}.items() if v}
        self.objects["nodes"].append(
            {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable or ALLOCATABLE}}
        )

    def behind(self, plural, name, namespace="train", owner=None):
        """A ReplicaSet or Job, with a body that only a list of whole objects holds."""
        self.objects[plural].append({"metadata": _metadata(name, namespace, owner), "spec": {"replicas": 1}})

    def listed(self, plural, namespace, query):
        """The page that the query asks for. Raises LookupError where its continuation has expired."""
        found = [o for o in self.objects[plural] if not namespace or o["metadata"].get("namespace") == namespace]
        for wish in filter(None, query.get("fieldSelector", "").split(",")):
            path, _, value = wish.partition("!=")
            found = [o for o in found if _field(o, path) != value]
        start, limit = int(query.get("continue", 0)), int(query.get("limit", 500))
        if start and self.expire:
            self.expire -= 1
            raise LookupError
        more = str(start + limit) if start + limit < len(found) else ""
        return {"metadata": {"continue": more} if more else {}, "items": found[start : start + limit]}


ALLOCATABLE = {"cpu": "4", "memory": "16Gi", "pods": "110"}


def _metadata(name, namespace, owner):
    found = {"name": name, "namespace": namespace}
    if owner:
        kind, _, of = owner.partition("/")
        helper = {"kind": "ConfigMap", "name": "x"}  # an owner that does not control it
        found["ownerReferences"] = [helper, {"kind": kind, "name": of, "controller": True}]
    return found


def _field(found, path):
    for part in path.split("."):
        found = found.get(part, {})
    return found or ""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that has seen enough goes
            super().handle_error(request, client_address)


@contextmanager
def serving(cluster, context=None):
    """The cluster's API on the loopback; with an SSL context over https."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # head and body in one packet: two would wait for each other

        def do_GET(self):
            status, body = _answer(cluster, self.path, self.headers)
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = False  # closing waits for them
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    cluster.url = f"{'https' if context else 'http'}://127.0.0.1:{server.server_address[1]}"
    try:
        yield cluster
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(cluster, target, headers):
    url = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
    found = _PATH.fullmatch(url.path)
    if found is None:
        return 404, _status(404, "no such path")
    group, plural = found["group"] or "", found["plural"]
    cluster.asked.append((plural, found["namespace"] or "", query, headers.get("Accept", "")))
    if headers.get("Authorization", "").removeprefix("Bearer ") not in cluster.tokens:
        return 401, _status(401, "Unauthorized")
    if (group, plural) not in cluster.granted:
        who = 'User "system:serviceaccount:spikewatch:spikewatch"'
        return 403, _status(403, f'{plural} is forbidden: {who} cannot list resource "{plural}"')
    if cluster.answer is not None:
        return cluster.answer
    try:
        page = cluster.listed(plural, found["namespace"], query)
    except LookupError:
        return 410, _status(410, "The provided continue parameter is too old")
    if "PartialObjectMetadataList" in headers.get("Accept", ""):
        page["items"] = [{"metadata": item["metadata"]} for item in page["items"]]
    return 200, page


def _status(code, message):
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}

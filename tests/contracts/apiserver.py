"""An API server of Kubernetes, as far as ``kubectl`` needs one to make what it is given and to wait for it.

It keeps objects in memory, refuses those of a namespace that is not there, and has a Deployment or StatefulSet run as
soon as all that its pods name is there. It has no pods: nothing can be executed in them. It listens on loopback.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]
NAMESPACES = "namespaces"
PLURALS = {"NetworkPolicy": "networkpolicies"}
RUNNING = ("Deployment", "StatefulSet")


def plural(kind: str) -> str:
    """What objects of a kind are called in an address."""
    return PLURALS.get(kind, kind.lower() + "s")


class Cluster:
    """What there is in it.

    Parameters
    ----------
    kinds : dict of str to str
        The kinds that it knows, each with its apiVersion.
    may_run : callable
        Whether a Deployment or StatefulSet can run, beside what its pods name.
    """

    def __init__(self, kinds: dict[str, str], may_run: Callable[[Object], bool]) -> None:
        self.kinds = {"Namespace": "v1", "Secret": "v1", **kinds}
        self.objects: dict[str, Object] = {}
        self.changed: list[str] = []
        self._may_run = may_run

    def add(self, path: str, given: Object) -> Object | None:
        """Make an object of a collection; None where its namespace is not there."""
        [*_, before, namespace, _] = ["", "", *path.split("/")]
        if before == NAMESPACES and f"/api/v1/namespaces/{namespace}" not in self.objects:
            return None
        if given["kind"] in RUNNING:  # the defaults that kubectl goes by
            strategy = {"strategy" if given["kind"] == "Deployment" else "updateStrategy": {"type": "RollingUpdate"}}
            given = given | {"spec": {"replicas": 1} | strategy | given["spec"]}
        made = given | {"metadata": given["metadata"] | {"uid": path, "resourceVersion": "1", "generation": 1}}
        self.objects[f"{path}/{given['metadata']['name']}"] = made
        return made

    def change(self, path: str, patch: Object) -> None:
        """Patch an object; what it asks for is ``changed`` when it is another thing than before."""
        before = self.objects[path]
        after = self.objects[path] = merged(before, patch)
        if before | {"metadata": None} != after | {"metadata": None}:
            self.changed.append(path)

    def told(self, path: str) -> Object | None:
        """An object with its state."""
        found = self.objects.get(path)
        if found is None or found["kind"] not in RUNNING or not self._runs(path, found):
            return found
        n = found["spec"].get("replicas", 1)
        counts = dict.fromkeys(
            ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "currentReplicas"), n
        )
        revisions = {"currentRevision": "1", "updateRevision": "1", "observedGeneration": 1}
        return found | {"status": counts | revisions}

    def _runs(self, path: str, found: Object) -> bool:
        namespace = path.split("/namespaces/")[1].split("/")[0]
        core = f"/api/v1/namespaces/{namespace}"
        pod = found["spec"]["template"]["spec"]
        named = [
            f"{core}/configmaps/{one['configMapRef']['name']}"
            for c in pod["containers"]
            for one in c.get("envFrom", [])
        ]
        for volume in pod.get("volumes", []):
            if "secret" in volume:
                named.append(f"{core}/secrets/{volume['secret']['secretName']}")
            elif "persistentVolumeClaim" in volume:
                named.append(f"{core}/persistentvolumeclaims/{volume['persistentVolumeClaim']['claimName']}")
        return all(one in self.objects for one in named) and self._may_run(found)

    def groups(self) -> dict[str, list[str]]:
        """The kinds of each apiVersion."""
        found: dict[str, list[str]] = {}
        for kind, version in self.kinds.items():
            found.setdefault(version, []).append(kind)
        return found

    def discovered(self, path: str) -> Object | None:
        """What it says of itself at an address; None for addresses of objects."""
        groups = self.groups()
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            named = [version.split("/") for version in groups if "/" in version]
            every = [{"groupVersion": f"{group}/{version}", "version": version} for group, version in named]
            return {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [
                    {"name": group, "versions": [one], "preferredVersion": one}
                    for (group, _), one in zip(named, every, strict=True)
                ],
            }
        version = path.removeprefix("/apis/").removeprefix("/api/")
        if version not in groups:
            return None
        verbs = ["create", "get", "list", "patch", "watch"]
        resources = [
            {"name": plural(kind), "kind": kind, "namespaced": kind != "Namespace", "singularName": "", "verbs": verbs}
            for kind in groups[version]
        ]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


def merged(found: Any, patch: Any) -> Any:
    """What a merge patch (RFC 7386) makes of a value; a strategic one's directives (``$patch``) are passed over."""
    if not isinstance(patch, dict):
        return patch
    kept = {key: value for key, value in found.items() if key not in patch} if isinstance(found, dict) else {}
    return kept | {
        key: merged((found or {}).get(key), value)
        for key, value in patch.items()
        if value is not None and key[0] != "$"
    }


class Handler(BaseHTTPRequestHandler):
    """Requests of ``kubectl``."""

    protocol_version = "HTTP/1.1"
    cluster: Cluster
    ending: threading.Event

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        asked = parse_qs(address.query)
        said = self.cluster.discovered(address.path)
        if said is None and address.path.rpartition("/")[2] in map(plural, self.cluster.kinds):
            if "watch" in asked:
                self._watched()
                return
            self._answer(200, self._listed(address.path, asked))
            return
        said = said or self.cluster.told(address.path)
        self._answer(404 if said is None else 200, said)

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        made = self.cluster.add(urlsplit(self.path).path, given)
        self._answer(404 if made is None else 201, made)

    def do_PATCH(self) -> None:
        patch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = urlsplit(self.path).path
        self.cluster.change(path, patch)
        self._answer(200, self.cluster.told(path))

    def _listed(self, path: str, asked: dict[str, list[str]]) -> Object:
        [selected] = asked.get("fieldSelector", [""])
        names = [path + "/" + selected.removeprefix("metadata.name=")] if selected else list(self.cluster.objects)
        found = [self.cluster.told(one) for one in names if one.rpartition("/")[0] == path]
        kinds = {plural(kind): (kind, version) for kind, version in self.cluster.kinds.items()}
        kind, version = kinds[path.rpartition("/")[2]]
        return {"kind": f"{kind}List", "apiVersion": version, "metadata": {"resourceVersion": "1"}, "items": found}

    def _watched(self) -> None:
        """Nothing changes by itself."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        self.ending.wait()

    def _answer(self, status: int, said: Object | None) -> None:
        missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
        body = json.dumps(missing if said is None else said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def listening(cluster: Cluster) -> Iterator[str]:
    """The URL at which a cluster is asked."""
    ending = threading.Event()
    handler = type("Own", (Handler,), {"cluster": cluster, "ending": ending})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            ending.set()
            server.shutdown()
            thread.join()

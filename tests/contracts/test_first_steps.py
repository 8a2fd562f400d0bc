"""The first steps in a cluster, as the manual gives them: all that the manifests ask for, in order."""

from __future__ import annotations

import base64
import os
import re
import subprocess
from pathlib import Path

import yaml

from tests.contracts.apiserver import RUNNING, Cluster, Object, listening
from tests.contracts.manifests import one_of, pods, rendered
from tests.contracts.programs import needs
from tests.documents.blocks import ROOT, block_of
from tests.documents.session import make_programs

STANDS_IN = """#!/bin/sh
# What stands in for Kubernetes has no pods to run a program in: it runs here. Nor has it schemas, to validate by or to
# read the binary form of a secret. Nor is there a store before the first key.
case "$*" in
    *" exec deploy/worker -- "*) while [ "$1" != -- ]; do shift; done; shift; exec "$@" --new-store ;;
    *" port-forward "*) echo "$@" > forwarded ;;
    *" create secret "*) {kubectl} "$@" --dry-run=client -o json | {kubectl} create --validate=false -f - ;;
    *" rollout status "*) exec {kubectl} "$@" --timeout=120s ;;
    apply*) exec {kubectl} "$@" --validate=false ;;
    *) exec {kubectl} "$@" ;;
esac
"""


def steps() -> list[str]:
    """What the manual says to type in a cluster, in its order."""
    return [command.text for command in block_of(__file__).commands]


def test_the_manual_makes_all_that_the_manifests_ask_for_in_order() -> None:
    """Namespace, secret, store and worker, the first key, and only then replicas, which do not start without one."""
    lines = steps()
    documents = rendered("overlays/small")

    def at(*words: str) -> int:
        return next(i for i, line in enumerate(lines) if all(word in line for word in words))

    overlay = "apply -k deploy/kubernetes/overlays/small"
    order = [
        at("apply -f deploy/kubernetes/base/namespace.yaml"),
        at("create secret generic abound-store"),
        at(overlay, "-l app.kubernetes.io/component!=replica"),
        at("rollout status", "deployment/worker"),
        at("exec deploy/worker", "abound keys create"),
        next(i for i, line in enumerate(lines) if line.endswith(overlay)),
        at("rollout status", "deployment/replica"),
    ]
    assert order == sorted(order)
    secret = lines[order[1]]
    files = {"url", "password"}
    assert files == set(re.findall(r"--from-file=(\w+)", secret))
    assert "--from-literal" not in secret, "every user of the machine could read the password"
    asked_for = set(re.findall(r"/secrets/(\w+)", yaml.safe_dump_all(documents)))
    assert asked_for == files
    names = {
        volume["secret"]["secretName"] for pod in pods(documents) for volume in pod["volumes"] if "secret" in volume
    }
    assert names == {"abound-store"}
    # What the selector of the third step leaves out.
    labels = {(one["kind"], one["metadata"].get("labels", {}).get("app.kubernetes.io/component")) for one in documents}
    assert {kind for kind, name in labels if name == "replica"} == {"Deployment", "Service"}
    assert one_of(documents, "ConfigMap", "abound")["data"].get("ABOUND_INSECURE") is None


def test_the_steps_of_the_manual_start_all_that_there_is(tmp_path: Path) -> None:
    """By ``kubectl`` itself, line for line; a replica runs only once there is a key, as the manual says."""
    environment = environment_of(tmp_path)
    documents = rendered("overlays/small")

    def may_run(found: Object) -> bool:
        return found["metadata"]["name"] != "replica" or bool(keys(environment, tmp_path))

    cluster = Cluster({one["kind"]: one["apiVersion"] for one in documents}, may_run)
    cluster.add("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "monitoring"}})
    with listening(cluster) as url:
        cluster_file(tmp_path / "config", url)
        done = subprocess.run(
            ["bash", "-ec", "\n".join(steps())],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert cluster.changed == [], "the second apply asks for something else than the first"
    made = {path: one for path, one in cluster.objects.items() if "monitoring" not in path}
    wanted = {(one["kind"], one["metadata"]["name"]) for one in documents}
    assert {(one["kind"], one["metadata"]["name"]) for one in made.values()} == wanted | {("Secret", "abound-store")}
    assert all("status" in cluster.told(path) for path, one in made.items() if one["kind"] in RUNNING)  # type: ignore[operator]
    store = one_of(list(made.values()), "Secret", "abound-store")["data"]
    password, store_url = (base64.b64decode(store[name]).decode() for name in ("password", "url"))
    assert re.fullmatch("[0-9a-f]{48}", password)
    assert store_url == f"redis://:{password}@store:6379"
    metrics = cluster.objects["/api/v1/namespaces/monitoring/secrets/abound-metrics"]["data"]
    assert base64.b64decode(metrics["key"]).decode().startswith("abk_")
    assert not any((tmp_path / name).exists() for name in ("key", "password", "url"))
    assert [one["scopes"] for one in keys(environment, tmp_path)] == [["admin"], ["classify"]]
    [service, ports] = re.findall(r"service/(\w+) 8000:(\d+)", (tmp_path / "forwarded").read_text())[0]
    assert int(ports) in [port["port"] for port in one_of(documents, "Service", service)["spec"]["ports"]]


def environment_of(folder: Path) -> dict[str, str]:
    """With programs of this environment, and a ``kubectl`` that asks a server of our own."""
    kubectl = needs("kubectl")
    needs("openssl")
    programs = make_programs(folder)
    (programs / "kubectl").write_text(STANDS_IN.replace("{kubectl}", kubectl))
    (programs / "kubectl").chmod(0o755)
    (folder / "deploy").symlink_to(ROOT / "deploy")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ABOUND_")}
    return kept | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "KUBECONFIG": str(folder / "config"),
        "ABOUND_DATA_DIR": str(folder / "data"),
    }


def cluster_file(path: Path, url: str) -> None:
    context = {"name": "own", "context": {"cluster": "own", "user": ""}}
    clusters = [{"name": "own", "cluster": {"server": url}}]
    whole = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": clusters,
        "contexts": [context],
        "current-context": "own",
    }
    path.write_text(yaml.safe_dump(whole))


def keys(environment: dict[str, str], folder: Path) -> list[Object]:
    """Those that the steps have made, the oldest first."""
    if not (folder / "data").exists():
        return []
    done = subprocess.run(
        ["abound", "keys", "list", "--json"], env=environment, cwd=folder, capture_output=True, text=True, check=True
    )
    found: list[Object] = yaml.safe_load(done.stdout)["keys"]
    return sorted(found, key=lambda one: one["created"])

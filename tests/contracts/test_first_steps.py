"""The first steps in a cluster, as the manual gives them: all that the manifests ask for, in order."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.contracts.manifests import one_of, pods, rendered

ROOT = Path(__file__).parents[2]


def steps() -> list[str]:
    """What the manual says to type in a cluster, in its order."""
    section = (ROOT / "docs" / "operating.md").read_text().partition("### In Kubernetes\n")[2].partition("\n### ")[0]
    block = section.partition("```sh\n")[2].partition("```")[0]
    return [line for line in block.splitlines() if line and not line.startswith("#")]


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
        at(overlay, "-l app.kubernetes.io/name!=replica"),
        at("rollout status", "deployment/worker"),
        at("exec deploy/worker", "abound keys create"),
        next(i for i, line in enumerate(lines) if line.endswith(overlay)),
        at("rollout status", "deployment/replica"),
    ]
    assert order == sorted(order)
    secret = lines[order[1]]
    files = {"url", "password"}
    assert files == set(re.findall(r"--from-literal=(\w+)=", secret))
    asked_for = set(re.findall(r"/secrets/(\w+)", yaml.safe_dump_all(documents)))
    assert asked_for == files
    names = {
        volume["secret"]["secretName"] for pod in pods(documents) for volume in pod["volumes"] if "secret" in volume
    }
    assert names == {"abound-store"}
    # What the selector of the third step leaves out.
    labels = {(one["kind"], one["metadata"].get("labels", {}).get("app.kubernetes.io/name")) for one in documents}
    assert {kind for kind, name in labels if name == "replica"} == {"Deployment", "Service"}
    assert one_of(documents, "ConfigMap", "abound")["data"].get("ABOUND_INSECURE") is None

"""The manifests for Kubernetes as they are applied: what kustomize makes of their folders."""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.contracts.programs import needs

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
FOLDERS = ["base", "overlays/small", "overlays/production"]
COMPONENTS = ["s3", "ingress", "monitoring", "backup"]


def rendered(folder: str) -> list[dict[str, Any]]:
    return _kustomized(str(KUBERNETES / folder))


def _kustomized(folder: str) -> list[dict[str, Any]]:
    done = subprocess.run([needs("kubectl"), "kustomize", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def rendered_with(*components: str) -> list[dict[str, Any]]:
    """The base with components, as somebody's own overlay has them."""
    with tempfile.TemporaryDirectory() as directory:
        up = os.path.relpath(KUBERNETES.resolve(), Path(directory).resolve())
        whole = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [f"{up}/base"],
            "components": [f"{up}/components/{one}" for one in components],
        }
        (Path(directory) / "kustomization.yaml").write_text(yaml.safe_dump(whole))
        return _kustomized(directory)


def one_of(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The document of a name; a ConfigMap has a digest behind it."""
    [found] = [
        one
        for one in documents
        if one["kind"] == kind and name in (one["metadata"]["name"], one["metadata"]["name"].rpartition("-")[0])
    ]
    return found


def templates(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [one["spec"]["template"] for one in documents if one["kind"] in ("Deployment", "StatefulSet")]
    return found + [one["spec"]["jobTemplate"]["spec"]["template"] for one in documents if one["kind"] == "CronJob"]


def pods(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["spec"] for one in templates(documents)]


def bytes_of(text: str) -> int:
    return int(text.removesuffix("Gi")) * 2**30

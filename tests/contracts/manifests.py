"""The manifests for Kubernetes as they are applied: what kustomize makes of their folders."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.contracts.programs import needs

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
FOLDERS = ["base", "overlays/small", "overlays/production"]


def rendered(folder: str) -> list[dict[str, Any]]:
    """The documents that kustomize makes of a folder."""
    done = subprocess.run(
        [needs("kubectl"), "kustomize", str(KUBERNETES / folder)], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(done.stdout))


def one_of(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    [found] = [one for one in documents if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def pods(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for one in documents if one["kind"] in ("Deployment", "StatefulSet")]


def bytes_of(text: str) -> int:
    """Of a quantity in Kubernetes."""
    return int(text.removesuffix("Gi")) * 2**30

"""The Helm chart is the kustomize base with values."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from tests.contracts.manifests import one_of, rendered, templates
from tests.contracts.programs import needs

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "abound"
TEMPLATE = (CHART / "templates" / "abound.yaml").read_text()
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
MANAGED_BY = "app.kubernetes.io/managed-by"
Json = dict[str, Any]


def chart(values: Json) -> list[Json]:
    """The documents of the chart with each value at its place; without its functions, which only lay out text."""
    text = re.sub(r"\{\{-? \.Values\.([\w.]+).*? \}\}", lambda found: json.dumps(value_of(values, found[1])), TEMPLATE)
    return list(yaml.safe_load_all(text))


def value_of(values: Json, path: str) -> Any:
    return reduce(lambda mapping, name: mapping[name], path.split("."), values)


def comparable(documents: list[Json]) -> list[Json]:
    """Documents without what kustomize and Helm do in ways of their own, in one order."""
    found = copy.deepcopy([one for one in documents if one["kind"] != "Namespace"])
    for one in found:
        one["metadata"].pop("namespace", None)
        if one["kind"] == "ConfigMap":
            one["metadata"]["name"] = "abound"
    for one in [*found, *templates(found)]:
        del one["metadata"]["labels"][MANAGED_BY]
    for template in templates(found):
        template["metadata"].pop("annotations", None)
        for source in template["spec"]["containers"][0].get("envFrom", ()):
            source["configMapRef"]["name"] = "abound"
    return sorted(found, key=lambda one: (one["kind"], one["metadata"]["name"]))


def test_with_its_defaults_it_is_the_kustomize_base() -> None:
    base = comparable(rendered("base"))
    assert len(base) > 10
    assert comparable(chart(VALUES)) == base
    assert {one["metadata"]["labels"][MANAGED_BY] for one in chart(VALUES)} == {"Helm"}


def test_values_reach_their_places() -> None:
    """Replicas and the worker, but not the store, are replaced when a setting changes."""
    resources = {name: {"limits": {"memory": name}} for name in ("replica", "worker", "store")}
    replicas = {"min": 1, "max": 2, "minAvailable": 0}
    storage = {"artifacts": {"storageClassName": "nfs"}, "store": {"storageClassName": "disk"}}
    given = {"image": "ours", "secret": "mine", "settings": {"A": "1"}}
    documents = chart(given | {"resources": resources, "replicas": replicas, "storage": storage})
    for kind, name, checksum in (
        ("Deployment", "replica", given["settings"]),
        ("Deployment", "worker", given["settings"]),
        ("StatefulSet", "store", None),
    ):
        template = one_of(documents, kind, name)["spec"]["template"]
        [container] = template["spec"]["containers"]
        assert (container["image"] == "ours") is (name != "store")
        assert container["resources"] == resources[name]
        assert [one["secret"]["secretName"] for one in template["spec"]["volumes"] if "secret" in one] == ["mine"]
        assert template["metadata"].get("annotations", {}).get("checksum/settings") == checksum
    assert one_of(documents, "ConfigMap", "abound")["data"] == {"A": "1"}
    scaler = one_of(documents, "HorizontalPodAutoscaler", "replica")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (1, 2)
    assert one_of(documents, "PodDisruptionBudget", "replica")["spec"]["minAvailable"] == 0
    assert one_of(documents, "PersistentVolumeClaim", "artifacts")["spec"] == storage["artifacts"]
    [claim] = one_of(documents, "StatefulSet", "store")["spec"]["volumeClaimTemplates"]
    assert claim["spec"] == storage["store"]


def test_helm_has_no_complaints() -> None:
    done = subprocess.run([needs("helm"), "lint", "--strict", str(CHART)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

"""The Helm chart is the kustomize base with values."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from tests.contracts.manifests import one_of, rendered
from tests.contracts.programs import needs

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "abound"
CHECKSUM = "checksum/settings"
MANAGED_BY = "app.kubernetes.io/managed-by"
Json = dict[str, Any]


def merged(values: Json, given: Json) -> Json:
    """Values over defaults, as Helm merges them: mappings key by key."""
    found = copy.deepcopy(values)
    for name, value in given.items():
        found[name] = merged(found[name], value) if isinstance(value, dict) and name in found else value
    return found


def evaluated(expression: str, values: Json) -> str:
    """The text of an expression; only what the chart's templates use is known."""
    path, *functions = expression.split(" | ")
    assert path.startswith(".Values."), expression
    value: Any = values
    for name in path.split(".")[2:]:
        value = value[name]
    for function in functions:
        name, *words = function.split()
        if name == "toYaml":
            value = yaml.safe_dump(value).rstrip("\n")
        elif name == "toJson":
            value = json.dumps(value, sort_keys=True, separators=(",", ":"))
        elif name == "sha256sum":
            value = hashlib.sha256(value.encode()).hexdigest()
        else:
            assert name == "nindent", function
            value = "".join(f"\n{' ' * int(words[0])}{line}" for line in value.splitlines())
    return str(value)


def chart(**given: Any) -> list[Json]:
    """The documents of the chart: by Helm where it is installed, else by the few functions above."""
    if helm := shutil.which("helm"):
        words = [helm, "template", "abound", str(CHART), "--values", "-"]
        done = subprocess.run(words, input=yaml.safe_dump(given), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        text = done.stdout
    else:
        values = merged(yaml.safe_load((CHART / "values.yaml").read_text()), given)
        text = (CHART / "templates" / "abound.yaml").read_text()
        text = re.sub(r"\s*\{\{- (.+?) \}\}", lambda found: evaluated(found[1], values), text)
        text = re.sub(r"\{\{ (.+?) \}\}", lambda found: evaluated(found[1], values), text)
    return [one for one in yaml.safe_load_all(text) if one]


def pods(documents: list[Json]) -> dict[str, Json]:
    """The templates of the pods by name."""
    kinds = ("Deployment", "StatefulSet")
    return {one["metadata"]["name"]: one["spec"]["template"] for one in documents if one["kind"] in kinds}


def comparable(documents: list[Json]) -> list[Json]:
    """Documents without what kustomize and Helm do in ways of their own, in one order."""
    found = copy.deepcopy([one for one in documents if one["kind"] != "Namespace"])
    for one in found:
        one["metadata"].pop("namespace", None)
        del one["metadata"]["labels"][MANAGED_BY]
        if one["kind"] == "ConfigMap":
            one["metadata"]["name"] = "abound"
    for pod in pods(found).values():
        pod["metadata"].pop("annotations", None)
        del pod["metadata"]["labels"][MANAGED_BY]
        for source in pod["spec"]["containers"][0].get("envFrom", ()):
            source["configMapRef"]["name"] = "abound"
    return sorted(found, key=lambda one: (one["kind"], one["metadata"]["name"]))


def test_with_its_defaults_it_is_the_kustomize_base() -> None:
    base = comparable(rendered("base"))
    assert len(base) > 10
    assert comparable(chart()) == base
    assert {one["metadata"]["labels"][MANAGED_BY] for one in chart()} == {"Helm"}


def test_the_committed_chart_is_that_of_the_base(tmp_path: Path) -> None:
    needs("kubectl")
    words = [sys.executable, str(ROOT / "deploy" / "helm" / "generate.py"), str(tmp_path)]
    subprocess.run(words, check=True, capture_output=True)
    files = {one.relative_to(tmp_path) for one in tmp_path.rglob("*") if one.is_file()}
    assert files == {one.relative_to(CHART) for one in CHART.rglob("*") if one.is_file()}
    for one in files:
        assert (CHART / one).read_text() == (tmp_path / one).read_text(), "python deploy/helm/generate.py writes it"


def test_values_reach_their_places() -> None:
    documents = chart(
        image="registry.example/abound@sha256:0",
        secret="ours",
        settings={"ABOUND_MAX_MEMORY": "1073741824"},
        replicas={"min": 1, "max": 2, "minAvailable": 0},
        resources={"replica": {"limits": {"memory": "4Gi"}}},
        storage={"artifacts": {"storageClassName": "nfs"}, "store": {"resources": {"requests": {"storage": "12Gi"}}}},
    )
    for document in documents:
        kubernetes_validate.validate(document, "1.30", strict=True)
    specs = {name: pod["spec"] for name, pod in pods(documents).items()}
    images = {name: spec["containers"][0]["image"] for name, spec in specs.items()}
    assert images["replica"] == images["worker"] == "registry.example/abound@sha256:0"
    assert images["store"].startswith("valkey/")
    secrets = [
        volume["secret"]["secretName"] for spec in specs.values() for volume in spec["volumes"] if "secret" in volume
    ]
    assert secrets == ["ours"] * 3
    settings = one_of(documents, "ConfigMap", "abound")["data"]
    assert settings["ABOUND_MAX_MEMORY"] == "1073741824"
    assert settings["ABOUND_LOG_FORMAT"] == "json", "the other settings keep their defaults"
    resources = specs["replica"]["containers"][0]["resources"]
    assert resources == {"limits": {"memory": "4Gi"}, "requests": {"cpu": "1", "memory": "2Gi"}}
    scaler = one_of(documents, "HorizontalPodAutoscaler", "replica")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (1, 2)
    assert one_of(documents, "PodDisruptionBudget", "replica")["spec"]["minAvailable"] == 0
    claim = one_of(documents, "PersistentVolumeClaim", "artifacts")["spec"]
    assert (claim["storageClassName"], claim["accessModes"]) == ("nfs", ["ReadWriteMany"])
    [claim] = one_of(documents, "StatefulSet", "store")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"] == {"requests": {"storage": "12Gi"}}


def test_pods_are_replaced_when_a_setting_changes() -> None:
    before, after = (
        {name: pod["metadata"].get("annotations") for name, pod in pods(chart(settings=settings)).items()}
        for settings in ({}, {"ABOUND_LOG_FORMAT": "text"})
    )
    assert {name for name in before if before[name] != after[name]} == {"replica", "worker"}
    assert set(before["replica"]) == {CHECKSUM}


def test_helm_has_no_complaints() -> None:
    done = subprocess.run([needs("helm"), "lint", "--strict", str(CHART)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

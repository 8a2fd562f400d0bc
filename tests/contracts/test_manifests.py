"""The manifests: Kubernetes takes them, and what runs by them is safe and can be scheduled."""

from __future__ import annotations

import re
from pathlib import Path

import kubernetes_validate
import pytest

from abound.service.settings import Settings
from abound.service.versions.retention import VersionParams
from tests.contracts.manifests import FOLDERS, bytes_of, one_of, pods, rendered

ROOT = Path(__file__).parents[2]
VERSION = "1.30"


@pytest.mark.parametrize("folder", FOLDERS)
def test_kubernetes_takes_the_documents(folder: str) -> None:
    documents = rendered(folder)
    assert {"Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy"} <= {
        document["kind"] for document in documents
    }
    for document in documents:
        kubernetes_validate.validate(document, VERSION, strict=True)


def test_kubernetes_keeps_the_log_and_asks_the_right_questions() -> None:
    documents = rendered("base")
    store = one_of(documents, "StatefulSet", "store")["spec"]
    [claim] = store["volumeClaimTemplates"]
    [container] = store["template"]["spec"]["containers"]
    assert {"name": claim["metadata"]["name"], "mountPath": "/data"} in container["volumeMounts"]
    command = " ".join(container["args"])
    assert "--appendonly yes --appendfsync always" in command
    assert "--maxmemory-policy noeviction" in command
    [replica] = one_of(documents, "Deployment", "replica")["spec"]["template"]["spec"]["containers"]
    probes = {kind: replica[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert probes == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
    scaler = one_of(documents, "HorizontalPodAutoscaler", "replica")["spec"]
    assert [one["resource"]["name"] for one in scaler["metrics"]] == ["cpu"]
    assert one_of(documents, "PodDisruptionBudget", "replica")["spec"]["minAvailable"] < scaler["minReplicas"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_service_of_the_cluster_sets_a_setting(folder: str) -> None:
    """Kubernetes tells every container of each Service: of ``abound`` by ABOUND_PORT=tcp://..., which is no port."""
    documents = rendered(folder)
    services = [one for one in documents if one["kind"] == "Service" and one["spec"].get("clusterIP") != "None"]
    told = {f"{one['metadata']['name'].upper().replace('-', '_')}_PORT" for one in services}
    settings = {f"ABOUND_{name.upper()}" for name in Settings.model_fields}
    assert told & settings, "no Service is called like a setting: then nothing has to be switched off"
    assert all(pod["enableServiceLinks"] is False for pod in pods(documents))


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_apply_sets_the_scale_back(folder: str) -> None:
    documents = rendered(folder)
    scaled = one_of(documents, "HorizontalPodAutoscaler", "replica")["spec"]["scaleTargetRef"]
    assert "replicas" not in one_of(documents, scaled["kind"], scaled["name"])["spec"]


def test_a_laptop_has_the_volumes_that_the_small_one_wants() -> None:
    """Its storage gives a volume to one node, so whatever mounts one that is shared has to be there."""
    documents = rendered("overlays/small")
    assert one_of(documents, "PersistentVolumeClaim", "artifacts")["spec"]["accessModes"] == ["ReadWriteOnce"]
    for name in ("replica", "worker"):
        pod = one_of(documents, "Deployment", name)["spec"]["template"]
        [term] = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        [together] = term["labelSelector"]["matchExpressions"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert pod["metadata"]["labels"][together["key"]] in together["values"] == ["replica", "worker"]


@pytest.mark.parametrize("name", ["replica", "worker", "store"])
def test_secrets_come_as_files_and_never_in_the_environment(name: str) -> None:
    documents = rendered("base")
    kind = "StatefulSet" if name == "store" else "Deployment"
    pod = one_of(documents, kind, name)["spec"]["template"]["spec"]
    assert any(volume.get("secret", {}).get("secretName") == "abound-store" for volume in pod["volumes"])
    for container in pod["containers"]:
        assert not any("secretKeyRef" in str(variable) for variable in container.get("env", []))
        assert not any("secretRef" in source for source in container.get("envFrom", []))
        assert any(mount["mountPath"] == "/secrets" and mount["readOnly"] for mount in container["volumeMounts"])
    settings = one_of(documents, "ConfigMap", "abound")["data"]
    assert "ABOUND_REDIS_URL" not in settings
    assert settings["ABOUND_REDIS_URL_FILE"] == "/secrets/url"


@pytest.mark.parametrize("name", ["replica", "worker", "store"])
def test_every_container_is_locked_down(name: str) -> None:
    (document,) = [
        one
        for one in rendered("base")
        if one["kind"] in ("Deployment", "StatefulSet") and one["metadata"]["name"] == name
    ]
    pod = document["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("name", ["replica", "worker"])
def test_files_of_a_bucket_have_a_place_under_the_locked_root(name: str) -> None:
    spec = one_of(rendered("base"), "Deployment", name)["spec"]["template"]["spec"]
    [told] = re.findall(r"ABOUND_DATA_DIR=(\S+)", (ROOT / "docker" / "Dockerfile").read_text())
    [mount] = [one for one in spec["containers"][0]["volumeMounts"] if one["mountPath"] == told]
    [volume] = [one for one in spec["volumes"] if one["name"] == mount["name"]]
    assert bytes_of(volume["emptyDir"]["sizeLimit"]) > VersionParams().cache_bytes

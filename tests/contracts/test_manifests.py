"""The manifests: Kubernetes takes them, and what runs by them is safe and can be scheduled."""

import copy
import json
import os
import re
import subprocess
import tomllib
from functools import reduce
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import redis
import yaml

from abound.datasets.repository import DatasetParams
from abound.processes.embedded_store import server_program
from abound.processes.lifetime import dies_with_parent
from abound.replica.predictions import RememberParams
from abound.settings import Settings
from abound.state.snapshots import SnapshotParams
from abound.versions.retention import VersionParams
from benchmarks.serving import free_port
from tests.contracts.manifests import COMPONENTS, FOLDERS, bytes_of, one_of, pods, rendered, rendered_with, templates
from tests.contracts.programs import needs, until_it_answers

ROOT = Path(__file__).parents[2]
VERSION = "1.30"


DEFINED_BY_OTHERS = ("PodMonitor", "PrometheusRule")
"""Kinds of the Prometheus Operator, which Kubernetes has no schema of."""


LABELS = {"name", "instance", "part-of", "managed-by"}


def recommended(described: dict[str, Any]) -> set[str]:
    return {one.removeprefix("app.kubernetes.io/") for one in described["metadata"]["labels"]}


@pytest.mark.parametrize("name", [*FOLDERS, *COMPONENTS])
def test_kubernetes_takes_the_documents(name: str) -> None:
    documents = rendered(name) if name in FOLDERS else rendered_with(name)
    if name in FOLDERS:
        kinds = {"Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy"}
        assert kinds <= {document["kind"] for document in documents}
    else:
        assert documents != rendered("base")
    for document in documents:
        if document["kind"] not in DEFINED_BY_OTHERS:
            kubernetes_validate.validate(document, VERSION, strict=True)
        assert recommended(document) >= LABELS, document["kind"]


def test_what_cannot_change_has_no_version() -> None:
    documents = rendered("base")
    store = one_of(documents, "StatefulSet", "store")["spec"]
    assert "version" not in recommended(store["template"]), "an upgrade would replace the store"
    assert "labels" not in store["volumeClaimTemplates"][0]["metadata"]
    for kind, name in (("Deployment", "replica"), ("Deployment", "worker"), ("StatefulSet", "store")):
        selected = one_of(documents, kind, name)["spec"]["selector"]["matchLabels"]
        assert selected.keys() == {"app.kubernetes.io/name", "app.kubernetes.io/component"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_selector_finds_the_pods_of_its_component(folder: str) -> None:
    documents = rendered(folder)
    components = {template["metadata"]["labels"]["app.kubernetes.io/component"] for template in templates(documents)}
    for document in documents:
        spec = document.get("spec", {})
        if document["kind"] == "Service":
            selected = spec["selector"]
        elif "matchLabels" in spec.get("selector", {}):
            selected = spec["selector"]["matchLabels"]
        else:
            continue
        found = [one for one in templates(documents) if selected.items() <= one["metadata"]["labels"].items()]
        assert len(found) == 1, (document["kind"], document["metadata"]["name"])
    assert components == {"replica", "worker"} | ({"store"} if folder != "overlays/production" else set())


def test_a_bucket_takes_the_place_of_the_volume() -> None:
    documents = rendered_with("s3")
    assert "PersistentVolumeClaim" not in {one["kind"] for one in documents}
    for pod in pods(documents):
        volumes = {one["name"] for one in pod["volumes"]}
        mounted = {one["name"] for one in pod["containers"][0]["volumeMounts"]}
        assert "artifacts" not in volumes | mounted
    settings = one_of(documents, "ConfigMap", "abound")["data"]
    assert settings["ABOUND_ARTIFACTS_URL"].startswith("s3://")
    assert settings["ABOUND_REDIS_URL_FILE"], "what the base sets is kept"
    replica = one_of(documents, "Deployment", "replica")["spec"]["template"]["spec"]
    [place] = [one["emptyDir"] for one in replica["volumes"] if one["name"] == "tmp"]
    assert place.get("medium") != "Memory"
    assert bytes_of(place["sizeLimit"]) > DatasetParams().max_bytes
    egress = one_of(documents, "NetworkPolicy", "replica")["spec"]["egress"]
    assert {"ports": [{"port": 443, "protocol": "TCP"}]} in egress


def admitted(documents: list[dict[str, Any]], name: str, port: int) -> list[dict[str, Any]]:
    [rule] = one_of(documents, "NetworkPolicy", name)["spec"]["ingress"]
    assert [one["port"] for one in rule["ports"]] == [port]
    return rule["from"]


def test_who_may_reach_what_is_named() -> None:
    documents, ingress = rendered("base"), rendered_with("ingress")
    closed = one_of(documents, "NetworkPolicy", "closed")["spec"]
    assert closed == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    [inside] = admitted(documents, "store", 6379)
    assert inside["podSelector"]["matchExpressions"][0]["values"] == ["replica", "worker", "backup"]
    clients, prometheus = admitted(documents, "replica", 8000)
    assert clients == {"namespaceSelector": {"matchLabels": {"abound-client": "true"}}}
    assert prometheus["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "prometheus"}
    assert admitted(ingress, "replica", 8000)[:2] == [clients, prometheus]
    [rule] = one_of(ingress, "Ingress", "abound")["spec"]["rules"]
    service = rule["http"]["paths"][0]["backend"]["service"]
    ports = {one["name"] for one in one_of(ingress, "Service", service["name"])["spec"]["ports"]}
    assert service["port"]["name"] in ports


def test_the_worker_is_restarted_when_it_hangs() -> None:
    [worker] = one_of(rendered("base"), "Deployment", "worker")["spec"]["template"]["spec"]["containers"]
    asked = ["python3", "/usr/local/bin/health.py"]
    assert worker["startupProbe"]["exec"]["command"] == worker["livenessProbe"]["exec"]["command"] == asked
    assert f"/{asked[-1].strip('/')}" in (ROOT / "docker" / "Dockerfile").read_text()


def test_the_stores_password_is_on_no_command_line(tmp_path: Path) -> None:
    """The store's own shell command, with a program in the place of Valkey that writes down its words."""
    [store] = one_of(rendered("base"), "StatefulSet", "store")["spec"]["template"]["spec"]["containers"]
    (tmp_path / "password").write_text("abc123\n")
    (tmp_path / "valkey-server").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\nexec {server_program()} "$@"\n')
    (tmp_path / "valkey-server").chmod(0o755)
    data, port = tmp_path / "data", free_port()
    data.mkdir()
    script = store["args"][0].replace("/secrets", str(tmp_path))
    script = script.replace("--dir /data", f"--dir {data} --port {port} --bind 127.0.0.1")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MEMORY": str(2**30)}
    with subprocess.Popen([*store["command"], script], env=environment, preexec_fn=dies_with_parent()) as process:
        with redis.Redis(port=port, password="abc123") as client:
            until_it_answers(client)
        with redis.Redis(port=port) as client, pytest.raises(redis.exceptions.AuthenticationError):
            client.ping()
        process.terminate()
    assert "abc123" not in (tmp_path / "words").read_text()


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
    assert [one["type"] for one in scaler["metrics"]] == ["Pods"], "processors are busy with learning as well"
    assert one_of(documents, "PodDisruptionBudget", "replica")["spec"]["minAvailable"] < scaler["minReplicas"]
    assert one_of(documents, "PodDisruptionBudget", "store")["spec"]["maxUnavailable"] == 0


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_service_of_the_cluster_sets_a_setting_and_no_apply_the_scale(folder: str) -> None:
    """Kubernetes tells every container of each Service: of ``abound`` by ABOUND_PORT=tcp://..., which is no port."""
    documents = rendered(folder)
    services = [one for one in documents if one["kind"] == "Service" and one["spec"].get("clusterIP") != "None"]
    told = {f"{one['metadata']['name'].upper().replace('-', '_')}_PORT" for one in services}
    settings = {f"ABOUND_{name.upper()}" for name in Settings.model_fields}
    assert told & settings, "no Service is called like a setting: then nothing has to be switched off"
    assert all(pod["enableServiceLinks"] is False for pod in pods(documents))
    scaled = one_of(documents, "HorizontalPodAutoscaler", "replica")["spec"]["scaleTargetRef"]
    assert "replicas" not in one_of(documents, scaled["kind"], scaled["name"])["spec"], "an apply sets the scale back"


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


def test_every_container_is_locked_down() -> None:
    found = pods(rendered_with("backup"))
    assert len(found) == 4
    for pod in found:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("name", ["replica", "worker"])
def test_files_of_a_bucket_have_a_place_under_the_locked_root(name: str) -> None:
    spec = one_of(rendered("base"), "Deployment", name)["spec"]["template"]["spec"]
    [told] = re.findall(r"ABOUND_DATA_DIR=(\S+)", (ROOT / "docker" / "Dockerfile").read_text())
    [mount] = [one for one in spec["containers"][0]["volumeMounts"] if one["mountPath"] == told]
    [volume] = [one for one in spec["volumes"] if one["name"] == mount["name"]]
    assert bytes_of(volume["emptyDir"]["sizeLimit"]) > VersionParams().cache_bytes


# log and snapshots at their bounds fit into the store that the files run


def most_in_the_store(settings: dict[str, str]) -> int:
    """Bytes: a model's log at its bound, remembered instances, and snapshots of all models: one is being written."""
    log = int(settings["ABOUND_LOG_MAX_LOG_BYTES"]) + RememberParams().most_bytes
    return log + (SnapshotParams().keep + 1) * int(settings["ABOUND_MAX_MEMORY"])


@pytest.mark.parametrize("folder", ["base", "overlays/small"])
def test_log_and_snapshots_at_their_bounds_fit_into_the_store(folder: str) -> None:
    """Learning is refused before the store is full; a third more of memory is for rewriting its file."""
    documents = rendered(folder)
    spec = one_of(documents, "StatefulSet", "store")["spec"]
    [store] = spec["template"]["spec"]["containers"]
    limit = bytes_of(store["resources"]["limits"]["memory"])
    [variable] = store["env"]
    assert variable == {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}}
    [told] = re.findall(r"--maxmemory (\$\(\(.*?\)\)) ", store["args"][0])
    shell = subprocess.run(["sh", "-c", f"echo {told}"], env={"MEMORY": str(limit)}, capture_output=True, check=True)
    assert most_in_the_store(one_of(documents, "ConfigMap", "abound")["data"]) <= int(shell.stdout) <= 3 / 4 * limit
    [claim] = spec["volumeClaimTemplates"]
    assert bytes_of(claim["spec"]["resources"]["requests"]["storage"]) >= 4 * limit


def test_log_and_snapshots_at_their_bounds_fit_into_the_store_of_the_compose_file() -> None:
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    command = services["store"]["command"]
    most = command[command.index("--maxmemory") + 1]
    assert most_in_the_store(services["replica"]["environment"]) <= int(most.removesuffix("gb")) * 2**30
    assert int(services["store"]["mem_limit"].removesuffix("g")) >= 4 / 3 * int(most.removesuffix("gb"))


# what others made is taken as it was tried: by its whole version, or its digest


def test_what_builds_it_is_pinned() -> None:
    """The constraints do not reach the environment that pip builds in."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert all(re.fullmatch(r"[a-z]+==[\d.]+", one) for one in requires), requires


@pytest.mark.parametrize("folder", FOLDERS)
def test_our_image_is_taken_from_the_node_by_its_version_and_that_of_production_by_its_digest(folder: str) -> None:
    documents = rendered(folder)
    images = [(container["image"], container) for pod in pods(documents) for container in pod["containers"]]
    ours = [(image, container) for image, container in images if re.split("[:@]", image.split("/")[-1])[0] == "abound"]
    assert len(ours) == 2
    for image, container in ours:
        assert container["imagePullPolicy"] == "IfNotPresent"
        if folder == "overlays/production":
            assert re.fullmatch(r"\S+/abound@sha256:[0-9a-f]{64}", image)
        else:
            assert image == f"abound:{version()}"
    assert {one["metadata"]["labels"]["app.kubernetes.io/version"] for one in documents} == {version()}


def version() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_every_image_of_others_is_pinned_by_its_whole_version() -> None:
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    store = one_of(rendered("base"), "StatefulSet", "store")["spec"]["template"]["spec"]["containers"][0]["image"]
    images = {one["image"] for one in compose.values()}
    assert f"abound:{version()}" in images
    assert f"\nARG VERSION={version()}\n" in dockerfile
    images -= {f"abound:{version()}"}
    assert store in images, "the compose file and Kubernetes run one store"
    images |= set(re.findall(r"^ARG BASE=(\S+)$", dockerfile, re.MULTILINE))
    assert len(images) == 5
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", dockerfile, re.MULTILINE))
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) - stages == {"${BASE}"}
    pinned = re.compile(r"[a-z/]+:v?\d+\.\d+\.\d+(-[\w.-]+)?(@sha256:[0-9a-f]{64})?")
    assert [image for image in images if not pinned.fullmatch(image)] == []


# the Helm chart is the kustomize base with values


CHART = ROOT / "deploy" / "helm" / "abound"
TEMPLATE = (CHART / "templates" / "abound.yaml").read_text()
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
MANAGED_BY = "app.kubernetes.io/managed-by"
Json = dict[str, Any]


def chart(values: Json) -> list[Json]:
    """The documents of the chart with each value at its place; without its functions, which only lay out text."""

    def value_of(found: re.Match[str]) -> str:
        return json.dumps(reduce(lambda mapping, name: mapping[name], found[1].split("."), values))

    text = re.sub(r"\{\{-? \.Values\.([\w.]+).*? \}\}", value_of, TEMPLATE)
    return list(yaml.safe_load_all(text))


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

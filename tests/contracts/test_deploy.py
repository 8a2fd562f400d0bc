"""The files that run the service elsewhere: they name settings, metrics and paths that there are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from benchmarks.serving import free_port
from service.datasets import DatasetParams
from service.remembered import RememberParams
from service.settings import Settings, unknown_variables
from service.snapshots import SnapshotParams
from service.version_keeping import VersionParams
from tests.service.served import Served, served

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yaml"
DASHBOARD = DEPLOY / "grafana" / "abound.json"
KUBERNETES = DEPLOY / "kubernetes"
VERSION = "1.30"
FOLDERS = ["base", "overlays/small", "overlays/production"]

SUFFIXES = ("_bucket", "_count", "_sum", "_total")


def needs(program: str) -> str:
    """The path of a program; skips where it is missing."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


@pytest.fixture(scope="module")
def exported() -> Iterator[set[str]]:
    """The names of all metrics that a running service has."""
    with served() as service:
        yield names_of(service)


def names_of(service: Served) -> set[str]:
    text = service.http.get("/metrics").text
    return set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))


def asked(expression: str) -> set[str]:
    """The metrics of ours that an expression names, without what Prometheus puts behind the name."""
    return set(re.findall(r"\babound_\w+", expression))


def is_exported(name: str, exported: set[str]) -> bool:
    return name in exported or any(name.removesuffix(suffix) in exported for suffix in SUFFIXES)


def test_every_alert_asks_for_metrics_that_there_are_and_has_its_page(exported: set[str]) -> None:
    pages = (ROOT / "docs" / "operating.md").read_text()
    alerts = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert alerts
    for alert in alerts:
        for name in asked(alert["expr"]):
            assert is_exported(name, exported), (alert["alert"], name)
        assert f"### {alert['alert']}\n" in pages
        assert alert["annotations"]["runbook"] == f"docs/operating.md#{alert['alert'].lower()}"


def test_every_panel_asks_for_metrics_that_there_are(exported: set[str]) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    for panel in panels:
        for target in panel["targets"]:
            assert asked(target["expr"]), panel["title"]
            for name in asked(target["expr"]):
                assert is_exported(name, exported), (panel["title"], name)


def test_the_dashboard_asks_the_prometheus_that_is_chosen() -> None:
    """Only the one of the compose file is called as its file says; others have an id that nobody knows before."""
    dashboard = json.loads(DASHBOARD.read_text())
    [variable] = dashboard["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    assert variable["current"]["value"] == "default"
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {f"${{{variable['name']}}}"}
    [provisioned] = yaml.safe_load((ROOT / "docker" / "grafana.yaml").read_text())["datasources"]
    assert provisioned["isDefault"] is True
    assert provisioned["type"] == "prometheus"


def test_prometheus_takes_the_rules() -> None:
    subprocess.run([needs("promtool"), "check", "rules", str(RULES)], check=True, capture_output=True)


def test_alerts_fire_for_what_they_are_for() -> None:
    cases = Path(__file__).parent / "alerts.yaml"
    done = subprocess.run([needs("promtool"), "test", "rules", str(cases)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_learned_a_second_is_none_after_something_was_forgotten(tmp_path: Path) -> None:
    """The dashboard's expression, over a quiet model that forgets one event, one that learns, and one restarted."""
    panels = json.loads((DEPLOY / "grafana" / "abound.json").read_text())["panels"]
    [expression] = [
        target["expr"]
        for panel in panels
        for target in panel["targets"]
        if "abound_model_learned_instances" in target["expr"]
    ]
    given = {"forgetting": "60001x20 60000x20", "learning": "0+150x40", "restarted": "500x19 _x2 500x20"}
    series = [
        {"series": f'abound_model_learned_instances{{model="{name}",instance="a"}}', "values": values}
        for name, values in given.items()
    ]
    said = [
        {"labels": f'{{model="{name}"}}', "value": value}
        for name, value in (("forgetting", 0), ("learning", 10), ("restarted", 0))
    ]
    tests = [{"expr": expression, "eval_time": f"{seconds}s", "exp_samples": said} for seconds in (315, 345, 375)]
    case = {"interval": "15s", "input_series": series, "promql_expr_test": tests}
    file = tmp_path / "case.yaml"
    file.write_text(yaml.safe_dump({"tests": [case]}))
    done = subprocess.run([needs("promtool"), "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_builds_it_is_pinned() -> None:
    """The constraints do not reach the environment that pip builds in."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert all(re.fullmatch(r"[a-z]+==[\d.]+", one) for one in requires), requires


@pytest.mark.parametrize(("builder", "is_told"), [("docker", False), ("podman", True), ("buildah", True)])
def test_every_builder_keeps_the_health_check(builder: str, is_told: bool) -> None:
    words = ["make", "--dry-run", "--directory", str(ROOT), "image", f"BUILDER={builder}"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert f"{builder} build" in done.stdout
    assert ("--format docker" in done.stdout) is is_told


class Alive(BaseHTTPRequestHandler):
    """A server that lives."""

    def do_GET(self) -> None:
        """Its only answer."""
        self.send_response(200 if self.path == "/livez" else 404)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("command", "variable", "is_healthy"),
    [
        ("abound serve", True, True),
        ("abound serve --port {port}", False, True),
        ("abound serve --port={port}", False, True),
        ("docker-init -- entrypoint abound serve", True, True),
        ("abound serve", False, False),
        ("abound worker", False, True),
    ],
)
def test_a_container_is_healthy_by_what_it_does(tmp_path: Path, command: str, variable: bool, is_healthy: bool) -> None:
    with HTTPServer(("127.0.0.1", 0), Alive) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        line = tmp_path / "cmdline"
        line.write_text("".join(f"{word}\0" for word in command.format(port=server.server_port).split()))
        environment = os.environ | {"ABOUND_PORT": str(server.server_port if variable else free_port())}
        done = subprocess.run(
            [sys.executable, str(ROOT / "docker" / "health.py"), str(line)], env=environment, capture_output=True
        )
        server.shutdown()
        thread.join()
    assert (done.returncode == 0) is is_healthy, done.stderr


def test_the_load_balancer_takes_its_configuration() -> None:
    done = subprocess.run(
        [needs("haproxy"), "-c", "-f", str(ROOT / "docker" / "haproxy.cfg")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def rendered(folder: str) -> list[dict[str, Any]]:
    """The documents that kustomize makes of a folder."""
    done = subprocess.run(
        [needs("kubectl"), "kustomize", str(KUBERNETES / folder)], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("folder", FOLDERS)
def test_kubernetes_takes_the_documents(folder: str) -> None:
    documents = rendered(folder)
    assert {"Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy"} <= {
        document["kind"] for document in documents
    }
    for document in documents:
        kubernetes_validate.validate(document, VERSION, strict=True)


def one_of(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    [found] = [one for one in documents if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


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


def pods(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for one in documents if one["kind"] in ("Deployment", "StatefulSet")]


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_image_without_a_tag_is_taken_from_the_node_and_that_of_production_is_pinned(folder: str) -> None:
    """Kubernetes would pull ``latest`` each time, from a registry that has none."""
    documents = rendered(folder)
    images = [(container["image"], container) for pod in pods(documents) for container in pod["containers"]]
    ours = [(image, container) for image, container in images if image.split("@")[0].split("/")[-1] == "abound"]
    assert len(ours) == 2
    for image, container in ours:
        assert container["imagePullPolicy"] == "IfNotPresent"
        if folder == "overlays/production":
            assert re.fullmatch(r"\S+/abound@sha256:[0-9a-f]{64}", image)


def test_every_image_of_others_is_pinned_by_its_whole_version() -> None:
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    store = one_of(rendered("base"), "StatefulSet", "store")["spec"]["template"]["spec"]["containers"][0]["image"]
    images = {one["image"] for one in compose.values()} - {"abound"}
    assert store in images, "the compose file and Kubernetes run one store"
    images |= set(re.findall(r"^ARG BASE=(\S+)$", dockerfile, re.MULTILINE))
    assert len(images) == 5
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) == {"${BASE}"}
    assert [image for image in images if not re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+(-[\w.-]+)?", image)] == []


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


def bytes_of(text: str) -> int:
    """Of a quantity in Kubernetes."""
    return int(text.removesuffix("Gi")) * 2**30


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


@pytest.mark.parametrize("path", ["docker/prometheus.yaml", "deploy/prometheus/scrape.yaml"])
def test_prometheus_takes_how_it_is_told_to_ask_and_asks_as_the_alerts_expect(path: str, tmp_path: Path) -> None:
    text = (ROOT / path).read_text()
    [job] = yaml.safe_load(text)["scrape_configs"]
    named = set(re.findall(r'job="(\w+)"', RULES.read_text()))
    assert named == {job["job_name"]}
    key = job["authorization"]["credentials_file"]
    (tmp_path / "key").write_text("abk_a_key")
    text = text.replace(key, str(tmp_path / "key")).replace("/etc/prometheus/rules.yaml", str(RULES))
    configuration = tmp_path / "prometheus.yaml"
    configuration.write_text(text)
    done = checked(configuration)
    if "kubernetes_sd_configs not found" in done.stdout + done.stderr:
        # Debian's promtool is built without Kubernetes; all the rest of the file is checked.
        whole = yaml.safe_load(text)
        whole["scrape_configs"][0]["dns_sd_configs"] = [{"names": ["replica"], "type": "A", "port": 8000}]
        del whole["scrape_configs"][0]["kubernetes_sd_configs"]
        configuration.write_text(yaml.safe_dump(whole))
        done = checked(configuration)
    assert done.returncode == 0, done.stdout + done.stderr


def checked(configuration: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([needs("promtool"), "check", "config", str(configuration)], capture_output=True, text=True)


def test_prometheus_finds_the_replicas_of_a_cluster() -> None:
    [job] = yaml.safe_load((DEPLOY / "prometheus" / "scrape.yaml").read_text())["scrape_configs"]
    documents = rendered("overlays/small")
    assert job["kubernetes_sd_configs"] == [
        {"role": "pod", "namespaces": {"names": [one_of(documents, "Namespace", "abound")["metadata"]["name"]]}}
    ]
    kept = re.compile(next(rule["regex"] for rule in job["relabel_configs"] if rule.get("action") == "keep"))
    found = [
        one["metadata"]["name"]
        for one in documents
        if one["kind"] in ("Deployment", "StatefulSet")
        for container in one["spec"]["template"]["spec"]["containers"]
        for port in container.get("ports", [])
        if kept.fullmatch(f"{one['spec']['template']['metadata']['labels']['app.kubernetes.io/name']};{port['name']}")
    ]
    assert found == ["replica"]


def test_the_key_of_the_compose_files_prometheus_is_where_it_looks() -> None:
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
    [job] = yaml.safe_load((ROOT / "docker" / "prometheus.yaml").read_text())["scrape_configs"]
    [config] = compose["services"]["prometheus"]["configs"]
    assert config["target"] == job["authorization"]["credentials_file"]
    assert "PROMETHEUS_KEY" in compose["configs"][config["source"]]["content"]


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


def test_a_replica_drains_longer_than_the_balancer_needs_to_see_it() -> None:
    """Until then it is still sent requests."""
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]["replica"]
    checks = re.findall(r"check inter (\d+)ms fall (\d+)", (ROOT / "docker" / "haproxy.cfg").read_text())
    assert len(checks) == 2
    for milliseconds, times in checks:
        assert float(compose["environment"]["ABOUND_DRAIN_SECONDS"]) > 2 * int(milliseconds) * int(times) / 1000
    pod = one_of(rendered("base"), "Deployment", "replica")["spec"]["template"]["spec"]
    settings = one_of(rendered("base"), "ConfigMap", "abound")["data"]
    probe = pod["containers"][0]["readinessProbe"]
    drain = float(settings["ABOUND_DRAIN_SECONDS"])
    assert drain > probe["periodSeconds"] * probe["failureThreshold"]
    assert pod["terminationGracePeriodSeconds"] > drain + float(settings["ABOUND_STOP_SECONDS"])


def test_the_balancer_waits_longer_than_a_replica_may_take() -> None:
    text = (ROOT / "docker" / "haproxy.cfg").read_text()
    [waits] = re.findall(r"http-request set-timeout server (\d+)m ", text)
    longest = (DatasetParams().check_seconds, Settings().prepare_seconds, SnapshotParams().wanted_seconds)
    assert 60 * int(waits) > max(longest)
    [others] = re.findall(r"^    timeout server (\d+)s$", text.partition("backend classify")[0], re.MULTILINE)
    assert int(others) > Settings().wait_seconds + Settings().min_offset_seconds


@pytest.mark.parametrize(
    "path",
    [
        "docker/compose.yaml",
        "docker/Dockerfile",
        "deploy/kubernetes/base/settings.yaml",
        "deploy/kubernetes/overlays/small/kustomization.yaml",
    ],
    ids=lambda p: Path(p).name,
)
def test_every_variable_is_a_setting(path: str) -> None:
    found = set(re.findall(r"\bABOUND_[A-Z_]+\b", (ROOT / path).read_text()))
    assert found
    assert unknown_variables(dict.fromkeys(found, "x")) == []


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


def required(*extras: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(ROOT / "docker" / "requirements.py"), str(ROOT / "pyproject.toml"), *extras]
    return subprocess.run(words, capture_output=True, text=True)


def test_the_image_gets_the_extras_that_it_is_built_with() -> None:
    text = (ROOT / "docker" / "Dockerfile").read_text()
    assert re.search(r"^ARG EXTRAS=$", text.partition("\nFROM ")[2].partition("\nFROM ")[0], re.MULTILINE)
    assert 'docker/requirements.py pyproject.toml "$EXTRAS" >' in text
    plain = required("").stdout.split("\n")
    assert plain == required().stdout.split("\n")
    assert set(required("s3,cluster").stdout.split("\n")) - set(plain) == {"s3fs", "distributed"}
    wrong = required("s4")
    assert wrong.returncode == 1
    assert "there is no extra s4" in wrong.stderr


def test_the_image_gets_only_what_it_is_made_of() -> None:
    taken = set(re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE))
    wanted = {part.split("/")[0] for line in taken for part in line.split()}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert wanted == allowed


def test_every_setting_is_in_the_manual_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith("ABOUND_"):
            monkeypatch.delenv(variable)
    manual = (ROOT / "docs" / "operating.md").read_text()
    missing = [one.name for one in Settings.load().describe() if f"| `{one.name}` | {one.value or '-'} |" not in manual]
    assert missing == []

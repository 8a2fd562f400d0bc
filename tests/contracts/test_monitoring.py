"""What watches the service asks for what there is: Prometheus, its alerts, the dashboard."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.contracts.manifests import one_of, rendered, rendered_with, templates
from tests.contracts.programs import needs
from tests.support.served import Served

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yaml"
DASHBOARD = DEPLOY / "grafana" / "abound.json"
SUFFIXES = ("_bucket", "_count", "_sum", "_total")


@pytest.fixture(scope="module")
def exported(service: Served) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+) ", service.http.get("/metrics").text, re.MULTILINE))


def asked(expression: str) -> set[str]:
    """The metrics of ours that an expression names, without what Prometheus puts behind the name."""
    return set(re.findall(r"\babound_\w+", expression))


def is_exported(name: str, exported: set[str]) -> bool:
    return name in exported or any(name.removesuffix(suffix) in exported for suffix in SUFFIXES)


def test_every_alert_asks_for_metrics_that_there_are_and_has_its_page(exported: set[str]) -> None:
    pages = (ROOT / "docs" / "runbook.md").read_text()
    alerts = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert alerts
    for alert in alerts:
        for name in asked(alert["expr"]):
            assert is_exported(name, exported), (alert["alert"], name)
        assert f"### {alert['alert']}\n" in pages
        assert alert["annotations"]["runbook"] == f"docs/runbook.md#{alert['alert'].lower()}"


def test_every_panel_asks_for_metrics_that_there_are(exported: set[str]) -> None:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            found = asked(target["expr"])
            assert found, panel["title"]
            assert [name for name in found if not is_exported(name, exported)] == [], panel["title"]


def test_prometheus_takes_the_rules_and_alerts_fire_for_what_they_are_for() -> None:
    subprocess.run([needs("promtool"), "check", "rules", str(RULES)], check=True, capture_output=True)
    cases = Path(__file__).parent / "alerts.yaml"
    done = subprocess.run([needs("promtool"), "test", "rules", str(cases)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", ["docker/prometheus.yaml", "deploy/prometheus/scrape.yaml"])
def test_prometheus_takes_how_it_is_told_to_ask_and_asks_as_the_alerts_expect(path: str, tmp_path: Path) -> None:
    text = (ROOT / path).read_text()
    job = yaml.safe_load(text)["scrape_configs"][0]
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


def test_the_operators_rules_are_the_rules() -> None:
    operator = yaml.safe_load((DEPLOY / "kubernetes" / "components" / "monitoring" / "rules.yaml").read_text())
    assert operator["spec"] == yaml.safe_load(RULES.read_text()), "copy the groups of deploy/prometheus/rules.yaml"


def test_the_operator_scrapes_the_replicas_as_the_alerts_expect() -> None:
    documents = rendered_with("monitoring")
    spec = one_of(documents, "PodMonitor", "abound")["spec"]
    [endpoint] = spec["podMetricsEndpoints"]
    selected = spec["selector"]["matchLabels"].items()
    [template] = [one for one in templates(documents) if selected <= one["metadata"]["labels"].items()]
    assert endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert {template["metadata"]["labels"][spec["jobLabel"]]} == set(re.findall(r'job="(\w+)"', RULES.read_text()))
    shown = one_of(documents, "ConfigMap", "abound-dashboard")["data"]["abound.json"]
    assert json.loads(shown) == json.loads(DASHBOARD.read_text())


def test_replicas_are_scaled_by_what_they_classify(exported: set[str], tmp_path: Path) -> None:
    """The adapter's query as it asks it for the pods that the autoscaler names."""
    [rule] = yaml.safe_load((DEPLOY / "prometheus" / "adapter.yaml").read_text())["rules"]["custom"]
    [metric] = one_of(rendered("base"), "HorizontalPodAutoscaler", "replica")["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    for expression in (rule["seriesQuery"], rule["metricsQuery"]):
        assert all(is_exported(name, exported) for name in asked(expression))
    expression = rule["metricsQuery"].replace("<<.GroupBy>>", "pod")
    expression = expression.replace("<<.LabelMatchers>>", 'namespace="abound",pod=~"one|two"')
    given = {
        'pod="one",model="default"': "0+600x20",
        'pod="one",model="other"': "0+300x20",
        'pod="three",model="default"': "0+9000x20",
        'pod="two",model="default"': "0+60x20",
    }
    series = {f'abound_classified_instances_total{{{one},namespace="abound"}}': at for one, at in given.items()}
    found = [{"labels": '{pod="one"}', "value": 60}, {"labels": '{pod="two"}', "value": 4}]
    case = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expression, "eval_time": "300s", "exp_samples": found}],
    }
    (tmp_path / "case.yaml").write_text(yaml.safe_dump({"tests": [case]}))
    words = [needs("promtool"), "test", "rules", str(tmp_path / "case.yaml")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

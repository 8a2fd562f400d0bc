"""The first steps in a cluster, as the manual gives them: all that the manifests ask for, in order."""

import base64
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.contracts.manifests import one_of, rendered
from tests.contracts.programs import needs
from tests.documents.blocks import ROOT, block_of
from tests.documents.session import make_programs

STANDS_IN = """#!/bin/sh
# There is no cluster. Programs of its pods run here, before there is a store; what needs no cluster is done by kubectl.
case "$*" in
    *" exec deploy/worker -- "*) while [ "$1" != -- ]; do shift; done; shift; exec "$@" --new-store ;;
    *" create secret "*) {kubectl} "$@" --dry-run=client -o yaml >> secrets && echo --- >> secrets ;;
    "apply -k "*) {kubectl} kustomize "$3" > /dev/null ;;
    "apply -f "*) test -f "$3" ;;
    *" rollout status "* | *" port-forward "*) ;;
    *) exit 1 ;;
esac
"""


def steps() -> list[str]:
    return [command.text for command in block_of(__file__).commands]


def test_the_manual_makes_what_the_manifests_ask_for_in_order() -> None:
    """Namespace, secret, store and worker, the first key, and only then replicas, which do not start without one."""
    lines = steps()
    documents = rendered("overlays/small")
    secret = next(line for line in lines if "create secret generic abound-store" in line)
    overlay = "apply -k deploy/kubernetes/overlays/small"
    order = [
        next(i for i, line in enumerate(lines) if re.search(step, line))
        for step in (
            "apply -f deploy/kubernetes/base/namespace.yaml",
            re.escape(secret),
            f"{overlay}.* -l app.kubernetes.io/component!=replica",
            "rollout status .*deployment/worker",
            "exec deploy/worker .*abound keys create",
            f"{overlay}$",
            "rollout status .*deployment/replica",
        )
    ]
    assert order == sorted(order)
    assert "--from-literal" not in secret, "every user of the machine could read the password"
    files = set(re.findall(r"/secrets/(\w+)", yaml.safe_dump_all(documents)))
    assert set(re.findall(r"--from-file=(\w+)", secret)) == files == {"url", "password"}
    [(service, port)] = re.findall(r"port-forward service/(\w+) \d+:(\d+)", "\n".join(lines))
    assert int(port) in [one["port"] for one in one_of(documents, "Service", service)["spec"]["ports"]]


def test_the_steps_of_the_manual_make_the_secrets_and_keys(tmp_path: Path) -> None:
    """Line for line, with a ``kubectl`` that has no cluster."""
    needs("openssl")
    programs = make_programs(tmp_path)
    (programs / "kubectl").write_text(STANDS_IN.replace("{kubectl}", needs("kubectl")))
    (programs / "kubectl").chmod(0o755)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ABOUND_")}
    environment = kept | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "ABOUND_DATA_DIR": str(tmp_path / "data"),
    }

    def run(script: str) -> str:
        words = ["bash", "-ec", script]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("\n".join(steps()))
    secrets = {one["metadata"]["name"]: one for one in yaml.safe_load_all((tmp_path / "secrets").read_text()) if one}

    def data(name: str) -> dict[str, str]:
        return {part: base64.b64decode(value).decode() for part, value in secrets[name]["data"].items()}

    password = data("abound-store")["password"]
    assert re.fullmatch("[0-9a-f]{48}", password)
    assert data("abound-store")["url"] == f"redis://:{password}@store:6379"
    assert data("abound-metrics")["key"].startswith("abk_")
    assert [one["metadata"]["namespace"] for one in secrets.values()] == ["abound", "monitoring"]
    assert not any((tmp_path / name).exists() for name in ("key", "password", "url"))
    keys: list[dict[str, Any]] = json.loads(run("abound keys list --json"))["keys"]
    assert [one["scopes"] for one in sorted(keys, key=lambda one: one["created"])] == [["admin"], ["classify"]]

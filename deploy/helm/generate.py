"""Write the Helm chart from the kustomize base: ``python deploy/helm/generate.py``. It needs kubectl and PyYAML.

The chart is the base with its defaults as values. Names are fixed, so a namespace holds one release. Only two forms of
Helm's language occur: ``{{ .Values.PATH }}``, and ``{{- .Values.PATH | FUNCTION ... }}`` for a block or a checksum.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[1]
VALUES_HEAD = """\
# Defaults of the chart, generated from deploy/kubernetes/base by deploy/helm/generate.py.
#
# image      the image of replicas and the worker, with tag or digest
# secret     an existing secret: `url` of the store with its password, and `password` of the store of this chart
# settings   ABOUND_ variables of replicas and the worker, all of them strings
# replicas   bounds of the HorizontalPodAutoscaler, and how many replicas a drain of nodes leaves
# resources  requests and limits by component; the settings of memory must fit the store's limit
# storage    specifications of the two claims; add storageClassName where the default class does not do
"""
NOTES = """\
Replicas listen once there is a key. Make the first one; it is shown this once:

  kubectl -n {{ .Release.Namespace }} exec deploy/worker -- abound keys create --scope admin --description operator
"""


def base() -> list[dict[str, Any]]:
    """Return the documents that kustomize makes of the base."""
    words = ["kubectl", "kustomize", str(DEPLOY / "kubernetes" / "base")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)  # noqa: S603  fixed words
    return list(yaml.safe_load_all(done.stdout))


class Values(dict[str, Any]):
    """Collects defaults, and returns what stands for them in the templates until ``text`` writes Helm's language."""

    def value(self, path: str, default: Any) -> str:
        """Return the place of a value in a line."""
        self._set(path, default)
        return f"@value {path}@"

    def block(self, path: str, default: Any) -> str:
        """Return the place of a mapping."""
        self._set(path, default)
        return f"@block {path}@"

    def _set(self, path: str, default: Any) -> None:
        *above, name = path.split(".")
        place: dict[str, Any] = self
        for one in above:
            place = place.setdefault(one, {})
        if place.setdefault(name, default) != default:
            raise ValueError(f"{path} has two defaults: {place[name]!r} and {default!r}")


def templated(document: dict[str, Any], values: Values) -> dict[str, Any]:
    """Return a document of the base with places for the values."""
    kind, name = document["kind"], document["metadata"]["name"]
    del document["metadata"]["namespace"]  # Helm's --namespace
    spec = document.get("spec", {})
    if kind == "ConfigMap":
        document["metadata"]["name"] = "abound"
        document["data"] = values.block("settings", document["data"])
    elif kind == "PersistentVolumeClaim":
        document["spec"] = values.block("storage.artifacts", spec)
    elif kind == "HorizontalPodAutoscaler":
        spec["minReplicas"] = values.value("replicas.min", spec["minReplicas"])
        spec["maxReplicas"] = values.value("replicas.max", spec["maxReplicas"])
    elif kind == "PodDisruptionBudget" and name == "replica":
        spec["minAvailable"] = values.value("replicas.minAvailable", spec["minAvailable"])
    elif kind in ("Deployment", "StatefulSet"):
        pod = spec["template"]["spec"]
        [container] = pod["containers"]
        container["resources"] = values.block(f"resources.{name}", container["resources"])
        for volume in pod["volumes"]:
            if "secret" in volume:
                volume["secret"]["secretName"] = values.value("secret", volume["secret"]["secretName"])
        if kind == "Deployment":
            container["image"] = values.value("image", container["image"])
            container["envFrom"] = [{"configMapRef": {"name": "abound"}}]
            spec["template"]["metadata"]["annotations"] = {"checksum/settings": "@checksum settings@"}
        else:
            [claim] = spec["volumeClaimTemplates"]
            claim["spec"] = values.block("storage.store", claim["spec"])
    return document


def text(document: dict[str, Any]) -> str:
    """Return a template as Helm takes it."""
    written = yaml.safe_dump(document, width=1000).replace("managed-by: kustomize", "managed-by: Helm")
    if "{{" in written:
        raise ValueError("the base has {{, which Helm would read as its own")
    written = re.sub(
        r"^( *)(\S+): '@block (\S+)@'$",
        lambda found: f"{found[1]}{found[2]}: {{{{- .Values.{found[3]} | toYaml | nindent {len(found[1]) + 2} }}}}",
        written,
        flags=re.MULTILINE,
    )
    written = re.sub(r"'@value (\S+)@'", r"{{ .Values.\1 }}", written)
    return re.sub(r"'@checksum (\S+)@'", r"{{ .Values.\1 | toJson | sha256sum }}", written)


def chart() -> dict[str, str]:
    """Return the files of the chart by their paths."""
    documents = [one for one in base() if one["kind"] != "Namespace"]
    values = Values()
    version = documents[0]["metadata"]["labels"]["app.kubernetes.io/version"]
    templates = [text(templated(one, values)) for one in documents]
    about = {
        "apiVersion": "v2",
        "name": "abound",
        "description": "A self-hosted classification service that learns from every correction",
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": ">=1.27.0-0",
        "sources": ["https://github.com/abound-ml/abound"],
    }
    return {
        "Chart.yaml": yaml.safe_dump(about, sort_keys=False),
        "values.yaml": VALUES_HEAD + yaml.safe_dump(dict(values)),
        "templates/abound.yaml": "---\n".join(templates),
        "templates/NOTES.txt": NOTES,
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "abound"
    for path, content in chart().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)

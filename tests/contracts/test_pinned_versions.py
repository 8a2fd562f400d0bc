"""What others made is taken as it was tried: by its whole version, or its digest."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.contracts.manifests import FOLDERS, one_of, pods, rendered

ROOT = Path(__file__).parents[2]


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
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return found


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

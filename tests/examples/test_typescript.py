"""The TypeScript example: its types are those of the API, its client compiles, and it talks to a running service."""

import shutil
from pathlib import Path

import pytest

from tests.support.npm import install, run
from tests.support.served import fresh_model

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example with its packages, beside the OpenAPI document."""
    root = tmp_path_factory.mktemp("typescript")
    folder = root / "examples" / "typescript"
    shutil.copytree(ROOT / "examples" / "typescript", folder, ignore=shutil.ignore_patterns("node_modules", "build"))
    (root / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "openapi.json", root / "docs")
    install(folder)
    return folder


def test_the_types_are_those_of_the_committed_document(folder):
    committed = (folder / "schema.d.ts").read_text()
    done = run(folder, "npm", "run", "types")
    assert done.returncode == 0, done.stderr
    assert (folder / "schema.d.ts").read_text() == committed, "cd examples/typescript && npm ci && npm run types"


def test_the_client_teaches_and_asks(folder, service):
    done = run(folder, "npm", "run", "build")  # checks types, too
    assert done.returncode == 0, done.stdout
    model = fresh_model(service, update="sls")
    client = ["node", "build/client.js"]
    for text, label in (("charged twice for May", "billing"), ("the app crashes", "bug")):
        done = run(folder, *client, model, text, label, ABOUND_URL=service.url)
        assert done.stdout.startswith(f"{label} 0."), done.stderr
    assert run(folder, *client, model, "charged again", ABOUND_URL=service.url).stdout.startswith("billing 0.")
    refused = run(folder, *client, "absent", "charged again", ABOUND_URL=service.url)
    assert refused.returncode == 1
    assert "there is no model 'absent' (404)" in refused.stderr

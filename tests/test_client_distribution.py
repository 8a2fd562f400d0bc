"""The distribution of the client alone: it has what it needs, and requires as little as it says."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.test_licences import PROJECT, closure, link

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "packages" / "abound-client"
OURS = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]

PROGRAM = """
import sys
import abound
from abound import AsyncClient, Client, InputInstance, Labelled, Model, Refused
from abound.client import Unreachable
loaded = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(*sorted(name for name in loaded if not name.startswith("_")))
print(abound.__version__)
print(Client("http://127.0.0.1:9").model("news"))
for trial in (lambda: abound.AboundClassifier, lambda: Client(":memory:")):
    try:
        trial()
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, and links to what it requires as it is installed here."""
    folder = tmp_path_factory.mktemp("client")
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "made", SOURCE]
    subprocess.run(words, check=True)
    packages = link(closure(OURS["dependencies"]).values(), folder / "home")
    [wheel] = (folder / "made").glob("abound_client-*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(packages)
    return folder / "home" / "bin" / "python"


def test_the_client_needs_its_requirements_and_nothing_else(python: Path, tmp_path: Path) -> None:
    done = subprocess.run([python, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded, version, model, classifier, memory = done.stdout.splitlines()
    required = {name.replace("-", "_") for name in closure(OURS["dependencies"])}
    assert {"abound", "httpx", "msgspec"} <= set(loaded.split()) <= required | {"abound", "abound_core"}
    assert version == PROJECT["version"]
    assert model == "<Model 'news' of http://127.0.0.1:9>"
    assert classifier.endswith("pip install 'abound[sklearn]'")
    assert memory.endswith("pip install abound")


def test_both_distributions_require_the_same_versions() -> None:
    assert set(OURS["dependencies"]) < set(PROJECT["dependencies"])
    assert OURS["requires-python"] == PROJECT["requires-python"]

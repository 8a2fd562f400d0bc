"""The wheel works without a checkout: built from a copy, installed beside what it requires and nothing else."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from tests.test_licences import RUNTIME, link

ROOT = Path(__file__).parent.parent
START_SECONDS = 240


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no checkout")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tracked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    for name in tracked:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "made", tree]
    subprocess.run(words, check=True)
    [made] = (folder / "made").iterdir()
    return made


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel and links to what it requires, as it is installed here."""
    home = tmp_path_factory.mktemp("environment")
    link(RUNTIME.values(), home)
    words = [sys.executable, "-m", "pip", "--python", home, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(words, check=True)
    return home / "bin"


class Elsewhere:
    """Runs ``abound`` of the wheel in a directory that is no checkout."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.folder = folder
        self._program = programs / "abound"
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("ABOUND_", "PYTHON", "NUMBA_"))
        }
        self._environment = kept | {"NUMBA_CACHE_DIR": str(folder / "kernels"), "COLUMNS": "120"}

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [self._program, *words],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def served(self) -> Iterator[str]:
        """The address of ``abound serve``, with its worker."""
        said = self.folder / "said"
        with said.open("wb") as output:
            words = [self._program, "serve", "--port", "0", "--data-dir", "kept"]
            process = subprocess.Popen(words, cwd=self.folder, env=self._environment, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not (found := re.search(r"listening on (http://\S+?),", said.read_text())) or not ready(found[1]):
                assert process.poll() is None, said.read_text()
                assert time.monotonic() < deadline, said.read_text()
                time.sleep(0.1)
            self._environment["ABOUND_URL"] = found[1]
            yield found[1]
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, said.read_text()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def elsewhere(programs: Path, tmp_path: Path) -> Elsewhere:
    return Elsewhere(programs, tmp_path)


@pytest.mark.long
def test_the_wheel_holds_every_file_of_its_packages_and_no_other(wheel: Path, tracked: list[str]) -> None:
    """Data are named in pyproject.toml by the kind of file; a new kind is easily forgotten there."""
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in held} == {"abound", "abound_core"}
    assert held == {name.partition("/")[2] for name in tracked if name.startswith(("core/", "service/"))}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_service_learns_classifies_and_fits_in_an_empty_environment(elsewhere: Elsewhere) -> None:
    """The kernels are compiled anew, which is what takes a minute."""
    words = {"grain": "wheat corn barley", "crude": "oil barrel opec", "coffee": "beans roast brazil"}
    events = [
        {"text": f"{words[label].split()[i % 3]} {words[label].split()[i // 3 % 3]}", "labels": [label]}
        for i in range(90)
        for label in words
    ]
    (elsewhere.folder / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    (elsewhere.folder / "asked.jsonl").write_text('{"text": "corn and barley"}\n')
    with elsewhere.served() as url:
        elsewhere.run("learn", "events.jsonl")
        [answer] = elsewhere.run("classify", "asked.jsonl").splitlines()
        assert json.loads(answer)["labels"][0]["label"] == "grain"
        job = json.loads(elsewhere.run("jobs", "submit", "swnn", "--follow", "--json").splitlines()[-1])
        assert job["state"] == "succeeded"
        page = httpx.get(url)
        files = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert len(files) > 3
        for file in [*files, "/docs", "/openapi.json"]:
            assert httpx.get(urljoin(url + "/", file)).status_code == 200, file

"""The first start on a machine: ready when the default model's kernels are compiled, the others come behind."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import httpx
import pytest

from abound.processes import kernel_cache, kernel_compiler
from abound.processes.kernel_cache import KEPT_SECONDS, VARIABLE, set_cache_dir
from abound_core.errors import CannotStart
from tests.support.job_worker import until
from tests.support.served import Served, problem, served

ROOT = Path(__file__).parents[2]


@pytest.fixture
def coming(monkeypatch: pytest.MonkeyPatch) -> dict[str, Future[None]]:
    """A process in which these groups are being compiled."""
    futures: dict[str, Future[None]] = {group: Future() for group in ("sls", "reranked", "plain", "decided")}
    monkeypatch.setattr(kernel_compiler, "coming", futures)
    return futures


@pytest.fixture
def service(coming: dict[str, Future[None]]) -> Iterator[Served]:
    with served() as service:
        yield service


def test_a_request_waits_for_the_kernels_of_its_model_and_others_go_on(service, coming):
    answers: list[httpx.Response] = []
    asking = threading.Thread(
        target=lambda: answers.append(httpx.put(f"{service.url}/models/small", json={"update": "sls"}, timeout=60))
    )
    asking.start()
    learned = service.http.post("/learn", json={"text": "wheat", "labels": ["grain"]})
    assert learned.is_success
    assert asking.is_alive()
    assert "small" not in service.http.get("/models").text
    coming["sls"].set_result(None)
    coming["reranked"].set_result(None)
    asking.join(60)
    assert answers[0].status_code == 201
    assert service.http.post("/models/small/learn", json={"text": "wheat", "labels": ["grain"]}).is_success


def test_a_request_that_waited_long_enough_is_told_when_to_ask_again(service, monkeypatch):
    monkeypatch.setattr(kernel_compiler, "PATIENCE_SECONDS", 0.01)
    for method, path, body in (
        ("PUT", "/models/small", {"update": "sls"}),
        ("PUT", "/models/default", {"calibrate": False}),
    ):
        answer = service.http.request(method, path, json=body)
        assert "first start" in problem(answer, 503, "not-ready")["detail"]
        assert int(answer.headers["retry-after"]) > 0
    assert service.http.get("/models/default").json()["config"]["calibrate"]


@pytest.mark.long
@pytest.mark.timeout(900)  # compiles all kernels
def test_with_an_empty_cache_the_service_is_ready_before_all_is_compiled(tmp_path: Path) -> None:
    cache = tmp_path / "kernels"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    words = [sys.executable, "-m", "abound", "serve", "--port", "0", "--data-dir", str(tmp_path / "data")]
    with subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as service:
        try:
            assert service.stderr is not None
            said = []
            for line in service.stderr:
                said.append(line)
                if ": ready on " in line:
                    break
            assert any("compiling kernels, first start only" in line for line in said), said
            assert list(cache.glob("complete-*")) == []
            with httpx.Client(base_url=said[-1].split("ready on ")[1].strip(), timeout=60) as http:
                learn_at_once(http)
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(60)


def learn_at_once(http: httpx.Client) -> None:
    answer = until(lambda: (got := http.put("/models/small", json={"update": "sls"})).status_code != 503 and got, 600)
    assert answer.status_code == 201
    assert http.post("/models/small/learn", json={"text": "wheat", "labels": ["grain"]}).is_success


@pytest.fixture
def source(monkeypatch, tmp_path):
    copy = tmp_path / "source"
    shutil.copytree(kernel_cache.SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(kernel_cache, "SOURCE", copy)
    return copy


def test_any_change_of_any_kernel_leads_to_another_directory(source, tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def placed():
        return set_cache_dir(dict(environment))

    first = placed()
    assert placed() == first
    assert first.parent == tmp_path / "cache" / "abound"
    file = next(source.glob("index/*_kernels.py"))
    file.write_text(file.read_text() + "\n")
    second = placed()
    file.rename(source / "renamed_kernels.py")
    assert len({first, second, placed()}) == 3


def test_it_is_named_in_the_environment_and_one_that_is_named_is_left(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    path = set_cache_dir(environment)
    assert environment[VARIABLE] == str(path)
    assert path.is_dir()
    environment = {VARIABLE: "/elsewhere"}
    assert str(set_cache_dir(environment)) == "/elsewhere"
    assert environment == {VARIABLE: "/elsewhere"}


def test_without_a_home_that_can_be_written_the_temporary_directory_is_used_if_it_is_ours(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").write_text("")
    environment = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    path = set_cache_dir(dict(environment))
    assert path.parent == tmp_path / f"abound-{os.getuid()}-cache"
    path.parent.chmod(0o777)
    with pytest.raises(CannotStart, match="mode 0700"):
        set_cache_dir(dict(environment))


def test_directories_that_nobody_used_for_long_go(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    home = tmp_path / "abound"
    for name, age in (("kernels-old", KEPT_SECONDS + 60), ("kernels-recent", 60), ("other", KEPT_SECONDS + 60)):
        (home / name).mkdir(parents=True)
        os.utime(home / name, (time.time() - age,) * 2)
    path = set_cache_dir(environment)
    assert {entry.name for entry in home.iterdir()} == {"kernels-recent", "other", path.name}

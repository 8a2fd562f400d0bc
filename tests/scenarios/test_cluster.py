"""Batch work on a Dask cluster, a scheduler and two workers in processes of their own: the same as here, to the bit."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from abound.processes.kernel_cache import set_cache_dir
from abound.processes.lifetime import dies_with_parent
from abound.processes.parallel import parallel
from abound_core.errors import CannotStart, ClusterUnavailable, InvalidInstance
from abound_core.measures import Rankings
from abound_core.methods.fitted import FittedMethod
from abound_core.methods.training.parallel import spread
from tests.core.methods.toy import RAW, fit, made

Client = pytest.importorskip("distributed").Client

ROOT = Path(__file__).parent.parent.parent


class Cluster:
    """A scheduler and workers, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        set_cache_dir()
        self._folder = folder
        self._file = folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        deadline = time.monotonic() + 90
        while not self._file.exists() or not self._file.read_text().endswith("}"):  # it is written in steps
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.address = json.loads(self._file.read_text())["address"].replace("tcp://", "dask://")

    def add_worker(self) -> None:
        words = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(self._folder)]
        self.workers.append(self._start("worker", *words))

    def _start(self, kind: str, *words: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with open(self._folder / "log", "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "dask", kind, "--scheduler-file", str(self._file), *words],
                cwd=self._folder,
                env=environment,
                stdout=output,
                stderr=output,
                preexec_fn=dies_with_parent(),
            )

    def stop(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait(30)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster with two workers."""
    started = Cluster(tmp_path_factory.mktemp("cluster"))
    started.add_worker()
    started.add_worker()
    yield started.address
    started.stop()


@pytest.fixture
def mortal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster with one worker, to be killed; nobody waits long for another one."""
    monkeypatch.setattr("abound.processes.parallel.BACK_SECONDS", 60.0)
    monkeypatch.setattr("abound.processes.parallel.LOOK_SECONDS", 0.1)
    started = Cluster(tmp_path)
    started.add_worker()
    yield started
    started.stop()


def fitted(method: str) -> tuple[FittedMethod, Rankings]:
    data = made(700, seed=0)
    model = fit(method, data, **RAW.get(method, {}))
    return model, model.rank(data.X, 10)


def applied(cluster: str) -> dict[int, int]:
    """How many pieces of work each worker has done, by its process."""

    def pieces() -> tuple[int, int]:
        from abound.processes.parallel import unpack

        return os.getpid(), sum(unpack.cache_info()[:2])

    with Client(cluster.replace("dask://", "tcp://")) as client:
        return dict(client.run(pieces).values())


@pytest.mark.parametrize("method", ["swnn", "one_vs_rest", "ogeec", "exmlds1", "exmlds2", "exmlds3", "exmlds_joint"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_as_here_to_the_bit(cluster: str, method: str) -> None:
    with parallel(None, 1):
        here, ranked = fitted(method)
    before = applied(cluster)
    with parallel(cluster, 1):
        there, again = fitted(method)
    after = applied(cluster)
    assert os.getpid() not in after
    assert sum(after.values()) > sum(before.values()), "nothing was done on the cluster"
    arrays, others = here.to_arrays(), there.to_arrays()
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)
    for part, other in zip(ranked, again, strict=True):
        np.testing.assert_array_equal(part, other)


def work(folder: Path, pieces: int) -> Callable[[int], int]:
    """Pieces that say that they were begun. Piece 1 waits for leave to end; no other does, so it always begins."""

    def one(number: int) -> int:
        (folder / f"begun-{number}-{os.getpid()}").touch()
        while number == 1 and not (folder / "leave").exists():
            time.sleep(0.02)
        return number * number

    return one


def begun(folder: Path, number: int) -> set[int]:
    return {int(path.name.rpartition("-")[2]) for path in folder.glob(f"begun-{number}-*")}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_goes_on_with_another_worker_when_the_one_at_work_is_killed(mortal: Cluster, tmp_path: Path) -> None:
    def told(number: int) -> None:
        if number >= 1 and begun(tmp_path, 1) and not (tmp_path / "leave").exists():
            mortal.workers[0].kill()
            mortal.workers[0].wait(30)
            (tmp_path / "leave").touch()
            mortal.add_worker()

    with parallel(mortal.address, 1):
        assert spread(work(tmp_path, 4), [(i,) for i in range(4)], told) == [0, 1, 4, 9]
    assert len(begun(tmp_path, 1)) == 2, "it was not done again"
    assert len(begun(tmp_path, 0)) == 1, "what was done was done again"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_what_the_work_raises_is_not_taken_for_a_lost_cluster(cluster: str, tmp_path: Path) -> None:
    def wrong(number: int) -> int:
        (tmp_path / f"tried-{time.monotonic_ns()}").touch()
        raise InvalidInstance("no", "here")

    with pytest.raises(InvalidInstance), parallel(cluster, 1):
        spread(wrong, [(0,)])
    assert len(list(tmp_path.glob("tried-*"))) == 1


def test_refuses_what_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abound.processes.parallel.CONNECT_SECONDS", 0.5)
    with pytest.raises(CannotStart, match="dask://"), parallel("spark://here", 1):
        pass
    with pytest.raises(ClusterUnavailable, match="cannot be used"), parallel("dask://127.0.0.1:1", 1):
        pass

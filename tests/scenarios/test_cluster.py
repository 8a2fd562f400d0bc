"""Batch work on a Dask cluster, a scheduler and two workers in processes of their own: the same as here, to the bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from core.errors import CannotStart, NotReady
from core.methods import fitted as fitting
from core.methods import registry
from core.methods.fitted import Fitted
from core.methods.gathering import Gathering
from core.methods.progress import quietly
from core.methods.rankings import Rankings
from service.cluster import parallel
from service.kernel_cache import place
from service.parentage import dies_with_parent
from tests.service.activated import vector

Client = pytest.importorskip("distributed").Client

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster with two workers."""
    folder = tmp_path_factory.mktemp("cluster")
    place()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    file = folder / "scheduler.json"
    words = {
        "scheduler": ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"],
        "worker": ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(folder)],
    }
    processes = []
    with open(folder / "log", "wb") as output:
        for kind in ("scheduler", "worker", "worker"):
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "dask", kind, "--scheduler-file", str(file), *words[kind]],
                    cwd=folder,
                    env=environment,
                    stdout=output,
                    stderr=output,
                    preexec_fn=dies_with_parent(),
                )
            )
            deadline = time.monotonic() + 90
            while not file.exists():
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.05)
    yield json.loads(file.read_text())["address"].replace("tcp://", "dask://")
    for process in reversed(processes):
        process.terminate()
        process.wait(30)


def fitted(method: str) -> tuple[Fitted, Rankings]:
    rng = np.random.default_rng(0)
    vectors = [vector({f"f{i}": 1.0 for i in rng.integers(0, 200, 6).tolist()}) for _ in range(700)]
    gathering = Gathering((1, 2))
    for one, label in zip(vectors, rng.integers(0, 12, len(vectors)).tolist(), strict=True):
        gathering.add(one, [f"l{label}"])
    params = registry.params_of(method, {})
    made = fitting.fit(method, gathering.matrices(), params, np.random.default_rng(3), quietly)
    return made, made.rank_vectors(vectors, 10)


def applied(cluster: str) -> dict[int, int]:
    """How many pieces of work each worker has done, by its process."""

    def pieces() -> tuple[int, int]:
        from core.methods import spread

        return os.getpid(), sum(spread._unpacked.cache_info()[:2])

    with Client(cluster.replace("dask://", "tcp://")) as client:
        return dict(client.run(pieces).values())


@pytest.mark.parametrize("method", ["swnn", "one_vs_rest"])
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


def test_refuses_what_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.cluster.CONNECT_SECONDS", 0.5)
    with pytest.raises(CannotStart, match="dask://"), parallel("spark://here", 1):
        pass
    with pytest.raises(NotReady, match="cannot be used"), parallel("dask://127.0.0.1:1", 1):
        pass

"""A fit takes no more memory than it says before it starts: on several threads, and where a few instances have most."""

import re
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from joblib import parallel_config
from scipy import sparse

from abound.core.instances.vocabulary import Vocabulary
from abound.core.methods.neighbors import ogeec
from abound.core.methods.registry import METHODS
from abound.core.methods.training import hierarchy
from abound.core.methods.training.matrices import Matrices, l2_normalise
from abound.core.methods.training.progress import no_progress

PEAK = Path("/proc/self/clear_refs")
SLACK = 2**20


def rows(rng, n, d, width):
    """As many of the columns in each row; some come twice, and are there once."""
    matrix = sparse.csr_matrix(
        (np.ones(n * width), (np.repeat(np.arange(n), width), rng.integers(0, d, n * width))), shape=(n, d)
    )
    matrix.data[:] = 1.0
    return matrix


def matrices(X, Y):
    """Instances whose features and labels have their numbers as names."""
    features, (_, d) = Vocabulary((1, 2)), X.shape
    for column in range(d):
        features.add(str(column).encode())
    X = X.astype(np.float32)
    l2_normalise(X)
    return Matrices(X=X, Y=Y.astype(np.int8), features=features, labels=[str(i) for i in range(Y.shape[1])])


def skewed(few):
    """Some with very many features and labels, and 4,000 with few."""
    rng = np.random.default_rng(0)
    X = sparse.vstack([rows(rng, few, 5000, 2000), rows(rng, 4000, 5000, 3)], "csr")
    return matrices(X, sparse.vstack([rows(rng, few, 400, 200), rows(rng, 4000, 400, 1)], "csr"))


def told(method, data, params, n_threads=1):
    with parallel_config("threading", n_jobs=n_threads):
        return sum(METHODS[method].needs_of(data, params).values())


def allocated(method, data, params, n_threads=1):
    """Most bytes that a fit had at one time."""
    tracemalloc.start()
    try:
        with parallel_config("threading", n_jobs=n_threads):
            METHODS[method].fit(data, params, np.random.default_rng(0), no_progress)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("few", [0, 20])
@pytest.mark.parametrize(
    ("method", "changes"),
    [("ind", {"p_ind": 0.1}), ("ind", {"p_ind": 0.0}), ("ind", {}), ("unweighted", {"passes": 1})],
)
def test_pairs_of_a_feature_and_a_label_count_where_they_are(method, changes, few):
    data = skewed(few)
    if not few:
        rng = np.random.default_rng(1)
        data = matrices(rows(rng, 4000, 30_000, 40), rows(rng, 4000, 400, 20))
    params = METHODS[method].params(**changes)
    allocated(method, data.first(50), params)
    assert allocated(method, data, params) < told(method, data, params) + SLACK


def test_the_classifiers_of_the_unweighted_index_count():
    rng = np.random.default_rng(1)
    data = matrices(rows(rng, 500, 3000, 20), rows(rng, 500, 100, 2))
    params = METHODS["unweighted"].params(passes=1, classifiers=10)
    allocated("unweighted", data.first(50), params)
    assert (
        told("unweighted", data, params) / 4 < allocated("unweighted", data, params) < told("unweighted", data, params)
    )


@pytest.mark.parametrize("n_threads", [1, 3, 8])
def test_each_thread_draws_its_own_part_of_a_projection(monkeypatch, n_threads):
    monkeypatch.setattr(ogeec, "BLOCK", 1000)
    rng = np.random.default_rng(0)
    data = matrices(rows(rng, 6000, 20_000, 20), rows(rng, 6000, 5, 1))
    params = ogeec.Params(dim=100, learners=1)
    allocated("ogeec", data.first(50), params)
    taken, said = allocated("ogeec", data, params, n_threads), told("ogeec", data, params, n_threads)
    assert taken < said
    assert n_threads > 1 or taken > 0.4 * said  # on a busy machine several threads may draw one after the other


@pytest.mark.skipif(not PEAK.exists(), reason="the system does not tell the peak of a process's memory")
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("method", ["one_vs_rest", "top_down"])
def test_the_copies_of_liblinear_count(method, n_threads):
    """It takes them outside of Python, so what is told is compared with the process."""
    rng = np.random.default_rng(0)
    data = matrices(rows(rng, 10_000, 1000, 100), rows(rng, 10_000, 4, 1))
    below = [(str(i), "even" if i % 2 == 0 else "odd") for i in range(4)]
    data = replace(data, hierarchy=hierarchy.of_pairs(data.labels, below))
    params = METHODS[method].params(C=0.01)
    fit = METHODS[method].fit
    fit(data.first(50), params, np.random.default_rng(0), no_progress)
    PEAK.write_text("5")
    before = resident("VmRSS")
    with parallel_config("threading", n_jobs=n_threads):
        fit(data, params, np.random.default_rng(0), no_progress)
    assert resident("VmHWM") - before < told(method, data, params, n_threads) + 4 * SLACK


def resident(field):
    """Bytes of memory of this process; ``VmHWM``: the most that there were since that was reset."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024

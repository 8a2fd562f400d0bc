"""Neighbours of dense vectors: exact ones against a full product, approximate ones by their recall; projections."""

import math
import re
import zlib
from dataclasses import replace

import numpy as np
import pytest
from numba import njit
from scipy import sparse

from abound_core.methods import registry
from abound_core.methods.neighbors import ogeec, vector_search
from abound_core.methods.neighbors.projection import Vectors, project
from abound_core.methods.neighbors.projection_kernels import draw_rows
from abound_core.methods.training.progress import no_progress
from tests.core.methods.toy import made, queries


def vectors(n: int, dim: int, seed: int) -> Vectors:
    drawn = np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.mark.parametrize("n", [3, 700, vector_search.TILE + 5])
def test_exact_neighbours_are_those_of_the_whole_product(n):
    train, test = vectors(n, 20, seed=0), vectors(40, 20, seed=1)
    found = vector_search.search_exact(test, train, 10)
    products = test @ train.T
    for row in range(40):
        order = np.argsort(-products[row], kind="stable")[:10]
        order = order[products[row][order] > 0]
        assert found.counts[row] == len(order)
        np.testing.assert_allclose(found.sims[row, : len(order)], products[row][order], atol=1e-6)
        assert set(found.ids[row, : len(order)]) == set(order) or n > 3


def test_the_random_matrix_has_the_same_bits_on_every_machine():
    """By arithmetic alone: the functions of a machine's mathematical library may differ in the last bit."""
    drawn = np.empty((2000, 33), np.float32)
    draw_rows(np.uint64(7), np.arange(2000, dtype=np.int32), drawn)
    assert f"{zlib.crc32(drawn.tobytes()):08x}" == "19e0b653"
    compiled = njit(error_model="numpy")(draw_rows.py_func)  # code out of the cache cannot be looked at
    compiled(np.uint64(7), np.zeros(1, np.int32), drawn[:1])
    called = set(re.findall(r"call [^@\n]*@([\w.]+)", "".join(compiled.inspect_llvm().values())))
    assert "sqrt" in called
    assert not [name for name in called if re.search(r"\b(log|sin|cos|pow|exp|fma|fmuladd)\b", name)]


def test_projections_are_those_of_box_and_muller():
    """Out of the bits of splitmix64, computed here with the functions of the library."""
    drawn = np.empty((300, 40), np.float32)
    draw_rows(np.uint64(9), np.arange(300, dtype=np.int32), drawn)
    step, word = 0x9E3779B97F4A7C15, 2**64 - 1

    def mixed(number: int) -> int:
        number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & word
        number = (number ^ (number >> 27)) * 0x94D049BB133111EB & word
        return number ^ (number >> 31)

    for feature in range(300):
        state = mixed((9 + feature * step) & word)
        for j in range(0, 40, 2):
            state = (state + step) & word
            bits = mixed(state)
            length = math.sqrt(-2 * math.log(((bits >> 32) + 1) * 2**-32))
            angle = (bits & 0xFFFFFFFF) * 2 * math.pi * 2**-32
            expected = [length * math.cos(angle), length * math.sin(angle)]
            np.testing.assert_allclose(drawn[feature, j : j + 2], expected, rtol=2e-7, atol=1e-14)


@pytest.mark.parametrize(("index", "least"), [("graph", 0.95), ("lsh", 0.3)])
def test_approximate_neighbours_tell_their_recall(index, least):
    if index == "graph":
        pytest.importorskip("usearch")
    data = made(400, seed=0)
    params = registry.params_of("ogeec", {"index": index, "learners": 2, "neighbors": 10})
    model = ogeec.fit(data, params, np.random.default_rng(0), no_progress)
    assert least <= model.recall <= 1.0
    assert ogeec.fit(data, ogeec.Params(), np.random.default_rng(0), no_progress).recall == 1.0
    assert model.facts() == {"recall_of_neighbors": model.recall}
    again = ogeec.Model.from_arrays(model.to_arrays(), len(data.features), len(data.labels))
    X = queries(data, 60, seed=1)
    for one, other in zip(model.rank(X, 5), again.rank(X, 5), strict=True):
        np.testing.assert_array_equal(one, other)


def test_scores_are_means_of_cosines_over_the_learners():
    data = made(100, seed=0)
    params = ogeec.Params(dim=30, neighbors=4, learners=3)
    model = ogeec.fit(data, params, np.random.default_rng(0), no_progress)
    X = queries(data, 10, seed=1)
    expected = np.zeros((11, len(data.labels)))
    for learner in model.learners:
        z = project(X, learner.seed, 30)
        products = z @ learner.vectors.T
        for row in range(10):
            for i in np.argsort(-products[row])[:4]:
                expected[row] += max(products[row, i], 0) * data.Y[int(learner.order[i])].toarray()[0] / 3
    found = model.rank(X, 100)
    dense = np.zeros_like(expected)
    dense[np.repeat(np.arange(11), np.diff(found.starts)), found.ids] = found.scores
    np.testing.assert_allclose(dense, expected, atol=1e-5)


def test_of_equal_instances_the_learners_take_different_ones():
    data = made(60, seed=0)
    X = sparse.vstack([data.X[0]] * 60, format="csr")
    alike = replace(data, X=X, Y=sparse.identity(60, np.int8, format="csr"), labels=[str(i) for i in range(60)])
    model = ogeec.fit(alike, ogeec.Params(neighbors=12, learners=5), np.random.default_rng(0), no_progress)
    found = model.rank(X[:1], 60)
    assert sorted(found.ids) == list(range(60))
    np.testing.assert_allclose(found.scores, 1 / 5, rtol=1e-5)

"""Linear classifiers and hierarchies of them, against plain arithmetic."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.svm import LinearSVC

from abound_core.measures import Propensity, evaluate
from abound_core.methods.linear import one_vs_rest, top_down, xr_linear
from abound_core.methods.linear.classifiers import svm_weights
from abound_core.methods.linear.perceptron_kernels import learn_perceptron
from abound_core.methods.training import hierarchy
from abound_core.methods.training.matrices import Hierarchy
from abound_core.methods.training.progress import no_progress
from tests.core.methods.toy import made, queries


def test_the_perceptron_is_the_one_of_the_book():
    data = made(80, seed=0)
    positive = data.Y.toarray()[:, 0] > 0
    order = np.random.default_rng(0).permutation(80)
    dense = data.X.toarray().astype(np.float64)
    expected, best, waited, passes = np.zeros(dense.shape[1]), 81, 0, 0
    while waited < 3:
        passes += 1
        errors = 0
        for row in order:
            if (dense[row] @ expected > 0) != positive[row]:
                errors += 1
                expected += dense[row] if positive[row] else -dense[row]
        best, waited = (errors, 0) if errors < best else (best, waited + 1)
        if errors == 0:
            break
    weights = np.zeros(dense.shape[1])
    rows = (data.X.indptr, data.X.indices, data.X.data)
    assert learn_perceptron(rows, positive, order, weights, np.zeros(len(weights)), 3, 1000) == passes > 1
    np.testing.assert_allclose(weights, expected, atol=1e-9)


def test_a_weight_of_a_committee_begins_at_random_when_it_is_first_updated():
    """JMLR 2009, section 5: a feature that took part in no mistake has no weight."""
    X = sparse.csr_matrix(np.array([[1, 0, 0], [0, 1, 0]], np.float32))
    weights, initial = np.zeros(3), np.array([0.5, 0.25, 0.125])
    positive = np.array([True, False])
    learn_perceptron((X.indptr, X.indices, X.data), positive, np.arange(2), weights, initial, 3, 1000)
    # Only the first row is scored wrongly, with 0: its feature begins at .5 and gets 1.
    assert weights.tolist() == [1.5, 0.0, 0.0]


@pytest.mark.parametrize("cost", [0.1, 1.0, 10.0])
def test_the_support_vector_machine_is_that_of_liblinear(cost):
    data = made(300, seed=0)
    for label in range(3):
        positive = data.Y.toarray()[:, label] > 0
        weights = svm_weights(data.X, positive, cost, np.random.default_rng(0))
        exact = LinearSVC(C=cost, tol=1e-6, max_iter=100_000).fit(data.X, positive)
        expected = np.append(exact.coef_, exact.intercept_)
        np.testing.assert_allclose(weights, expected, atol=0.02 * np.abs(expected).max())


def test_trees_are_searched_by_the_chances_of_their_paths():
    """Beams that hold every node give each label the mean over the trees of its path's chance."""
    data = made(300, seed=0)
    model = xr_linear.fit(data, xr_linear.Params(trees=2, leaf=2), np.random.default_rng(0), no_progress)
    X = queries(data, 40, seed=1)
    dense = np.hstack([X.toarray(), np.ones((41, 1))])
    weights, expected = model.weights.toarray(), np.zeros((41, 6))
    waiting = [(root, np.zeros(41)) for root in model.roots]
    while waiting:
        node, logs = waiting.pop()
        own = slice(*model.feature_starts[node : node + 2])
        for slot in range(*model.child_starts[node : node + 2]):
            scores = dense[:, model.features[own]] @ weights[own, slot]
            below, target = logs - np.maximum(0, 1 - scores) ** 2, model.targets[slot]
            if target < 6:
                expected[:, target] += np.exp(below) / 2
            else:
                waiting.append((target - 6, below))
    ranked = model.rank(X, 6)
    np.testing.assert_allclose(ranked.scores.reshape(41, 6), -np.sort(-expected, axis=1), rtol=1e-5)


def test_a_node_keeps_its_heaviest_weights_and_the_biases():
    data = made(300, seed=0)
    whole, few = (
        xr_linear.fit(data, xr_linear.Params(trees=1, weights=n), np.random.default_rng(0), no_progress).weights
        for n in (30_000, 12)
    )
    assert whole.nnz > few.nnz == 12 + 6
    assert np.isin(few.data, whole.data).all()
    assert np.sort(np.abs(few.data))[-6] >= np.sort(np.abs(whole.data))[-6 - 6]


def test_trees_are_as_accurate_as_those_of_omikuji(tmp_path):
    omikuji = pytest.importorskip("omikuji", reason="the oracle is not installed: pip install omikuji")
    data, test = made(600, seed=0), made(300, seed=1)
    X = queries(data, 300, seed=1)[:300]
    lines = [f"600 {data.X.shape[1]} 6"]
    for row, own in zip(data.X, data.Y, strict=True):
        pairs = " ".join(f"{f}:{v:.6g}" for f, v in zip(row.indices, row.data, strict=True))
        lines.append(f"{','.join(map(str, own.indices))} {pairs}")
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    params = omikuji.Model.default_hyper_param()
    params.min_branch_size, params.linear_weight_threshold = 3, 0.0
    oracle = omikuji.Model.train_on_data(str(tmp_path / "train.txt"), params, n_threads=1)
    ours = xr_linear.fit(data, xr_linear.Params(leaf=2), np.random.default_rng(0), no_progress).rank(X, 3)
    found = [oracle.predict(list(zip(row.indices.tolist(), row.data.tolist(), strict=True)), top_k=3) for row in X]
    theirs = ours._replace(
        starts=np.cumsum([0, *map(len, found)]), ids=np.array([label for one in found for label, _ in one])
    )
    own, other = (
        evaluate(rankings, test.label_sets, Propensity().weights(np.ones(6), 600))["P@3"] for rankings in (ours, theirs)
    )
    assert own >= other - 0.02 > 0.5


@pytest.mark.parametrize("kind", ["perceptron", "committee", "svm"])
def test_scores_are_those_of_the_weights(kind):
    data = made(200, seed=0)
    model = one_vs_rest.fit(data, one_vs_rest.Params(kind=kind), np.random.default_rng(0), no_progress)
    X = queries(data, 60, seed=1)[:60]
    scores = X.toarray() @ model.weights.toarray() + model.bias
    ranked = model.rank(X, 6)
    np.testing.assert_allclose(ranked.scores.reshape(60, 6), -np.sort(-scores, axis=1), atol=1e-5)
    truth = made(60, seed=1).Y.toarray()
    assert truth[np.arange(60), ranked.ids.reshape(60, 6)[:, 0]].mean() > 0.9


def tree(data):
    """Six labels: 0 above 1 and 2; a node above 3, 4 and 5."""
    name = data.labels
    return hierarchy.of_pairs(name, [(name[1], name[0]), (name[2], name[0]), *((name[i], "others") for i in (3, 4, 5))])


@pytest.mark.parametrize("trials", [0, 1, 3])
def test_chances_are_multiplied_along_the_path(trials):
    data = made(300, seed=0)
    data = replace(data, hierarchy=tree(data))
    params = top_down.Params(trials=trials, p_min=0.0)
    model = top_down.fit(data, params, np.random.default_rng(0), no_progress)
    root, *inner = model.nodes
    assert sorted(root.children.tolist()) == [0, 6]
    first, others = sorted(inner, key=lambda node: node.place)
    assert (sorted(first.children.tolist()), sorted(others.children.tolist())) == ([0, 1, 2], [3, 4, 5])
    X = queries(data, 40, seed=1)[:40]
    expected = np.zeros((40, 6))
    for node, above in ((first, 0), (others, 6)):
        share = root.probabilities(X)[:, root.children.tolist().index(above)]
        expected[:, node.children] = share[:, None] * node.probabilities(X)
    ranked = model.rank(X, 6)
    np.testing.assert_allclose(ranked.scores.reshape(40, 6), -np.sort(-expected, axis=1), rtol=1e-6)
    kept = top_down.fit(data, replace(params, p_min=0.3), np.random.default_rng(0), no_progress).rank(X, 6)
    assert kept.scores.min() >= 0.3
    assert len(kept.scores) == np.count_nonzero(expected >= 0.3)


def test_a_classifier_learns_from_the_instances_of_its_siblings_only():
    data = made(300, seed=0)
    data = replace(data, hierarchy=tree(data))
    model = top_down.fit(data, top_down.Params(), np.random.default_rng(0), no_progress)
    others = next(node for node in model.nodes if node.place == 6)
    rows = np.flatnonzero(data.Y.toarray()[:, 3:].any(axis=1))
    np.testing.assert_array_equal(others.features, np.unique(data.X[rows].indices))


def test_the_sigmoid_is_the_one_that_made_the_data():
    rng = np.random.default_rng(0)
    scores = rng.standard_normal(40_000) * 2
    truth = rng.random(40_000) < top_down.sigmoid_probability(scores, (1.5, -0.7))
    slope, place = top_down.fitted_sigmoid(scores, truth)
    assert abs(slope - 1.5) < 0.05
    assert abs(place + 0.7) < 0.05
    slope, _ = top_down.fitted_sigmoid(np.array([-1.0, -2.0, 1.0, 2.0]), np.array([False, False, True, True]))
    assert 0 < slope < 100


def test_sibling_share_worked_by_hand():
    """Labels a, b below x and c, d below y; a is nearest to b and b to a, c to b, d has no vector."""
    parents = hierarchy.of_pairs(["a", "b", "c", "d"], [("a", "x"), ("b", "x"), ("c", "y"), ("d", "y")])
    vectors = np.array([[1.0, 0.0], [0.9, 0.1], [0.5, 0.5], [0.0, 0.0]])
    assert hierarchy.sibling_share(vectors, parents) == pytest.approx(2 / 3)
    assert hierarchy.sibling_share(vectors, Hierarchy(parents=sparse.csr_matrix((4, 4)))) == 0.0

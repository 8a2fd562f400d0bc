"""What holds for every registered method, on a small data set.

Same seed, same model, whatever the number of threads; an artifact gives the same model back; a ranking is the head of
the ranking of all labels; the order of the rows changes nothing that this file names.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import joblib
import numpy as np
import pytest
from scipy import sparse

from abound_core.errors import Cancelled, InvalidInstance
from abound_core.measures import LabelSets, Propensity, Rankings, evaluate
from abound_core.methods import fitted, registry
from abound_core.methods.fitted import FittedMethod
from abound_core.methods.training.matrices import Matrices
from abound_core.methods.training.progress import Progress, no_progress
from tests.core.methods.toy import N_CLASSES, SECRET, fit, made, queries

METHODS = sorted(registry.METHODS)
SMALL: dict[str, dict[str, object]] = {"unweighted": {"tolerance": 1}, "xr_linear": {"leaf": 2}}
"""Parameters that suit 200 instances, where the defaults do not."""

DRAWN_FOR_ROWS = {
    *("exmlds1", "exmlds2", "exmlds3", "exmlds_joint", "ff", "ind"),
    *("one_vs_rest", "top_down", "unweighted", "xr_linear"),
}
"""Methods that draw something for each row: in another order they learn something else, as well as before."""

NEIGHBORS = [(method, "neighbors") for method in ("exmlds1", "exmlds2", "exmlds3", "exmlds_joint", "ogeec")]
AT_MOST_ALL = [*NEIGHBORS, *((method, "clusters") for method, _ in NEIGHBORS[:4]), ("swnn", "S")]
"""Methods and their parameters that must not be above the number of instances."""


def learn(method: str, data: Matrices | None = None, progress: Progress = no_progress) -> FittedMethod:
    params = registry.params_of(method, SMALL.get(method, {}))
    return fitted.fit(method, data or made(200, seed=0), params, np.random.default_rng(5), progress)


@cache
def learned(method: str) -> FittedMethod:
    """What the tests that only ask a model share."""
    return learn(method)


def accuracy(rankings: Rankings, labels: list[str], known: list[str]) -> float:
    truth = made(60, seed=1)
    columns = np.array([known.index(label) for label in truth.labels])
    sets = LabelSets(truth.Y.indptr.astype(np.int64), columns[truth.Y.indices].astype(np.int64))
    return float(evaluate(rankings, sets, Propensity().weights(np.ones(len(known)), 200))["R@1"] or 0.0)


def same(left: Rankings, right: Rankings, tolerance: float = 0.0) -> None:
    np.testing.assert_array_equal(left.starts, right.starts)
    if tolerance == 0.0:
        np.testing.assert_array_equal(left.ids, right.ids)
        np.testing.assert_array_equal(left.scores, right.scores)
        return
    np.testing.assert_allclose(left.scores, right.scores, rtol=tolerance, atol=tolerance)
    differ = left.ids != right.ids
    near = np.abs(left.scores[:, None] - left.scores[None, differ]) < 10 * tolerance
    assert np.all(near.sum(axis=0) > 1), "labels change places though their scores are not equal"


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_model_and_it_says_how_far_it_is(method):
    told: list[float] = []
    with joblib.parallel_config(n_jobs=2):
        together = learn(method, progress=lambda stage, done: told.append(done)).to_arrays()
    assert [0.0, *told, 1.0] == sorted([0.0, *told, 1.0])
    alone = learned(method).to_arrays()
    assert together.keys() == alone.keys()
    for name, array in together.items():
        np.testing.assert_array_equal(array, alone[name], err_msg=name)


@pytest.mark.parametrize("method", METHODS)
def test_many_threads_rank_by_one_model(method):
    """As a service does: each answer is the one that it would be alone."""
    model = learned(method)
    X = queries(made(200, seed=0), 100, seed=1)
    alone = model.rank(X, 3)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: model.rank(X, 3), range(12)):
            same(found, alone)


@pytest.mark.parametrize("method", METHODS)
def test_an_artifact_gives_the_same_model_back(method):
    model = learned(method)
    X = queries(made(200, seed=0), 60, seed=1)
    again = FittedMethod.from_arrays(model.meta(), model.to_arrays(), SECRET)
    same(model.rank(X, 5), again.rank(X, 5))
    assert again.labels == model.labels
    assert again.params == model.params
    assert all(array.dtype != object for array in model.to_arrays().values())


@pytest.mark.parametrize("method", METHODS)
def test_a_short_ranking_is_the_head_of_the_long_one(method):
    model = learned(method)
    X = queries(made(200, seed=0), 60, seed=1)
    short, long = model.rank(X, 2), model.rank(X, 10 * N_CLASSES)
    for row in range(X.shape[0]):
        head, whole = slice(*short.starts[row : row + 2]), slice(*long.starts[row : row + 2])
        assert whole.stop - whole.start <= N_CLASSES
        assert head.stop - head.start == min(2, whole.stop - whole.start)
        ids, scores = long.ids[whole], long.scores[whole]
        assert len(set(ids.tolist())) == len(ids)
        assert np.all(np.isfinite(scores))
        np.testing.assert_array_equal(ids, ids[np.lexsort((ids, -scores))])
        np.testing.assert_array_equal(short.ids[head], ids[: head.stop - head.start])
        np.testing.assert_array_equal(short.scores[head], scores[: head.stop - head.start])


@pytest.mark.parametrize("method", METHODS)
def test_rows_are_ranked_one_by_one(method):
    model = learned(method)
    X = queries(made(200, seed=0), 60, seed=1)
    together = model.rank(X, N_CLASSES)
    with joblib.parallel_config(n_jobs=2):
        same(together, model.rank(X, N_CLASSES))
    for row in (0, 30, 60):
        alone = model.rank(X[row], N_CLASSES)
        part = slice(*together.starts[row : row + 2])
        same(alone, Rankings(np.array([0, part.stop - part.start]), together.ids[part], together.scores[part]), 1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_query_is_answered(method):
    model = learned(method)
    X = queries(made(200, seed=0), 3, seed=1)
    assert X[3].nnz == 0
    assert model.rank(X[3], 3).starts[-1] <= 3
    assert list(model.rank(X[:0], 3).starts) == [0]
    assert len(model.rank(X, 0).ids) == 0


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"frequency"}))
def test_it_learns(method):
    model = learned(method)
    assert accuracy(model.rank(queries(made(200, seed=0), 59, seed=1), 5), model.labels, model.labels) > 0.9


@pytest.mark.parametrize("method", sorted(set(METHODS) - DRAWN_FOR_ROWS))
def test_the_order_of_the_rows_changes_nothing(method):
    """Scores agree to 1e-5, since sums may run in another order."""
    data = made(200, seed=0)
    turned = made(200, seed=0, order=np.random.default_rng(9).permutation(200))
    assert turned.keys == data.keys
    assert turned.labels == data.labels
    X = queries(data, 60, seed=1)
    same(learned(method).rank(X, N_CLASSES), learn(method, turned).rank(X, N_CLASSES), 1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_it_can_be_cancelled(method):
    def stop(stage: str, fraction: float) -> None:
        raise Cancelled("not wanted")

    with pytest.raises(Cancelled):
        learn(method, progress=stop)


@pytest.mark.parametrize("method", METHODS)
def test_data_without_anything_to_learn_are_refused(method):
    data = made(20, seed=0)
    params, rng = registry.params_of(method, {}), np.random.default_rng(0)
    unlabelled = registry.Matrices(X=data.X, Y=data.Y * 0, features=data.features, labels=data.labels)
    unlabelled.Y.eliminate_zeros()
    with pytest.raises(InvalidInstance, match="there are no instances"):
        registry.fit(method, data.first(0), params, rng, no_progress)
    with pytest.raises(InvalidInstance, match="no instance has a label"):
        registry.fit(method, unlabelled, params, rng, no_progress)
    empty = data.X * 0
    empty.eliminate_zeros()
    with pytest.raises(InvalidInstance, match="no instance has both a label and an active feature"):
        registry.fit(method, data.with_values(empty), params, rng, no_progress)


def never(stage, fraction):
    pytest.fail("it has started")


@pytest.mark.parametrize(("method", "field"), AT_MOST_ALL)
def test_more_neighbours_or_clusters_than_instances_are_refused(method, field):
    params = registry.params_of(method, {name: 20 for one, name in AT_MOST_ALL if one == method} | {field: 21})
    with pytest.raises(InvalidInstance, match=f"{field} must be at most the 20 instances") as caught:
        registry.fit(method, made(20, seed=0), params, np.random.default_rng(0), never)
    assert caught.value.field == field


@pytest.mark.parametrize(("method", "field"), [one for one in AT_MOST_ALL if one[1] != "clusters"])
def test_by_default_a_few_instances_are_all_neighbours(method, field):
    """Nobody asked for more than there are; and a version that is judged on fewer is fitted on all as it would be."""
    data, params = made(15, seed=0), registry.params_of(method, {})
    assert getattr(params, field) > 15
    model, used = registry.fit(method, data, params, np.random.default_rng(0), no_progress)
    assert used == params
    fewer = registry.params_of(method, {field: 15})
    all_of_them, _ = registry.fit(method, data, fewer, np.random.default_rng(0), no_progress)
    same(model.rank(data.X, 100), all_of_them.rank(data.X, 100))


@pytest.mark.parametrize("method", METHODS)
def test_parameters_are_searched_for_where_the_method_can(method):
    rng = np.random.default_rng(0)
    if registry.METHODS[method].search is None:
        with pytest.raises(InvalidInstance, match=f"{method} has no parameters that can be searched for"):
            registry.fit(method, made(20, seed=0), "auto", rng, no_progress)
        return
    model, params = registry.fit(method, made(200, seed=0), "auto", rng, no_progress)
    assert isinstance(params, registry.METHODS[method].params)
    assert model.rank(made(200, seed=0).X, 1).starts[-1] > 190
    alone = made(6, seed=0)
    alone = replace(alone, Y=sparse.identity(6, np.int8, format="csr"), labels=[str(i) for i in range(6)])
    with pytest.raises(InvalidInstance, match="labels that at least two instances have"):
        registry.fit(method, alone, "auto", rng, no_progress)


@pytest.mark.parametrize("method", METHODS)
def test_the_only_class_is_ranked(method):
    data = made(60, seed=0)
    data = replace(data, Y=sparse.csr_matrix(np.ones((60, 1), np.int8)), labels=["all"])
    model = fit(method, data)
    np.testing.assert_array_equal(model.rank(data.X[:20], 3).starts, np.arange(21))


@pytest.mark.parametrize("method", METHODS)
def test_unknown_parameters_are_named(method):
    with pytest.raises(InvalidInstance, match=f"colour is not a parameter of {method}") as caught:
        registry.params_of(method, {"colour": 3})
    assert caught.value.field == "colour"
    with pytest.raises(InvalidInstance, match=f"; did you mean {method}\\?$"):
        registry.params_of(f"{method}_", {})


@pytest.mark.parametrize("wrong", [{"S": 0}, {"S": 2.5}, {"alpha": -1}, {"beta": float("nan")}, {"prune": 1}], ids=str)
def test_parameters_out_of_range_are_named(wrong):
    with pytest.raises(InvalidInstance, match=f"^{next(iter(wrong))} must be"):
        registry.params_of("swnn", wrong)

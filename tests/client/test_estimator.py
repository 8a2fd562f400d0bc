"""The classifier does what scikit-learn asks of classifiers, in process and over a service alike."""

import gc
import io
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest
from joblib import parallel_config
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

import abound
from abound.client.estimator import AboundClassifier
from abound_core.errors import InvalidInstance, Malformed
from tests.support.served import Served, served


def models(service: Served) -> set[str]:
    return {model["name"] for model in service.http.get("/models").json()["models"]}


ONLINE = {
    f"check_sample_weight_equivalence_on_{kind}_data": "a row of weight 2 is one update, and a repeated row are two"
    for kind in ("dense", "sparse")
}


@parametrize_with_checks(
    [AboundClassifier(), AboundClassifier(update="fsu", intercept=False, passes=1)],
    expected_failed_checks=lambda estimator: ONLINE,
)
def test_scikit_learn_takes_it_for_a_classifier(estimator: AboundClassifier, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.long
def test_scikit_learn_takes_it_for_a_classifier_over_a_service_too(service: Served) -> None:
    results = check_estimator(AboundClassifier(url=service.url), on_skip=None, expected_failed_checks=ONLINE)
    assert sum(one["status"] == "passed" for one in results) > 40


def test_compiled_kernels_of_every_release_have_a_directory_of_their_own(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    program = "import numba, abound; abound.AboundClassifier; print(numba.config.CACHE_DIR)"
    environment |= {"XDG_CACHE_HOME": str(tmp_path)}
    out = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert [str(path) for path in (tmp_path / "abound").glob("kernels-*")] == [out.strip()]


def test_without_scikit_learn_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "abound.client.estimator")
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(ImportError, match=r"pip install 'abound\[sklearn\]'"):
        abound.AboundClassifier  # noqa: B018


def test_labels_that_a_model_learned_elsewhere_are_none_of_the_classes(service: Served) -> None:
    X, y = [[1.0, 0], [0, 1]], ["a", "b"]
    AboundClassifier(url=service.url, model="shared").partial_fit([[1.0, 0]] * 9, ["elsewhere"] * 9)
    made = AboundClassifier(url=service.url, model="shared").partial_fit(X, y)
    assert service.learned("shared") == 11
    assert made.classes_.tolist() == y
    assert set(made.predict(X)) <= set(y)
    assert made.fit(X, y).predict(X).tolist() == y
    assert service.learned("shared") == 10


def test_the_key_is_not_shown() -> None:
    made = AboundClassifier(url="http://service", key="abk_secret")
    copies = [made, clone(made), pickle.loads(pickle.dumps(made)), AboundClassifier().set_params(key="abk_secret")]
    for estimator in copies:
        assert estimator.get_params()["key"] == estimator.key == "abk_secret"
        for shown in (estimator, make_pipeline(CountVectorizer(), estimator), [estimator]):
            assert "key='***'" in repr(shown)
            assert "secret" not in repr(shown)
        assert "secret" not in estimator._repr_html_()


def test_folds_at_the_same_time_over_a_service_are_judged_as_in_process(service: Served) -> None:
    X, y = make_blobs(n_samples=150, n_features=6, centers=5, cluster_std=4.0, random_state=0)
    here = cross_val_score(AboundClassifier(), X, y, cv=3)
    before = models(service)
    with parallel_config("threading"):
        there = cross_val_score(AboundClassifier(url=service.url), X, y, cv=3, n_jobs=2)
    np.testing.assert_array_equal(here, there)
    until = time.monotonic() + 30
    while models(service) - before and time.monotonic() < until:  # a thread of the folds may hold one a little longer
        gc.collect()
    assert models(service) <= before


def test_a_model_of_its_own_goes_with_the_estimator(service: Served) -> None:
    X, y = [[1.0, 0], [0, 1]], ["a", "b"]
    gc.collect()
    before = models(service)
    one, other = (AboundClassifier(url=service.url).fit(X, y) for _ in range(2))
    one.fit(X, y)
    assert models(service) - before == {one.model_, other.model_}
    kept = pickle.loads(pickle.dumps(one))
    named = AboundClassifier(url=service.url, model="mine").fit(X, y)
    del one, other, named
    gc.collect()
    assert models(service) - before == {kept.model_, "mine"}
    assert kept.predict(X).tolist() == y
    kept.discard()
    assert models(service) - before == {"mine"}
    with served() as away:
        made = AboundClassifier(url=away.url).fit(X, y)
    del made  # quietly
    gc.collect()


def test_classes_may_come_later() -> None:
    X = sparse.identity(6, format="csr")
    made = AboundClassifier().partial_fit(X[:2], ["b", "d"], classes=["b", "c", "d"])
    assert made.classes_.tolist() == ["b", "c", "d"]
    made.partial_fit(X[2:4], ["a", "c"])
    assert made.classes_.tolist() == ["a", "b", "c", "d"]
    scores = made.decision_function(X[:4])
    assert scores.shape == (4, 4)
    assert scores.argmax(axis=1).tolist() == [1, 3, 0, 2]
    typed = AboundClassifier().partial_fit(np.identity(2), [1.0, 2.0], classes=[1, 2, 3])
    assert (typed.predict(np.identity(2)).tolist(), typed.classes_.dtype.kind) == ([1, 2], "i")


@pytest.mark.parametrize(
    ("first", "then", "classes"),
    [
        ([1, 2, 3], [3.0], [1, 2, 3]),
        ([1, 2, 3], [True], [1, 2, 3]),
        ([False, True, True], [1], [False, True]),
        (np.array([1, 2, 3], np.int8), [300], [1, 2, 3, 300]),
        (["a", "b", "c"], np.array(["longer"], object), ["a", "b", "c", "longer"]),
        (np.array(["a", "b", "c"], object), ["longer"], ["a", "b", "c", "longer"]),
    ],
)
def test_classes_of_another_type_are_those_that_they_equal(first: Any, then: Any, classes: list[Any]) -> None:
    X = np.identity(3)
    made = AboundClassifier()
    for _ in range(20):
        made.partial_fit(X, first)
    made.partial_fit(X[2:], then)
    assert made.classes_.tolist() == classes
    assert {type(one) for one in made.classes_.tolist()} == {type(np.asarray(first).tolist()[0])}
    assert made.predict(X[:2]).tolist() == list(first[:2])
    for _ in range(20):
        made.partial_fit(X[2:], then)
    assert made.predict(X).tolist() == [*first[:2], *then]
    assert not np.isnan(made.decision_function(X)).any()


@pytest.mark.parametrize(
    ("first", "then"),
    [([1, 2], ["a"]), (["1", "2"], [2]), (np.array([1, 2], np.int8), [300.0]), (np.array(["a", "b"], object), [2])],
)
def test_classes_that_have_no_equal_of_the_type_before_are_refused(first: Any, then: Any) -> None:
    X = np.identity(2)
    made = AboundClassifier().partial_fit(X, first)
    before = made.decision_function(X)
    with pytest.raises(ValueError, match="use one type"):
        made.partial_fit(X[1:], then)
    assert made.classes_.tolist() == np.asarray(first).tolist()
    assert np.array_equal(made.decision_function(X), before)


def test_entries_of_one_place_count_together() -> None:
    dense, labels = np.array([[3.0, 1.0], [1.0, 3.0]]), ["a", "b"]
    split = sparse.csr_matrix((np.array([1.0, 2, 1, 1, 1, 1, 1]), np.array([0, 0, 1, 0, 1, 1, 1]), np.array([0, 3, 7])))
    assert not split.has_canonical_format
    expected = AboundClassifier(passes=1).fit(dense, labels).decision_function(dense)
    found = AboundClassifier(passes=1).fit(split, labels).decision_function(split)
    assert np.array_equal(found, expected)
    assert split.nnz == 7  # what was given stays as it is


def test_threads_that_share_an_estimator_get_the_same_scores_as_one() -> None:
    X = [f"word{i} common{i % 7} other{i % 11}" for i in range(400)]
    made = AboundClassifier(passes=1, config={"calibrate": True}).fit(X, [f"c{i % 200}" for i in range(400)])
    expected = made.decision_function(X)

    def score(at: int) -> bool:
        return np.array_equal(made.decision_function(X[at : at + 20]), expected[at : at + 20])

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(score, [20 * (i % 20) for i in range(400)]))


def test_a_thread_predicts_while_another_one_adds_classes() -> None:
    X, y = ["wheat", "oil"], ["m-grain", "m-crude"]
    made = AboundClassifier(passes=1).fit(X, y)
    with ThreadPoolExecutor(1) as threads:
        learning = threads.submit(
            lambda: [made.partial_fit([f"new{i}"] * 40, [f"c{i:04}-{j % 20}" for j in range(40)]) for i in range(40)]
        )
        while not learning.done():
            assert made.predict(X * 150).tolist() == y * 150
        learning.result()


def test_a_row_without_a_feature_is_passed_over_and_gets_no_score() -> None:
    made = AboundClassifier(intercept=False).fit(sparse.csr_matrix([[1.0, 0], [0, 1], [0, 0]]), ["a", "b", "b"])
    assert made.predict([[0, 1], [0, 0]]).tolist() == ["b", "a"]
    assert made.decision_function([[0, 0]]).tolist() == [0]


def test_rows_may_be_vectors(service: Served) -> None:
    X, y = make_blobs(90, n_features=20, centers=3, cluster_std=2.0, random_state=0)
    X -= X.mean(axis=0)
    X[7] = 0
    here = AboundClassifier(vectors=True).fit(X, y)
    assert (here.predict(X) == y).mean() > 0.9
    over = AboundClassifier(vectors=True, url=service.url).fit(X, y)
    assert over.decision_function(X).tolist() == here.decision_function(X).tolist()
    assert pickle.loads(pickle.dumps(here)).predict(X).tolist() == here.predict(X).tolist()
    with pytest.raises(InvalidInstance, match="update"):
        AboundClassifier(vectors=True, update="fsu").fit(X, y)


TEXTS = ["wheat prices rise", "crude oil falls", "the bank raises its rate", "wheat and corn", "oil exports"]
TOPICS = ["grain", "crude", "interest", "grain", "crude"]


@pytest.mark.parametrize("as_given", [list, np.array, lambda texts: np.array(texts, dtype=object)])
def test_texts_are_rows(as_given: Callable[[list[str]], Any]) -> None:
    made = AboundClassifier().fit(as_given(TEXTS), TOPICS)
    assert made.predict(as_given(["oil", "corn", "a bank"])).tolist() == ["crude", "grain", "interest"]
    assert made.partial_fit(as_given(["tea and coffee"]), ["coffee"]).predict(["tea"]).tolist() == ["coffee"]
    assert made.decision_function(["", "..."]).shape == (2, 4)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ("wheat", "one text"),
        (["wheat", 3.0], r"X\[1\] is of type float"),
        ([[1.0, 0.0]], "X has rows of numbers, but the estimator learned texts"),
        ([], "X has no rows"),
    ],
)
def test_other_things_than_texts_are_refused(X: Any, message: str) -> None:
    made = AboundClassifier().fit(TEXTS, TOPICS)
    with pytest.raises(ValueError, match=message):
        made.predict(X)
    with pytest.raises(ValueError, match=message):
        made.partial_fit(X, TOPICS[: len(X)])


LISTS = {
    "ragged": [["x", "y"], ["z"], ["z"], ["x"], ["y"]],
    "rectangular": [["x", "y"], ["z", "w"], ["z", "w"], ["x", "y"], ["x", "y"]],
    "column": pandas.Series([["x"], ["z"], ["z"], ["x"], ["y"]]),
    "numbers": [[1, 2], [3, 4], [3, 4], [1, 2], [1, 2]],
}


@pytest.mark.parametrize("labels", LISTS)
def test_lists_of_labels_are_refused_with_what_to_give_instead(labels: str) -> None:
    for X in (TEXTS, np.identity(5)):
        with pytest.raises(ValueError, match=r"use MultiLabelBinarizer\(\).fit_transform\(y\)"):
            AboundClassifier().fit(X, LISTS[labels])


@pytest.mark.parametrize("X", [[["a"], ["b"]], np.array([["a", "1"], ["b", "2"]]), [[1, "a"], [2, "b"]]])
def test_rows_of_strings_are_refused_with_what_to_give_instead(X: Any) -> None:
    with pytest.raises(ValueError, match="give a list of texts, or a frame with text='column'"):
        AboundClassifier().fit(X, ["a", "b"])
    made = AboundClassifier().fit(np.identity(np.shape(X)[1])[:1], ["a"])
    with pytest.raises(ValueError, match="give a list of texts"):
        made.predict(X)


def test_probabilities_need_calibration() -> None:
    with pytest.raises(AttributeError, match="predict_proba needs a model that calibrates"):
        AboundClassifier().fit(TEXTS, TOPICS).predict_proba(TEXTS)
    made = AboundClassifier(config={"calibrate": True}).fit(TEXTS, TOPICS)
    probabilities = made.predict_proba([*TEXTS, "unknown words"])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert made.classes_[probabilities[:-1].argmax(axis=1)].tolist() == TOPICS
    assert probabilities[:5].max() > 0.5
    np.testing.assert_allclose(probabilities[-1], 1 / 3)


@pytest.mark.parametrize("as_given", [np.array, sparse.csr_matrix, lambda y: np.array(y).tolist()])
@pytest.mark.parametrize("config", [None, {"calibrate": True}])
def test_rows_may_have_several_classes(as_given: Callable[[Any], Any], config: dict[str, Any] | None) -> None:
    y = [[1, 1, 0], [0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 0, 1]]
    made = AboundClassifier(passes=30, config=config).fit(TEXTS, as_given(y))
    assert made.classes_.tolist() == [0, 1, 2]
    assert made.decision_function(TEXTS).shape == (5, 3)
    assert made.predict([TEXTS[0], "oil", "unknown words"]).tolist() == [y[0], y[1], [0, 0, 0]]
    if config:
        probabilities = made.predict_proba(TEXTS)
        assert probabilities[0, :2].sum() > 1.2  # of each class on its own
        assert ((probabilities >= 0) & (probabilities <= 1)).all()
    assert AboundClassifier(threshold=1e9).fit(TEXTS, as_given(y)).predict(TEXTS).sum() == 0
    with pytest.raises(ValueError, match="2 columns, and there are 3 classes"):
        made.partial_fit(TEXTS[:2], [[1, 0], [0, 1]])
    with pytest.raises(ValueError, match="no indicator"):
        made.partial_fit(TEXTS, TOPICS)
    with pytest.raises(ValueError, match="an indicator"):
        AboundClassifier().fit(TEXTS, TOPICS).partial_fit(TEXTS, as_given(y))


def test_rows_that_no_class_fits_have_none(service: Served) -> None:
    X = [f"{topic} {n} {m}" for n in range(9) for m in range(9) for topic in ("wheat", "oil", "weather")]
    y = ["grain", "crude", None] * 81
    for made in (AboundClassifier(config={"decide": {}}), AboundClassifier(config={"decide": {}}, url=service.url)):
        made.fit(X, y).partial_fit(X, pandas.Series(y)).partial_fit(["weather today"], [None])
        assert made.classes_.tolist() == ["crude", "grain"]
        assert made.predict([*X[:3], "unknown"]).tolist() == [*y[:3], None]
        assert (made.score(X, y), made.score(X[:3], ["grain", None, None])) == (1, pytest.approx(2 / 3))
    with pytest.raises(ValueError, match="y has no class"):
        made.fit(X[:2], [None, None])


def test_a_zero_that_a_sparse_indicator_holds_is_no_class() -> None:
    y = sparse.csr_matrix(np.array([[1, 1, 0], [0, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 1]]))
    y.data[[1, 2]] = 0
    stored = y.nnz
    dense, given = (AboundClassifier().fit(TEXTS, one).decision_function(TEXTS) for one in (y.toarray(), y))
    np.testing.assert_array_equal(given, dense)
    assert y.nnz == stored


COLUMNS: dict[str, list[Any]] = {
    "subject": ["broken screen", "the screen broke", None, "late bill"] * 10,
    "colour": ["red", None, "blue", "blue"] * 10,
    "price": [1.0, 2.0, 3.0, None] * 10,
    "urgent": [True, False, True, False] * 10,
}
CLASSES = ["hardware", "hardware", "billing", "billing"] * 10


@pytest.mark.parametrize("frame", [pandas.DataFrame, polars.DataFrame], ids=["pandas", "polars"])
def test_frames_have_columns_of_text(service: Served, frame: Callable[[Any], Any]) -> None:
    X = frame(COLUMNS)
    made = AboundClassifier(text="subject", url=service.url).fit(X, CLASSES)
    assert made.predict(X).tolist() == CLASSES
    assert made.feature_names_in_.tolist() == list(COLUMNS)
    path = f"/models/{made.model_}"
    points = [service.http.get(f"{path}/labels/{one}").json()["features"] for one in ("hardware", "billing")]
    words = {"broken", "screen", "the", "broke", "late", "bill", "colour=red", "colour=blue", "price", "urgent"}
    assert {one["feature"] for some in points for one in some} == words
    assert service.http.get(path).json()["config"]["negative"] == "split"
    with pytest.raises(ValueError, match="feature names"):
        made.predict(frame({**COLUMNS, "size": COLUMNS["price"]}))
    with pytest.raises(Malformed, match="no column 'title'"):
        AboundClassifier(text=["title"]).fit(X, CLASSES)
    with pytest.raises(ValueError, match="inconsistent numbers"):
        made.fit(X, CLASSES[1:])
    with pytest.raises(ValueError, match="X has a column 'label', which would hold labels; give them as y"):
        made.predict(frame({**COLUMNS, "label": COLUMNS["price"]}))


def test_rows_may_be_dicts_and_have_weights() -> None:
    rows = [{"text": "wheat", "n": np.int64(3), "on": pandas.Timestamp("2026-02-02")}, {"text": "oil falls", "n": None}]
    made = AboundClassifier().fit(rows, ["grain", "crude"])
    assert made.predict([{"text": "wheat"}, {"text": "oil", "n": float("nan")}]).tolist() == ["grain", "crude"]
    other = AboundClassifier().fit(["wheat", None, "oil"], ["grain", "crude", "crude"])
    assert other.predict([None, "wheat"]).tolist() == ["crude", "grain"]
    other = AboundClassifier().fit(np.array([[1.0, np.nan], [np.nan, 1.0]]), ["a", "b"])
    assert other.predict([[2.0, np.nan], [np.nan, 2.0]]).tolist() == ["a", "b"]
    texts, topics = ["a", "a"], ["x", "y"]
    assert AboundClassifier(passes=1).fit(texts, topics, sample_weight=[1, 0]).predict(["a"]) == ["x"]
    assert AboundClassifier(passes=1).fit(texts, topics, sample_weight=[0, 2]).predict(["a"]) == ["y"]
    with pytest.raises(ValueError, match="sample_weight must be 2 finite numbers"):
        made.partial_fit(rows, ["grain", "crude"], sample_weight=[1, -1])


def test_rows_of_a_pandas_frame_may_be_selected_and_have_categories() -> None:
    X = pandas.DataFrame(COLUMNS).astype({"colour": "category"})
    made = AboundClassifier(text="subject").fit(X, CLASSES)
    chosen = X.iloc[::-3]
    np.testing.assert_array_equal(made.decision_function(chosen), made.decision_function(X)[::-3])


def test_columns_of_a_pandas_frame_may_have_numbers_as_names() -> None:
    csv = io.StringIO("grain,wheat,3\ncrude,oil,40\ngrain,wheat barley,4\ncrude,oil barrel,50\n")
    X = pandas.read_csv(csv, header=None)
    y = X.pop(0)
    named = X.rename(columns={1: "1", 2: "2"})
    scores = [AboundClassifier(text="1").fit(rows, y).decision_function(rows).tolist() for rows in (X, named)]
    assert scores[0] == scores[1]
    assert scores[0][0] > 0 > scores[0][1]


BLOBS, NUMBERS = make_blobs(n_samples=120, n_features=6, centers=5, random_state=0)
BLOBS[BLOBS < -6] = 0
NAMES = np.array([f"class {i}" for i in range(5)], dtype=object)[NUMBERS]
FRAME = polars.DataFrame({**COLUMNS, "vector": [[1.0, float(i % 4), 0.5] for i in range(40)]})


@pytest.mark.parametrize(
    ("params", "X", "y"),
    [
        ({"update": "sls", "passes": 2}, BLOBS, NAMES),
        ({"update": "fsu", "passes": 2}, sparse.csr_matrix(BLOBS), NAMES),
        ({"config": {"calibrate": True}}, ["?!", *TEXTS], [TOPICS[1], *TOPICS]),
        ({"passes": 1}, FRAME.rename({"subject": "text"}), CLASSES),
    ],
    ids=["sls", "fsu", "texts", "frame"],
)
def test_over_a_service_it_answers_as_in_process(service: Served, params: dict[str, Any], X: Any, y: Any) -> None:
    here = AboundClassifier(**params).fit(X, y)
    there = AboundClassifier(**params, url=service.url).fit(X, y)
    np.testing.assert_array_equal(here.predict(X), there.predict(X))
    np.testing.assert_array_equal(here.decision_function(X), there.decision_function(X))
    if "config" in params:
        np.testing.assert_array_equal(here.predict_proba(X), there.predict_proba(X))
    if params.get("passes") == 2:
        assert service.learned(there.model_) == 240
        assert len(there.fit(X[:50], y[:50]).classes_) == 5
        assert service.learned(there.model_) == 100

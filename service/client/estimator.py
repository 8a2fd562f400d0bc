"""The learner as scikit-learn knows classifiers: in this process, or over a running service.

    AboundClassifier().fit(X, y).predict(X)
    AboundClassifier(url="http://127.0.0.1:8000", model="topics").partial_fit(X, y)

A column is a feature: ``x0``, ``x1``, ..., or its name where the columns have names. Columns that are zero are absent,
so sparse matrices are the natural input. A class is the label ``str(class)``.

What an estimator learns with: the index in this process, or a model of a running service.

Both learn and rank the same within the bounds of a request: a service refuses a row of more features than it takes, and
ranks no more labels at once than it gives (1,000), where the index in this process takes and ranks all.
"""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from abound.core.config import ModelConfig
from abound.core.evaluation.evaluate import LIMITS
from abound.core.instances.record import pack_labels
from abound.core.model.apply import Unit
from abound.core.model.live_model import LiveModel
from abound.service.client import Client, ClientError, Instance, Labelled, Model, Refused, Unreachable

INTERCEPT = "(intercept)"
"""The feature that every row has."""

MOST_RANKED = 1000
"""Labels that a service ranks at most."""

BLOCK = 256
"""Rows whose scores of all classes are held at once to predict."""


class AboundClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """One label a row, of very many classes, learned row by row; new classes may come at any time.

    Parameters
    ----------
    update : ``sls`` | ``fsu``
        Sparse least squares, or the Feature Streaming Update; ``abound.core.config`` has both.
    passes : int
        How often ``fit`` goes through the rows.
    intercept : bool
        Give every row one feature more, of the value 1.
    config : dict or None
        Further fields of a model's configuration, e.g. ``{"margin": 0.5}``.
    url : str or None
        A running service; None: in this process.
    model : str or None
        A model of that service, which ``fit`` begins anew: what it has learned is deleted. It stays. ``partial_fit``
        goes on with it as it is, but only with this estimator's classes: labels that the model has learned elsewhere,
        before or meanwhile, are none of ``classes_``, so they are never predicted and have no score, though what was
        learned of them weighs on the others. None: one of a name of its own for each ``fit``. It is deleted with the
        fitted estimator, or by ``discard`` where that was pickled or copied.
    key : str or None
        Sent to the service as bearer token.

    Attributes
    ----------
    classes_ : array, shape (n_classes,)
    n_features_in_ : int
    model_ : str
        The model that holds what was learned; only over a service.
    """

    def __init__(
        self,
        *,
        update: str = "sls",
        passes: int = 5,
        intercept: bool = True,
        config: dict[str, Any] | None = None,
        url: str | None = None,
        model: str | None = None,
        key: str | None = None,
    ) -> None:
        self.update = update
        self.passes = passes
        self.intercept = intercept
        self.config = config
        self.url = url
        self.model = model
        self.key = key

    def fit(self, X: Any, y: Any) -> Self:
        """Learn all rows, ``passes`` times, and nothing of what was learned before."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        self._begin(anew=True)
        self._learn(X, y, self.passes)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn further rows. ``classes`` may name some that come later; others may come all the same.

        Raises
        ------
        ValueError
            A class has no equal of the type of the classes before: a text after numbers, 2 after ``True``. One that
            has is that one: 3.0 after integers is 3.
        """
        first = not hasattr(self, "classes_")
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, reset=first)
        if first:
            self._begin(anew=False)
        if classes is not None:
            self._know(np.asarray(classes))  # first: they say of which type the classes are
        self._learn(X, y, 1)
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The best class of each row, shape (n,)."""
        best = [np.argmax(self._scores(block), axis=1) for block in self._blocks(X)]
        predicted: npt.NDArray[Any] = self.classes_[np.concatenate(best)]
        return predicted

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Scores, shape (n, n_classes); of two classes (n,): how far the second one is ahead.

        A class that no active feature votes for has a little less than the least score that was given, and than 0.
        """
        scores = np.concatenate([self._scores(block) for block in self._blocks(X)])
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def discard(self) -> None:
        """Delete what was learned over a service, though copies of the estimator may still ask for it."""
        check_is_fitted(self)
        if isinstance(self._learner, OverService):
            self._learner.discard()

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # --- what it learns with

    def _begin(self, anew: bool) -> None:
        config = {"update": self.update, "negative": "split", **(self.config or {})}
        if self.update == "sls":
            config.setdefault("idf", False)
        self._learner: Learner
        if self.url is None:
            self._learner = InProcess(config)
        else:
            name = f"estimator-{uuid.uuid4().hex}" if self.model is None else self.model
            over = OverService(self.url, self.key, name, owned=self.model is None)
            over.begin(config, anew)
            self._learner, self.model_ = over, name
        self.classes_: npt.NDArray[Any] = np.empty(0)
        self._places: dict[str, int] = {}

    def _learn(self, X: Any, y: npt.NDArray[Any], passes: int) -> None:
        check_classification_targets(y)
        y = self._know(y)
        labels = [str(one) for one in y.tolist()]
        for _ in range(passes):
            self._learner.learn((row, label) for row, label in zip(self._rows(X), labels, strict=True) if row)

    def _know(self, given: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Take in classes; all that were given, of the type of those before, so that each has one label."""
        if len(self.classes_):
            given = _as_those(self.classes_, given)
            if self._are_known(given):
                return given
        try:
            self.classes_ = np.union1d(self.classes_, given) if len(self.classes_) else np.unique(given)
        except TypeError as error:  # objects of types that have no order
            raise ValueError(f"classes {given[:3].tolist()}, after classes of the type of others: {error}") from error
        self._places = {str(one): place for place, one in enumerate(self.classes_.tolist())}
        return given

    def _are_known(self, given: npt.NDArray[Any]) -> bool:
        """Whether all are classes already: known by their labels, and objects by what they are, too."""
        values = given.ravel().tolist()
        places = [self._places[str(one)] for one in values if str(one) in self._places]
        if len(places) < len(values):
            return False
        return given.dtype.kind != "O" or bool(self.classes_[places].tolist() == values)

    # --- rows and scores

    def _blocks(self, X: Any) -> Iterator[Any]:
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return (X[at : at + BLOCK] for at in range(0, X.shape[0], BLOCK))

    def _rows(self, X: Any) -> Iterator[Row]:
        """The features of each row."""
        names = getattr(self, "feature_names_in_", None)
        named: list[str] = [f"x{i}" for i in range(self.n_features_in_)] if names is None else names.tolist()
        always = {INTERCEPT: 1.0} if self.intercept else {}
        X = sparse.csr_matrix(X)
        if not X.has_canonical_format:  # entries of one place count together, as everywhere
            X = X.copy()
            X.sum_duplicates()
        for at, end in zip(X.indptr[:-1].tolist(), X.indptr[1:].tolist(), strict=True):
            places, values = X.indices[at:end].tolist(), X.data[at:end].tolist()
            yield always | {named[place]: value for place, value in zip(places, values, strict=True) if value}

    def _scores(self, X: Any) -> npt.NDArray[np.float64]:
        scores = np.full((X.shape[0], len(self.classes_)), np.nan)
        k = MOST_RANKED if self.url is not None else max(1, len(self.classes_))
        for row, ranked in zip(scores, self._ranked(self._rows(X), k), strict=True):
            known = [(self._places[label], score) for label, score in ranked if label in self._places]
            least = min([0.0, *(score for _, score in known)])
            row[:] = least if not known else least - max(1e-9, abs(least) * 1e-9)
            for place, score in known:
                row[place] = score
        return scores

    def _ranked(self, rows: Iterable[Row], k: int) -> Iterator[Ranked]:
        """Labels for each row; none for a row without a feature, which the learner would refuse."""
        held = list(rows)
        ranked = self._learner.rank((row for row in held if row), k)
        for row in held:
            yield next(ranked) if row else []


def _as_those(known: npt.NDArray[Any], given: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Classes of the type of those that are known; ValueError where one is another value then."""
    kind, other = known.dtype.kind, given.dtype.kind
    if kind == other or (kind in "iu" and np.result_type(known, given).kind in "iu" and other in "iu"):
        return given  # of another width at most
    wrong = f"classes of the type {given.dtype}, after classes of the type {known.dtype}: {given[:3].tolist()}"
    try:
        with np.errstate(invalid="ignore"):
            cast: npt.NDArray[Any] = given.astype(np.str_ if kind == "U" else known.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(wrong) from error
    if cast.tolist() != given.tolist():
        raise ValueError(wrong)
    return cast


Row = Mapping[str, float]
Ranked = list[tuple[str, float]]
"""Labels and scores, best first."""

TOGETHER = 256
"""Instances that the index in this process learns at once."""

LET_GO_SECONDS = 5.0
"""Longest silence of a service while an object that goes deletes its model."""


class Learner(Protocol):
    """Learns rows one after the other, and ranks labels for rows."""

    def learn(self, rows: Iterable[tuple[Row, str]]) -> None:
        """Learn rows with their labels, in order."""
        ...

    def rank(self, rows: Iterable[Row], k: int) -> Iterator[Ranked]:
        """At most ``k`` labels for each row."""
        ...


class InProcess:
    """The live index in this process.

    Parameters
    ----------
    config : dict
        As for ``PUT /models/{model}``.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._live = LiveModel(ModelConfig.from_dict(dict(config)), _secret(), LIMITS)

    def learn(self, rows: Iterable[tuple[Row, str]]) -> None:
        """Learn rows with their labels, in order."""
        at_hand = iter(rows)
        while records := [self._record(row, label) for row, label in islice(at_hand, TOGETHER)]:
            applying = self._live.begin(b"".join(records), len(records), [Unit(n=len(records))])
            while not applying.done:
                applying.step(len(records))

    def rank(self, rows: Iterable[Row], k: int) -> Iterator[Ranked]:
        """At most ``k`` labels for each row."""
        live = self._live
        for row in rows:
            ranking = live.rank(live.vectorizer.vectorize_mapping(row), k)
            yield [
                (live.label(class_id), score)
                for class_id, score in zip(ranking.class_ids.tolist(), ranking.scores.tolist(), strict=True)
            ]

    def __getstate__(self) -> dict[str, Any]:
        return {"meta": self._live.meta(), "arrays": self._live.to_arrays()}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        arrays: Mapping[str, npt.NDArray[Any]] = {name: np.array(array) for name, array in state["arrays"].items()}
        self._live = LiveModel.from_arrays(state["meta"], arrays, _secret(), LIMITS)

    def _record(self, row: Row, label: str) -> bytes:
        return self._live.vectorizer.vectorize_mapping(row) + pack_labels([label], LIMITS)


class OverService:
    """A model of a running service. Refused, Unreachable and Interrupted are those of the client.

    Parameters
    ----------
    url : str
    key : str or None
    name : str
        Of the model.
    owned : bool
        The model goes when this object does. One that was pickled or copied leaves it to whoever calls ``discard``.
    """

    def __init__(self, url: str, key: str | None, name: str, *, owned: bool = False) -> None:
        self.name = name
        self._url, self._key = url, key
        self._offset: str | None = None
        self._going = weakref.finalize(self, _delete_quietly, os.getpid(), url, key, name) if owned else None

    def __getstate__(self) -> dict[str, Any]:
        if self._going is not None:
            self._going.detach()
        return {**self.__dict__, "_going": None}

    def discard(self) -> None:
        """Delete the model."""
        if self._going is not None:
            self._going.detach()
        with Client(self._url, key=self._key) as client:
            client.delete(self.name)

    def begin(self, config: Mapping[str, Any], anew: bool) -> None:
        """Create the model unless it is there; with ``anew`` what it has learned is deleted."""
        with Client(self._url, key=self._key) as client:
            there = any(model["name"] == self.name for model in client.models()["models"])
            if there and anew:
                client.delete(self.name)
            client.configure(self.name, dict(config))

    def learn(self, rows: Iterable[tuple[Row, str]]) -> None:
        """Learn rows with their labels, in order; those that the service refuses for now (a rate) come later."""
        instances = (Labelled(features=row, labels=[label]) for row, label in rows)
        with Client(self._url, key=self._key) as client:
            for answer in Model(client, self.name).learn_many(instances, in_flight=1):
                if isinstance(answer, Refused):
                    raise answer
                self._offset = answer.offset

    def rank(self, rows: Iterable[Row], k: int) -> Iterator[Ranked]:
        """At most ``k`` labels for each row, by all that was learned here."""
        instances = (Instance(features=row) for row in rows)
        with Client(self._url, key=self._key) as client:
            for answer in Model(client, self.name).classify_many(instances, k=k, min_offset=self._offset):
                if isinstance(answer, Refused):
                    raise answer
                yield [(one.label, one.score) for one in answer.labels]


def _delete_quietly(made_by: int, url: str, key: str | None, name: str) -> None:
    """Delete a model unless the service does not take it now, or the process is a fork of that which made it."""
    if made_by != os.getpid():
        return
    try:
        with Client(url, key=key, timeout=LET_GO_SECONDS, pause=_at_once) as client:
            client.delete(name)
    except ClientError:
        pass


def _at_once(seconds: float) -> None:
    raise Unreachable("there is no time for another attempt")


def _secret() -> tuple[int, int]:
    """Where keys lie in memory is nobody's business; it changes no outcome."""
    drawn = os.urandom(16)
    return int.from_bytes(drawn[:8], "little"), int.from_bytes(drawn[8:], "little")

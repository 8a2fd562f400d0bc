"""The learner as scikit-learn knows classifiers: in this process, or over a running service.

    AboundClassifier().fit(X, y).predict(X)
    AboundClassifier(url="http://127.0.0.1:8000", model="topics").partial_fit(X, y)

A column is a feature: ``x0``, ``x1``, ..., or its name where the columns have names. Columns that are zero are absent,
so sparse matrices are the natural input. A class is the label ``str(class)``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from service.learners import InProcess, Learner, OverService, Ranked, Row

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
        Sparse least squares, or the Feature Streaming Update; ``core.config`` has both.
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

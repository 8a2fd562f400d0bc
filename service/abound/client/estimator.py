"""The scikit-learn classifier (extra ``sklearn``): learns in this process or through a running service.

    AboundClassifier().fit(X, y).predict(X)
    AboundClassifier(url="http://127.0.0.1:8000", model="topics").partial_fit(X, y)

    AboundClassifier().fit(["wheat prices rise", "oil falls"], ["grain", "crude"]).predict(["wheat"])

A row is a text, a row of numbers, a dict, or a row of a pandas or Polars frame with other columns than numbers. A text
is split by the analyzer of the model. Of numbers, each column is a feature, named ``x0``, ``x1``, ..., or by its column
name if the columns have names. Zeros and NaN are absent features, so sparse matrices are the natural input. Frames need
pyarrow, and their columns are those of a table (``abound_core.instances.tables``). The label of a class is
``str(class)``.

A backend holds what the estimator learned: the index in this process, or a model of a running service. Both learn and
rank alike within the bounds of a request. A service refuses a row with too many features and ranks at most 1,000
labels; the index in this process has no such bounds.
"""

# ruff: noqa: E402  the modules of the kernels are imported below ``set_cache_dir``

from __future__ import annotations

import math
import os
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, Self

import msgspec
import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_array, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from abound.processes.kernel_cache import set_cache_dir

_cache = set_cache_dir()
if "numba" in sys.modules:  # it has read the environment
    sys.modules["numba"].config.CACHE_DIR = str(_cache)

from abound.client import Client, ClientError, InputInstance, Labelled, Refused, Unreachable
from abound.client.instances import batches_of
from abound.processes.encoder_files import use_encoders
from abound_core.config import ModelConfig
from abound_core.instances import text_encoder
from abound_core.instances.data_formats import DatasetInstance
from abound_core.instances.dense_vector import quantize
from abound_core.instances.names import is_absent, label_text, normalized
from abound_core.instances.read_options import ReadOptions
from abound_core.instances.record import is_empty, pack_labels
from abound_core.instances.tables import LABEL_COLUMNS, read_batches, read_records
from abound_core.limits import DATASET_LIMITS
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel

INTERCEPT = "(intercept)"  # the feature that every row of numbers has
MOST_RANKED = 1000  # labels that a service ranks for an instance
TEXTS, NUMBERS, FRAME = "texts", "rows of numbers", "a frame with other columns than numbers"
"""The kinds of rows, as errors name them."""

AS_INDICATOR = "for several labels per row use MultiLabelBinarizer().fit_transform(y)"

TYPES_OF_NUMBERS = ("bool", "decimal", "float", "int", "sparse", "uint")  # how the names of such types start
PREDICT_BATCH = 256  # rows; memory holds the scores of all classes for each


class ApiKey(str):
    """An API key that its representation, and so that of an estimator, a pipeline or a notebook, does not show."""

    def __repr__(self) -> str:
        return "'***'"


def _calibrates(estimator: AboundClassifier) -> bool:
    config = estimator.config or {}
    return bool(config.get("calibrate")) or config.get("decide") is not None


class AboundClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Online classifier for very many classes. It learns row by row, and accepts new classes at any time.

    ``X`` is a sequence of texts, an array or sparse matrix of shape (n, n_features), or a frame. ``y`` has one class
    per row, or several as a binary indicator of shape (n, n_classes), dense or sparse, with a fixed number of columns.
    Rows of an indicator without a class are not learned. With ``config={"decide": {}}`` and one class per row, None
    (or NaN) in ``y`` teaches that no class fits, and ``predict`` returns None for such rows.

    Threads may share a fitted estimator to predict, also while one of them learns with ``partial_fit``.

    Parameters
    ----------
    update : ``sls`` | ``fsu``
        Sparse least squares, or the Feature Streaming Update; both are described in ``abound_core.config``.
    passes : int
        Number of times that ``fit`` learns all rows.
    intercept : bool
        Add a feature of value 1 to every row of numbers; not with ``vectors``.
    vectors : bool
        Learn each row of numbers as one dense vector, such as an embedding, in place of a feature for each column.
        Needs ``update`` ``sls``. A row of zeros is not learned and has no scores, as a row without features.
    text : str, sequence of str or None
        Columns of a frame that are texts; several are fields of one. None: the column ``text`` if there is one. Other
        columns of strings are categories, a column ``vector`` has lists of numbers, and a column of labels is left out.
    threshold : float
        With an indicator, classes from this probability on are predicted, or from this score on if the model does not
        calibrate.
    config : dict or None
        Further fields of the model's configuration. ``{"calibrate": True}`` adds ``predict_proba``.
    url : str or None
        URL of a running service; None learns in this process.
    model : str or None
        Name of a model of that service. It outlives the estimator. ``fit`` deletes what the model has learned.
        ``partial_fit`` continues with the model as it is, but only with this estimator's classes: labels that it
        learned from others are not in ``classes_``. They are never predicted and have no score, but they affect the
        scores of other labels. None: each ``fit`` creates a model with a unique name. That model is deleted with the
        fitted estimator, or by ``discard`` if the estimator was pickled or copied.
    key : str or None
        API key, sent to the service as bearer token. The representation of the estimator does not show it.

    Attributes
    ----------
    classes_ : array, shape (n_classes,)
        The numbers of the columns if ``y`` was an indicator.
    n_features_in_ : int
        Only after rows of numbers.
    model_ : str
        Name of the model that holds what was learned; only with ``url``.
    """

    def __init__(
        self,
        *,
        update: str = "sls",
        passes: int = 5,
        intercept: bool = True,
        vectors: bool = False,
        text: str | Sequence[str] | None = None,
        threshold: float = 0.5,
        config: dict[str, Any] | None = None,
        url: str | None = None,
        model: str | None = None,
        key: str | None = None,
    ) -> None:
        self.update = update
        self.passes = passes
        self.intercept = intercept
        self.vectors = vectors
        self.text = text
        self.threshold = threshold
        self.config = config
        self.url = url
        self.model = model
        self.key = key

    @property
    def key(self) -> str | None:
        key: str | None = self.__dict__["key"]
        return key

    @key.setter
    def key(self, key: str | None) -> None:
        self.__dict__["key"] = ApiKey(key) if type(key) is str else key  # scikit-learn clones an ApiKey as it is

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Forget everything learned before, then learn all rows ``passes`` times.

        ``sample_weight`` has a weight per row, at most 100; rows of weight 0 are not learned.
        """
        X, y, none = self._validate(X, y, reset=True)
        self._start(anew=True)
        self._learn(X, y, none, self.passes, sample_weight)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn further rows. ``classes`` may name classes of later rows; other classes are accepted, too.

        ``sample_weight`` is as in ``fit``.

        Raises
        ------
        ValueError
            A class cannot be converted to the type of the earlier classes without changing its value: a string after
            numbers, 2 after ``True``. Equal values are the same class: 3.0 after integers is 3. Or rows or ``y`` are
            of another kind than before: texts after numbers, an indicator after single classes.
        """
        first = not hasattr(self, "classes_")
        X, y, none = self._validate(X, y, reset=first)
        if first:
            self._start(anew=False)
        if classes is not None:
            self._add_classes(np.asarray(classes))  # before the rows, since ``classes`` determines the type
        self._learn(X, y, none, 1, sample_weight)
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the best class of each row, shape (n,), or the indicator of its classes, shape (n, n_classes).

        With ``config={"decide": {}}`` and one class per row, a row that no class fits gets None.
        """
        if self._is_multilabel():
            parts = [part[1 if _calibrates(self) else 0] for part in self._estimates(X)[1]]
            return (np.concatenate(parts) >= self.threshold).astype(np.int64)
        classes, estimates = self._estimates(X)
        best = [np.argmax(scores, axis=1) for scores, _ in estimates]
        predicted: npt.NDArray[Any] = classes[np.concatenate(best)]
        if self._decides:
            predicted = predicted.astype(object)
            for at, block in enumerate(self._blocks(X)):
                rows = list(self._rows(block))
                found = self._backend.find_none(row for row in rows if row is not None)
                for place, row in enumerate(rows, at * PREDICT_BATCH):
                    if row is None or next(found):
                        predicted[place] = None
        return predicted

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows that are predicted right. With None in ``y``, None is right."""
        if self._is_multilabel() or not self._decides:
            return float(super().score(X, y, sample_weight))
        true = [None if is_absent(one) else one for one in y]
        right = [one == other for one, other in zip(self.predict(X), true, strict=True)]
        return float(np.average(right, weights=sample_weight))

    @property
    def predict_proba(self) -> Callable[[Any], npt.NDArray[np.float64]]:
        """The method that returns probabilities. AttributeError without ``config={"calibrate": True}``."""
        if not _calibrates(self):
            raise AttributeError('predict_proba needs a model that calibrates: config={"calibrate": True}')
        return self._predict_proba

    def _predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the probability of each class, shape (n, n_classes). Only with ``config={"calibrate": True}``.

        The model estimates each class on its own. With one class per row, the estimates of a row are divided by their
        sum; a row without any gets equal probabilities. The estimates consider more than the score, so their order can
        differ from that of ``decision_function``, which ``predict`` follows.
        """
        classes, estimates = self._estimates(X)
        probabilities = np.concatenate([block for _, block in estimates])
        if self._is_multilabel():
            return probabilities
        sums = probabilities.sum(axis=1, keepdims=True)
        return np.where(sums > 0, probabilities / np.where(sums > 0, sums, 1.0), 1.0 / len(classes))

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Return scores, shape (n, n_classes). With two classes and one per row, return score 2 minus score 1, (n,).

        A class without a vote by any active feature scores slightly below 0 and below every other score of its row.
        """
        classes, estimates = self._estimates(X)
        scores = np.concatenate([block for block, _ in estimates])
        return scores if self._is_multilabel() or len(classes) != 2 else scores[:, 1] - scores[:, 0]

    def discard(self) -> None:
        """Delete the model from the service. Pickled or copied estimators that share it can no longer predict."""
        check_is_fitted(self)
        if isinstance(self._backend, ServiceBackend):
            self._backend.discard()

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = not self.vectors  # an absent feature, as zero
        tags.classifier_tags.multi_label = True
        return tags

    # --- backend and classes

    @property
    def _decides(self) -> bool:
        return (self.config or {}).get("decide") is not None

    def _start(self, anew: bool) -> None:
        config = {"update": self.update, **(self.config or {})}
        if self._kind != TEXTS:
            config.setdefault("negative", "split")
        if self._kind == NUMBERS:
            config.setdefault("numbers", "raw")  # a matrix is scaled by the steps before the estimator
            if self.update == "sls":
                config.setdefault("idf", False)
        self._backend: EstimatorBackend
        if self.url is None:
            self._backend = InProcessBackend({"calibrate": False, **config})  # only predict_proba uses probabilities
        else:
            name = f"estimator-{uuid.uuid4().hex}" if self.model is None else self.model
            over = ServiceBackend(self.url, self.key, name, owned=self.model is None)
            over.create_model(config, anew)
            self._backend, self.model_ = over, name
        self._set_classes(np.empty(0))

    def _learn(self, X: Any, y: npt.NDArray[Any], none: list[bool], passes: int, sample_weight: Any) -> None:
        weights = _weights(sample_weight, y.shape[0])
        labels: list[list[str] | None]  # None: a row to leave out
        if y.ndim == 2:
            self._add_classes(np.arange(y.shape[1]))
            if y.shape[1] != len(self.classes_):
                raise ValueError(f"y has {y.shape[1]} columns, and there are {len(self.classes_)} classes")
            rows = sparse.csr_matrix(y, copy=True)
            rows.sum_duplicates()
            rows.eliminate_zeros()
            columns = (rows.indices[at:end].tolist() for at, end in zip(rows.indptr[:-1], rows.indptr[1:], strict=True))
            labels = [[str(column) for column in row] or None for row in columns]
        else:
            classes = self._add_classes(y).tolist()
            labels = [[] if is_none else [label_text(one)] for one, is_none in zip(classes, none, strict=True)]
        for _ in range(passes):
            taken = zip(self._rows(X), labels, weights, strict=True)
            self._backend.learn(
                (row, some, weight) for row, some, weight in taken if row is not None and some is not None and weight
            )

    def _add_classes(self, given: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Add classes to ``classes_``; return the given ones in its type, so that equal classes get the same label."""
        if len(self.classes_):
            given = _cast_classes(self.classes_, given)
            if self._are_known(given):
                return given
        try:
            classes = np.union1d(self.classes_, given) if len(self.classes_) else np.unique(given)
        except TypeError as error:  # objects of types without a common order
            raise ValueError(
                f"classes {given[:3].tolist()} cannot be ordered among the classes before: {error}; use one type"
            ) from error
        self._set_classes(classes)
        return given

    def _set_classes(self, classes: npt.NDArray[Any]) -> None:
        """Set the classes, and the column of each label; ``_known`` has both, for threads that predict meanwhile."""
        self.classes_ = classes
        places = {label_text(one): place for place, one in enumerate(classes.tolist())}
        self._known = classes, {normalized(label): place for label, place in places.items()} | places

    def _are_known(self, given: npt.NDArray[Any]) -> bool:
        """Return whether all are in ``classes_``. Labels are compared, and for object arrays the values as well."""
        values = given.ravel().tolist()
        _, columns = self._known
        places = [columns[label_text(one)] for one in values if label_text(one) in columns]
        if len(places) < len(values):
            return False
        return given.dtype.kind != "O" or bool(self.classes_[places].tolist() == values)

    # --- rows and scores

    def _validate(self, X: Any, y: Any, reset: bool) -> tuple[Any, Any, list[bool]]:
        """Return rows, classes and whether a row has none, as ``_rows`` and ``_learn`` take them.

        A row without a class gets any known one. Raises ValueError unless rows and classes are valid.
        """
        none: list[bool] = []
        if self._decides and y is not None and getattr(y, "ndim", 1) == 1 and any(map(is_absent, y)):
            none = [is_absent(one) for one in y]
            known = [*(one for one in y if not is_absent(one)), *([] if reset else self.classes_.tolist())]
            if not known:
                raise ValueError("y has no class; the first rows need one")
            y = [known[0] if is_none else one for one, is_none in zip(y, none, strict=True)]
        X, kind = _kind_of(X)
        if reset:
            self._kind = kind
        self._check_kind(kind)
        if kind == NUMBERS:
            _check_lists(y)
            X, y = self._numbers(X, y, reset=reset, multi_output=True)
        else:
            if y is None:
                raise ValueError("AboundClassifier requires y to be passed, but the target y is None")
            _check_lists(y)
            if kind == FRAME:
                validate_data(self, X, reset=reset, skip_check_array=True)
            y = check_array(y, accept_sparse="csr", ensure_2d=False, dtype=None, input_name="y")
            check_consistent_length(X, y)
        multilabel = type_of_target(y) == "multilabel-indicator"
        if not multilabel and y.ndim == 2 and y.shape[1] > 1:
            raise ValueError(f"y has {y.shape[1]} columns and is no indicator; {AS_INDICATOR}")
        check_classification_targets(y)
        if reset:
            self._multilabel = multilabel
        elif multilabel != self._multilabel:
            raise ValueError(f"y is {'an' if multilabel else 'no'} indicator matrix, unlike in the first call")
        y = y if multilabel else column_or_1d(y, warn=True)
        return X, y, none or [False] * y.shape[0]

    def _check_kind(self, kind: str) -> None:
        if kind != self._kind:
            raise ValueError(f"X has {kind}, but the estimator learned {self._kind}")

    def _numbers(self, X: Any, y: Any = "no_validation", **options: Any) -> Any:
        try:
            finite = True if self.vectors else "allow-nan"
            return validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, ensure_all_finite=finite, **options)
        except ValueError as error:
            if not str(error).startswith("could not convert string"):
                raise
            raise ValueError(
                f"X has rows with strings ({error}); give a list of texts, or a frame with text='column'"
            ) from error

    def _is_multilabel(self) -> bool:
        check_is_fitted(self)
        return bool(self._multilabel)

    def _blocks(self, X: Any) -> Iterator[Any]:
        check_is_fitted(self)
        X, kind = _kind_of(X)
        self._check_kind(kind)
        if kind == NUMBERS:
            X = self._numbers(X, reset=False)
        elif kind == FRAME:
            validate_data(self, X, reset=False, skip_check_array=True)
        n = X.shape[0] if hasattr(X, "shape") else len(X)
        return (X[at : at + PREDICT_BATCH] for at in range(0, n, PREDICT_BATCH))

    def _rows(self, X: Any) -> Iterator[Row | None]:
        """Yield the features, the text or the vector of each row; None for a row without any."""
        if self._kind == TEXTS:
            yield from (text or None for text in X)
            return
        if self._kind == FRAME:
            options = ReadOptions.of(text=self.text)
            is_frame = hasattr(X, "columns")
            for row in read_batches(batches_of(X), options, "X") if is_frame else read_records(X, options, "X"):
                yield row if row.text or row.features not in (None, b"{}") or row.vector else None
            return
        if self.vectors:
            for one in sparse.csr_matrix(X).toarray():
                yield (one / np.abs(one).max()).astype(np.float32) if one.any() else None
            return
        names = getattr(self, "feature_names_in_", None)
        named: list[str] = [f"x{i}" for i in range(self.n_features_in_)] if names is None else names.tolist()
        always = {INTERCEPT: 1.0} if self.intercept else {}
        X = sparse.csr_matrix(X)
        if not X.has_canonical_format:  # duplicate entries are summed, as in all of scipy
            X = X.copy()
            X.sum_duplicates()
        for at, end in zip(X.indptr[:-1].tolist(), X.indptr[1:].tolist(), strict=True):
            places, values = X.indices[at:end].tolist(), X.data[at:end].tolist()
            present = zip(places, values, strict=True)
            yield always | {named[place]: value for place, value in present if value and not math.isnan(value)} or None

    def _estimates(self, X: Any) -> tuple[npt.NDArray[Any], Iterator[Estimates]]:
        blocks = self._blocks(X)
        classes, columns = self._known
        return classes, (self._estimate(block, columns) for block in blocks)

    def _estimate(self, X: Any, columns: Mapping[str, int]) -> Estimates:
        rows = list(self._rows(X))
        scores = np.full((len(rows), len(columns)), np.nan)
        probabilities = np.zeros_like(scores)
        k = MOST_RANKED if self.url is not None else sys.maxsize
        for i, ranked in enumerate(self._rank_rows(rows, k)):
            known = [(columns[label], score, p) for label, score, p in ranked if label in columns]
            least = min([0.0, *(score for _, score, _ in known)])
            scores[i] = least if not known else least - max(1e-9, abs(least) * 1e-9)
            for place, score, probability in known:
                scores[i, place], probabilities[i, place] = score, probability
        return scores, probabilities

    def _rank_rows(self, rows: list[Row | None], k: int) -> Iterator[Ranked]:
        """Yield labels for each row, none for a row without features, which the backend would refuse."""
        ranked = self._backend.rank((row for row in rows if row is not None), k)
        for row in rows:
            yield next(ranked) if row is not None else []


def _weights(sample_weight: Any, n: int) -> list[float]:
    weights = np.ones(n) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n,) or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise ValueError(f"sample_weight must be {n} finite numbers of at least 0, of shape ({n},), not all zero")
    return [float(weight) for weight in weights]


def _kind_of(X: Any) -> tuple[Any, str]:
    """Return rows and their kind; texts as a list."""
    texts = _texts(X)
    if texts is not None:
        return texts, TEXTS
    if isinstance(X, list | tuple) and X and isinstance(X[0], Mapping):
        names = set().union(*X)
    elif not hasattr(X, "columns") or all(str(one).lower().startswith(TYPES_OF_NUMBERS) for one in X.dtypes):
        return X, NUMBERS
    else:
        names = X.columns
    for name in LABEL_COLUMNS:
        if name in names:
            raise ValueError(f"X has a column {name!r}, which would hold labels; give them as y, or rename the column")
    return X, FRAME


def _texts(X: Any) -> list[str] | None:
    """Return a sequence of texts as a list, None for anything else. Raises ValueError if it is empty or mixed."""
    if isinstance(X, str):
        raise ValueError("X is one text; give a list of texts")
    if not hasattr(X, "__len__") or getattr(X, "ndim", 1) != 1:
        return None
    if not len(X):
        raise ValueError("X has no rows")
    if not isinstance(next((one for one in X if not is_absent(one)), None), str):
        return None
    texts = ["" if is_absent(text) else text for text in X]
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"X has texts, but X[{i}] is of type {type(text).__name__}")
    return texts


def _check_lists(y: Any) -> None:
    """Raise ValueError if rows of ``y`` are sets, or lists that do not make an array of two dimensions."""
    is_list = isinstance(y, list | tuple)
    if not is_list and (getattr(y, "dtype", None) != np.dtype(object) or y.ndim != 1):
        return
    sizes = {len(row) if isinstance(row, list | tuple) else "set" if isinstance(row, set) else None for row in y}
    nested = sizes - {None}
    if nested and (len(sizes) > 1 or "set" in nested or not is_list):
        raise ValueError(f"y has lists of labels; {AS_INDICATOR}")


def _cast_classes(known: npt.NDArray[Any], given: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the given classes in the type of the known ones. Raises ValueError if that changes a value."""
    kind, other = known.dtype.kind, given.dtype.kind
    if kind == other or (kind in "iu" and np.result_type(known, given).kind in "iu" and other in "iu"):
        return given  # differs in width at most
    wrong = f"classes of type {given.dtype} after classes of type {known.dtype}; use one type: {given[:3].tolist()}"
    try:
        with np.errstate(invalid="ignore"):
            cast: npt.NDArray[Any] = given.astype(np.str_ if kind == "U" else known.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(wrong) from error
    if cast.tolist() != given.tolist():
        raise ValueError(wrong)
    return cast


Row = Mapping[str, float] | str | npt.NDArray[np.float32] | DatasetInstance  # features, a text, a vector
Lesson = tuple[Row, list[str], float]  # a row, its labels (without any, none fits) and its weight
Ranked = list[tuple[str, float, float]]  # label, score, probability (0 if not calibrated), best first
Estimates = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # scores, probabilities, (n, n_classes)
LEARN_BATCH = 256  # instances
NO_FEATURES = "/problems/no-features"

DELETE_SECONDS = 5.0  # timeout of deleting the model of an estimator at the end of its life


class EstimatorBackend(Protocol):
    """Learns rows in order and ranks labels for rows."""

    def learn(self, rows: Iterable[Lesson]) -> None:
        """Learn rows with their labels, in order. Rows without an active feature, such as "?!", are left out."""
        ...

    def rank(self, rows: Iterable[Row], k: int) -> Iterator[Ranked]:
        """Yield at most ``k`` labels for each row."""
        ...

    def find_none(self, rows: Iterable[Row]) -> Iterator[bool]:
        """Yield whether a model that decides says that no label fits."""
        ...


class InProcessBackend:
    """Keeps the live index in this process. Threads may share it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        if text_encoder.source is None:
            use_encoders(None)
        self._live = LiveModel(ModelConfig.from_dict(dict(config)), _secret(), DATASET_LIMITS)
        self._lock = threading.Lock()  # the vectorizer and the index reuse their scratch memory

    def learn(self, rows: Iterable[Lesson]) -> None:
        at_hand = iter(rows)
        while batch := list(islice(at_hand, LEARN_BATCH)):
            with self._lock:
                records = [
                    vector
                    + pack_labels(self._live.vectorizer.labels(labels), DATASET_LIMITS, weight=weight, none=not labels)
                    for row, labels, weight in batch
                    if not is_empty(vector := self._vector(row))
                ]
                self._live.begin(b"".join(records), len(records), [Unit(n=len(records))]).finish()

    def rank(self, rows: Iterable[Row], k: int) -> Iterator[Ranked]:
        live = self._live
        rank = live.rank_estimated if live.calibration.on else live.rank
        for row in rows:
            with self._lock:
                ranking = rank(self._vector(row), k)
                labels = [live.label(class_id) for class_id in ranking.class_ids.tolist()]
            estimates = np.zeros(len(ranking.scores)) if ranking.probabilities is None else ranking.probabilities
            yield list(zip(labels, ranking.scores.tolist(), estimates.tolist(), strict=True))

    def find_none(self, rows: Iterable[Row]) -> Iterator[bool]:
        for row in rows:
            with self._lock:
                yield self._live.decide(self._vector(row), 1).decision == "none"

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {"meta": self._live.meta(), "arrays": self._live.to_arrays()}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        arrays: Mapping[str, npt.NDArray[Any]] = {name: np.array(array) for name, array in state["arrays"].items()}
        self._live = LiveModel.from_arrays(state["meta"], arrays, _secret(), DATASET_LIMITS)
        self._lock = threading.Lock()

    def _vector(self, row: Row) -> bytes:
        vectorizer = self._live.vectorizer
        if isinstance(row, str):
            return vectorizer.vectorize(None, row)
        if isinstance(row, DatasetInstance):
            if (dense := row.dense) is not None:
                self._live.check_dimension(len(dense))
            return vectorizer.vectorize(row.features, row.text, dense)
        if not isinstance(row, np.ndarray):
            return vectorizer.vectorize_mapping(row)
        self._live.check_dimension(len(row))
        return vectorizer.vectorize_mapping({}, quantize(row))


class ServiceBackend:
    """Uses a model of a running service. Its methods raise the errors of ``Client``.

    An ``owned`` model is deleted together with this object; after pickling or copying, only ``discard`` deletes it.
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
        if self._going is not None:
            self._going.detach()
        with Client(self._url, key=self._key) as client:
            client.delete(self.name)

    def create_model(self, config: Mapping[str, Any], anew: bool) -> None:
        with Client(self._url, key=self._key) as client:
            there = any(model["name"] == self.name for model in client.models()["models"])
            if there and anew:
                client.delete(self.name)
            client.configure(self.name, dict(config))

    def learn(self, rows: Iterable[Lesson]) -> None:
        """Learn rows with their labels, in order. Rows refused for now (by a rate limit) are learned later."""
        instances = (
            Labelled(**_input(row), labels=labels, weight=weight, none=not labels) for row, labels, weight in rows
        )
        with Client(self._url, key=self._key) as client:
            for answer in client.model(self.name).learn_many(instances):
                if not isinstance(answer, Refused):
                    self._offset = answer.offset
                elif answer.problem.get("type") != NO_FEATURES:
                    raise answer

    def rank(self, rows: Iterable[Row], k: int) -> Iterator[Ranked]:
        """Yield at most ``k`` labels for each row. The ranking reflects everything learned through this object."""
        instances = (InputInstance(**_input(row)) for row in rows)
        with Client(self._url, key=self._key) as client:
            for answer in client.model(self.name).classify_many(instances, k=k, min_offset=self._offset, decide=False):
                if isinstance(answer, Refused):
                    raise answer
                yield [(one.label, one.score, one.probability or 0.0) for one in answer.labels]

    def find_none(self, rows: Iterable[Row]) -> Iterator[bool]:
        instances = (InputInstance(**_input(row)) for row in rows)
        with Client(self._url, key=self._key) as client:
            for answer in client.model(self.name).classify_many(instances, k=1, min_offset=self._offset):
                if isinstance(answer, Refused):
                    raise answer
                yield answer.decision == "none"


def _input(row: Row) -> dict[str, Any]:
    if isinstance(row, DatasetInstance):
        features = None if row.features is None else msgspec.json.decode(row.features)
        return {"text": row.text, "features": features, "vector": row.vector}
    kind = "text" if isinstance(row, str) else "vector" if isinstance(row, np.ndarray) else "features"
    return {kind: row}


def _delete_quietly(made_by: int, url: str, key: str | None, name: str) -> None:
    """Delete a model with one attempt and ignore errors. Does nothing in a fork of the process that created it."""
    if made_by != os.getpid():
        return
    try:
        with Client(url, key=key, timeout=DELETE_SECONDS, pause=_no_retry) as client:
            client.delete(name)
    except ClientError:
        pass


def _no_retry(seconds: float) -> None:
    raise Unreachable("the model is deleted with a single attempt")


def _secret() -> tuple[int, int]:
    """Return a random key for the hash tables, against collision attacks. It does not affect results."""
    drawn = os.urandom(16)
    return int.from_bytes(drawn[:8], "little"), int.from_bytes(drawn[8:], "little")

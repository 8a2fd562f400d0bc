"""Feature Focus as a batch method: the live index, fitted in several passes over the data (JMLR 2009, section 4).

Instances have the same order in each pass. The update is FSU; ``update: sls`` and Boolean features exist only in the
live index.

Not built: class prototypes (section 6.4.3) and the indegrees of classes (6.4.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from abound_core.errors import Corrupted
from abound_core.index.index import Index
from abound_core.index.params import IndexParams
from abound_core.measures import Rankings
from abound_core.methods.index import feature_focus_kernels as kernels
from abound_core.methods.training import array_checks, param_checks
from abound_core.methods.training.holdout import best, held_out
from abound_core.methods.training.matrices import Csr, Matrices
from abound_core.methods.training.progress import Progress, subrange
from abound_core.methods.training.rankings import joined, of_padded

COST = "fit O(passes nnz d_max log d_max); rank O(l d_max); memory 16 d bytes + up to 8 for each 1 / w_min of a feature"
USE = "To see what the live index with fsu reaches when tuned: in one or more passes, which auto chooses."
IDF = False  # the index has its own rating of features, and its margins do not suit idf weights

CHUNK = 1000  # rows of one call of a kernel; progress is reported between calls

PASSES = 10
MARGINS = (0.0, 0.1, 0.5)
"""Margins and passes that ``search`` tries, those of the paper (section 6), on held-out rows of the training part."""

MOST_VOTES = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The index's own parameters (``abound_core.config.ModelConfig``), and the number of passes over the data.

    Attributes
    ----------
    passes : int
        Passes over the data; features count as seen in the first one only.
    w_min : float
        Connections of less weight are dropped. With 0 a feature keeps its 65,535 heaviest.
    d_max : int
        Only the heaviest ``d_max`` connections of a feature vote.
    vote_min : float or None
        Connections of at least this weight vote, in place of the ``d_max`` heaviest (section 6.3.2). Has an effect
        only above ``w_min``. None: ``d_max`` decides.
    margin : float
        Margin of the update: a true class is updated unless its score exceeds the best other score by more than this.
        The paper uses 0, 0.1 and 0.5.
    leak : bool
        Leak of dropped connections: their weight stays in the feature's total.
    rating : bool
        Features seen fewer than ten times vote less.
    memory : float or None
        Horizon of the update, in feature weight: older instances fade. None: all instances count alike.
    """

    passes: int = 1
    w_min: float = 0.01
    d_max: int = 25
    margin: float = 0.0
    leak: bool = True
    rating: bool = True
    memory: float | None = None
    vote_min: float | None = None

    def __post_init__(self) -> None:
        param_checks.whole("passes", self.passes, 1, 1000)
        param_checks.number("w_min", self.w_min, 0.0, 1.0)
        param_checks.whole("d_max", self.d_max, 1, MOST_VOTES)
        param_checks.number("margin", self.margin, 0.0, 1e9)
        param_checks.flag("leak", self.leak)
        param_checks.flag("rating", self.rating)
        if self.memory is not None:
            param_checks.number("memory", self.memory, 1e-6, 1e12)
        if self.vote_min is not None:
            param_checks.number("vote_min", self.vote_min, 1e-6, 1.0)

    @property
    def index(self) -> IndexParams:
        own = asdict(self)
        del own["passes"]
        if self.vote_min is None:
            own["vote_min"] = 0.0
        else:
            own["d_max"] = MOST_VOTES
        return IndexParams(**own)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The fitted index; feature and class ids are columns."""

    params: Params
    index: Index

    def rank(self, X: Csr, k: int) -> Rankings:
        """Rank the best ``k`` labels that have a vote. Uses one thread; other threads may rank at the same time."""
        index = self.index.reader()
        k = min(k, len(index.arrays.scores))
        blocks = []
        for first in range(0, X.shape[0], CHUNK):
            size = min(CHUNK, X.shape[0] - first)
            n, best_ids, best_scores = np.empty(size, np.int64), np.empty((size, k), np.int32), np.empty((size, k))
            kernels.rank_rows(index.arrays, index.kernel_params, _rows(X), first, n, best_ids, best_scores)
            blocks.append(of_padded(best_ids, best_scores, n))
        return joined(blocks)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        own = [np.nan if value is None else float(value) for value in asdict(self.params).values()]
        return {"params": np.array(own)} | self.index.to_arrays()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], d: int, n_labels: int) -> Model:
        own = arrays.get("params")
        if own is None or own.dtype != np.float64 or own.shape not in ((7,), (8,)):
            raise Corrupted("the array params of the index is missing, or has another type or shape")
        passes, w_min, d_max, margin, leak, rating, memory, vote_min = [*own.tolist(), np.nan][:8]
        params = Params(
            passes=int(passes),
            w_min=w_min,
            d_max=int(d_max),
            margin=margin,
            leak=bool(leak),
            rating=bool(rating),
            memory=None if np.isnan(memory) else memory,
            vote_min=None if np.isnan(vote_min) else vote_min,
        )
        if len(array_checks.require_array(arrays, "lengths", np.uint16, None)) > d:
            raise Corrupted("the index has more features than names")
        of_index = {name: arrays[name] for name in arrays if name != "params"}
        return cls(params, Index.from_arrays(params.index, of_index, n_labels))


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    index = Index(params.index)
    for number in range(params.passes):
        _learn(index, data, number == 0, subrange(progress, number / params.passes, (number + 1) / params.passes))
    return Model(params, index)


def search(data: Matrices, rng: np.random.Generator, progress: Progress) -> Params:
    """Choose ``passes`` and ``margin`` by R@1 on held-out rows. A margin is fitted once and ranked after each pass."""
    train, test = held_out(data, rng)
    candidates = [Params(passes=passes, margin=margin) for margin in MARGINS for passes in range(1, PASSES + 1)]
    indexes = {margin: Index(Params(margin=margin).index) for margin in MARGINS}

    def rankings(params: Params) -> Rankings:
        done = candidates.index(params) / len(candidates)
        index = indexes[params.margin]
        _learn(index, train, params.passes == 1, subrange(progress, done, done))
        return Model(params, index).rank(test.X, 1)

    return best(candidates, rankings, test, progress, "R@1")


def _rows(X: Csr) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    return X.indptr, X.indices, X.data


def _learn(index: Index, data: Matrices, first_pass: bool, progress: Progress) -> None:
    n, starts, labels = data.X.shape[0], data.Y.indptr, data.Y.indices
    for first in range(0, n, CHUNK):
        progress("learning", first / n)
        row, last = first, min(first + CHUNK, n)
        while True:
            row = kernels.learn_rows(
                index.arrays, index.kernel_params, _rows(data.X), (starts, labels), row, last, first_pass
            )
            if row == last:
                break
            place = slice(data.X.indptr[row], data.X.indptr[row + 1])
            index.make_room_for(data.X.indices[place], labels[starts[row] : starts[row + 1]])

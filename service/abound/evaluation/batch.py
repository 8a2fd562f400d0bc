"""``abound evaluate --method M``: fit a batch method on one file and evaluate it on another, in this process."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from abound.processes.parallel import parallel
from abound_core.config import ModelConfig
from abound_core.errors import InvalidInstance
from abound_core.instances.data_formats import DatasetInstance
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import DATASET_LIMITS
from abound_core.measures import Propensity, evaluate
from abound_core.methods import fitted, registry
from abound_core.methods.training.gather import gather
from abound_core.methods.training.hierarchy import of_pairs
from abound_core.methods.training.matrices import Matrices, hide_labels
from abound_core.methods.training.progress import Progress, no_progress, subrange

DEPTH = 100  # labels ranked per instance; MRR counts a true label further down as one that is not ranked
VECTOR_FIELDS = ("analyzer", "negative", "numbers")  # that determine a model's vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEvaluation:
    method: str
    params: Any  # the Params of the method, or ``auto``
    config: ModelConfig
    idf: bool | None = None  # None: only if the instances are texts
    seed: int = 0
    jobs: int = 1  # threads
    hidden: float = 0.0  # share of the training labels, 0 to 1
    depth: int = DEPTH  # labels ranked per instance
    hierarchy: tuple[tuple[str, str], ...] = ()  # pairs of a child, which is a label or a class, and its parent

    @classmethod
    def from_fields(cls, method: str, changes: dict[str, Any], **others: Any) -> BatchEvaluation:
        """Create the settings from a user's fields: of the method, of the analyzer, ``idf``, or ``params=auto``."""
        own = {name: changes[name] for name in VECTOR_FIELDS if name in changes}
        config = ModelConfig.from_dict({"update": "sls"} | own)  # an analyzer with an encoder is valid with sls only
        config = replace(config, analyzer=replace(config.analyzer, embed=None, embed_field=None))  # no vectors
        rest = {name: value for name, value in changes.items() if name not in VECTOR_FIELDS}
        idf, auto = rest.pop("idf", None), rest.pop("params", None)
        if idf not in (None, True, False):
            raise InvalidInstance("idf must be true, false or null", "idf")
        if auto is not None and (auto != "auto" or rest):
            raise InvalidInstance("params can only be auto, and then no other parameter may be given", "params")
        params = "auto" if auto else registry.params_of(method, rest)
        if auto and registry.method_of(method).search is None:
            raise InvalidInstance(f"{method} has no parameters that can be searched for", "params")
        return cls(method=method, params=params, config=config, idf=idf, **others)


def evaluate_method(
    train_instances: Iterable[DatasetInstance],
    test_instances: Iterable[DatasetInstance],
    trial: BatchEvaluation,
    *,
    propensity: Propensity | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Fit a batch method on some instances and evaluate it on others.

    Returns what ``abound.evaluation.live.evaluate`` returns, but ``connections`` is the number of values in the model's
    arrays, and ``work_per_feature`` is None. Further keys are ``method``, ``params`` as used, ``idf``, the method's
    facts about its model, ``cpu_seconds`` of all threads of this process, and ``milliseconds_per_query`` of wall time.
    """
    read, test = _read(train_instances, test_instances, trial)
    return evaluate_matrices(read, test, trial, propensity=propensity, progress=progress)


def evaluate_matrices(
    read: Matrices,
    test: Matrices,
    trial: BatchEvaluation,
    *,
    propensity: Propensity | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Fit and evaluate like ``evaluate_method``, from matrices. ``test`` must have the columns of ``read``."""
    if trial.hierarchy:
        read = _below(read, trial.hierarchy)
    rng = np.random.default_rng(trial.seed)
    train = hide_labels(read, trial.hidden, rng) if trial.hidden else read
    learned = len(train.learnable)
    fit_clock, rank_clock = _Clock(), _Clock()
    with parallel(None, trial.jobs):
        with fit_clock.running():
            model = fitted.fit(trial.method, train, trial.params, rng, subrange(progress, 0.0, 0.8), use_idf=trial.idf)
        depth = min(trial.depth, len(model.labels))
        # So that compilation is not timed.
        model.rank(test.X[:1], depth)
        progress("ranking", 0.8)
        with rank_clock.running():
            rankings = model.rank(test.X, depth)
    counts = np.zeros(len(test.labels), np.int64)
    counts[: len(read.labels)] = read.label_counts
    weights = (propensity or Propensity()).weights(counts, read.X.shape[0])
    arrays = model.model.to_arrays()
    return {
        "method": trial.method,
        **getattr(model.model, "facts", dict)(),
        "params": asdict(model.params),
        "idf": model.idf is not None,
        "metrics": evaluate(rankings, test.label_sets, weights),
        "connections": sum(array.size for array in arrays.values()),
        "work_per_feature": None,
        "bytes": sum(array.nbytes for array in model.to_arrays().values()),
        "seconds": {"fit": fit_clock.wall, "rank": rank_clock.wall},
        "cpu_seconds": {"fit": fit_clock.cpu, "rank": rank_clock.cpu},
        "milliseconds_per_query": 1000 * rank_clock.wall / max(test.X.shape[0], 1),
        "instances": {"train": read.X.shape[0], "test": test.X.shape[0]},
        "learned": learned,
        "features": train.X.shape[1],
        "classes": int(np.count_nonzero(train.label_counts)),
    }


class _Clock:
    """Measures the wall and processor seconds of a block."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall, self.cpu = time.perf_counter() - wall, time.process_time() - cpu


def _below(read: Matrices, pairs: tuple[tuple[str, str], ...]) -> Matrices:
    try:
        return replace(read, hierarchy=of_pairs(read.labels, pairs))
    except ValueError as error:
        raise InvalidInstance(str(error), "hierarchy") from error


def _read(
    train: Iterable[DatasetInstance], test: Iterable[DatasetInstance], trial: BatchEvaluation
) -> tuple[Matrices, Matrices]:
    vectorizer = Vectorizer(trial.config, DATASET_LIMITS)
    secret = (secrets.randbits(64), secrets.randbits(64))
    read = gather(train, vectorizer, DATASET_LIMITS, secret)
    other = gather(test, vectorizer, DATASET_LIMITS, secret, like=read)
    if other.X.shape[0] and not np.any(other.label_sets.sizes):
        raise InvalidInstance("no test instance has a label", "data")
    return read, other

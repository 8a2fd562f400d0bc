"""``abound evaluate``: fit the live index on one file and evaluate it on another, in this process."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from abound.processes.remote_encoder import encoded
from abound_core.config import ModelConfig
from abound_core.errors import InvalidInstance
from abound_core.evaluation.evaluate import Progress, fit, measure, measure_calibration, measure_decisions, rank
from abound_core.instances.data_formats import DatasetInstance, vectorize_all
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import DATASET_LIMITS
from abound_core.measures import Propensity


def evaluate(
    train_instances: Iterable[DatasetInstance],
    test_instances: Iterable[DatasetInstance],
    config: ModelConfig,
    *,
    passes: int = 1,
    shuffle: int | None = None,
    propensity: Propensity | None = None,
    progress: Progress = lambda n: None,
) -> dict[str, Any]:
    """Fit the live index on some instances and evaluate it on others.

    ``shuffle`` seeds a random training order, another one in each pass; None is the given order. ``progress`` is called
    with the number of instances learned or ranked since the last call. Returns

    - ``metrics``: the measures; HR is None where MRR is 0;
    - ``connections``, ``features``, ``classes``: the size of the index;
    - ``work_per_feature``: connections that voted per active feature while classifying;
    - ``bytes``: memory of the model;
    - ``seconds``: the times of ``vectorize`` (with reading), ``fit`` and ``rank``;
    - ``instances``: the numbers of instances in the files;
    - ``learned``: the number of training instances with labels and active features;
    - ``digest``: after one pass, equal to that of a service that learned the same instances in order;
    - ``calibration``, for a calibrated model: see ``abound_core.evaluation.evaluate.measure_calibration``;
    - ``decisions``, for a model that decides: see ``measure_decisions`` there.
    """
    clock = time.perf_counter
    started = clock()
    vectorizer = Vectorizer(config, DATASET_LIMITS)
    train = vectorize_all(encoded(train_instances, config.analyzer), vectorizer, DATASET_LIMITS)
    if len(train) and not len(train.learnable):
        raise InvalidInstance(
            "no instance has both a label and an active feature"
            if np.any(train.labels.sizes)
            else "no instance has a label",
            "data",
        )
    test = vectorize_all(encoded(test_instances, config.analyzer), vectorizer, DATASET_LIMITS)
    if len(test) and not np.any(test.labels.sizes):
        raise InvalidInstance("no test instance has a label", "data")
    read = clock()
    secret = (secrets.randbits(64), secrets.randbits(64))
    rng = None if shuffle is None else np.random.default_rng(shuffle)
    live = fit(train, config, secret, passes=passes, rng=rng, progress=progress)
    fitted = clock()
    ranked = rank(live, test, progress=progress)
    done = clock()
    calibration = {"calibration": measure_calibration(live, test, ranked)} if config.calibrate else {}
    decisions = {"decisions": measure_decisions(live, test)} if config.decide is not None and len(test) else {}
    return {
        "metrics": measure(live, train, test, ranked, propensity or Propensity()),
        "connections": live.index.n_connections,
        "work_per_feature": ranked.work_per_feature,
        "bytes": sum(live.sizes()["memory"].values()),
        "seconds": {"vectorize": read - started, "fit": fitted - read, "rank": done - fitted},
        "instances": {"train": len(train), "test": len(test)},
        "learned": len(train.learnable),
        "features": len(live.features),
        "classes": live.n_classes,
        "digest": live.digest(),
        **calibration,
        **decisions,
    }

"""Offline evaluation: fit the live index on a data set, rank another one, and measure, with the code of the service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from abound_core.config import ModelConfig
from abound_core.instances.data_formats import Dataset
from abound_core.measures import Ints, LabelSets, Propensity, Rankings, evaluate
from abound_core.model.calibration import binned, reliability_of
from abound_core.model.decisions import NAMES
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.numba.top_k import N_BEST
from abound_core.types import Ranking

TARGETS = (0.8, 0.9, 0.95, 0.98, 0.99)  # agreement, for which decisions are measured

CHUNK = 1000  # instances between two progress reports

Progress = Callable[[int], None]  # gets the number of instances since the last call


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RankedDataset:
    """The rankings of a data set: all classes with a score, or the best of them."""

    rankings: list[Ranking]
    work_per_feature: float


def fit(
    train: Dataset,
    config: ModelConfig,
    secret: tuple[int, int],
    *,
    passes: int = 1,
    rng: np.random.Generator | None = None,
    progress: Progress = lambda n: None,
    after_pass: Callable[[LiveModel], None] = lambda live: None,
) -> LiveModel:
    """Learn a data set by FF with FSU (Madani, Connor and Greiner, JMLR 2009, section 4).

    Instances without labels or without active features are skipped. Features count as seen in the first pass only.
    ``rng`` draws a new order for each pass; None keeps the order of the data. ``secret`` does not change the result.
    """
    live = LiveModel(config, secret)
    class_ids: list[int] = []
    for number in range(passes):
        places = train.learnable if rng is None else rng.permutation(train.learnable)
        for chunk in (places[at : at + CHUNK] for at in range(0, len(places), CHUNK)):
            if number == 0:
                live.begin(train.records(chunk.tolist()), len(chunk), [Unit(len(chunk))]).finish()
            else:
                _learn_again(live, train, chunk, class_ids)
            progress(len(chunk))
        class_ids = [live.labels.find(name.encode()) for name in train.names]
        after_pass(live)
    return live


def rank(
    live: LiveModel, test: Dataset, *, depth: int | None = None, progress: Progress = lambda n: None
) -> RankedDataset:
    """Rank the best ``depth`` classes for each instance of a data set; None: all classes."""
    votes_at_most = live.config.d_max if live.config.update == "fsu" else 2**16
    lengths = np.minimum(live.index.to_arrays()["lengths"].astype(np.int64), votes_at_most)
    in_rows = live.index.n_classes if live.index.in_rows else 0
    lengths += in_rows
    rankings = []
    active = votes = 0
    for count, vector in enumerate(test.vectors, start=1):
        ids, values = live.active(vector)
        visited = int(lengths[ids[(ids >= 0) & (ids < len(lengths))]].sum())
        # A class has a score if a connection votes for it; in rows every class has one. So this depth leaves none out.
        if live.reranker.on:
            rankings.append(live.rank(vector, depth or len(live.labels)))
        else:
            rankings.append(live.index.rank(ids, values, depth or max(visited, in_rows)))
        active += len(ids)
        votes += visited
        if count % CHUNK == 0:
            progress(CHUNK)
    return RankedDataset(rankings=rankings, work_per_feature=votes / active if active else 0.0)


def measure(
    live: LiveModel, train: Dataset, test: Dataset, ranked: RankedDataset, propensity: Propensity
) -> dict[str, float | None]:
    """Return all measures. A label that the model does not know gets an id above all class ids: it is never found."""
    ids = _label_ids(live, [*train.names, *test.names])
    counts = np.zeros(max(ids.values(), default=-1) + 1, dtype=np.int64)
    counts[[ids[name] for name in train.names]] = train.label_counts
    true = np.array([ids[name] for name in test.names], dtype=np.int64)
    truth = LabelSets(test.labels.starts, true[test.labels.ids])
    starts = np.cumsum([0, *(len(ranking.class_ids) for ranking in ranked.rankings)])
    flat = [np.concatenate([ranking[part] for ranking in ranked.rankings] or [np.zeros(0)]) for part in (0, 1)]
    rankings = Rankings.of(starts, flat[0].astype(np.int64), flat[1])
    return evaluate(rankings, truth, propensity.weights(counts, len(train)))


def measure_calibration(live: LiveModel, test: Dataset, ranked: RankedDataset) -> dict[str, dict[str, Any]]:
    """Return how reliable the probabilities of a calibrating model are: ``error`` and ``brier`` of three estimates.

    - ``prequential``: the probabilities of the learned instances, each estimated before its outcome was known;
    - ``test``: the probabilities of the data set;
    - ``score``: the scores of the data set, clipped to 0 .. 1, in place of probabilities.

    The last two also have ``F1``, micro-averaged; a label counts as predicted if its estimate is at least 0.5.
    """
    ids = _label_ids(live, test.names)
    starts, labels = test.labels
    estimates, scores, true = [], [], []
    for i, ranking in enumerate(ranked.rankings):
        best = Ranking(ranking.class_ids[:N_BEST], ranking.scores[:N_BEST])
        kept = best.scores > 0.0
        estimates.append(live.calibration.probabilities(best)[kept])
        scores.append(np.clip(best.scores[kept], 0.0, 1.0))
        own = [ids[test.names[label]] for label in labels[starts[i] : starts[i + 1]].tolist()]
        true.append(np.isin(best.class_ids[kept], own))
    outcomes = np.concatenate(true or [np.zeros(0, np.bool_)])
    figures = {"prequential": (live.calibration.reliability() or {})["all"]}
    for name, parts in (("test", estimates), ("score", scores)):
        said = np.concatenate(parts or [np.zeros(0)])
        kept = said >= 0.5
        right, wanted = np.count_nonzero(outcomes[kept]), np.count_nonzero(kept) + len(labels)
        figures[name] = reliability_of(binned(said, outcomes)) | {"F1": 2 * right / wanted if wanted else None}
    return {name: {key: value for key, value in one.items() if key != "bins"} for name, one in figures.items()}


def measure_decisions(live: LiveModel, test: Dataset) -> list[dict[str, Any]]:
    """Return what a model that decides makes of a data set, for some targets: shares, and agreement of the answers."""
    assert live.config.decide is not None
    ids = _label_ids(live, test.names)
    true = [
        {ids[test.names[label]] for label in labels.tolist()}
        for labels in np.split(test.labels.ids, test.labels.starts[1:-1])
    ]
    rows: list[dict[str, Any]] = []
    for target in sorted({*TARGETS, live.config.decide.agreement}):
        counts, applied, right = dict.fromkeys(NAMES, 0), 0, 0
        for vector, own in zip(test.vectors, true, strict=True):
            found = live.decide(vector, 1, agreement=target)
            counts[found.decision] += 1
            applied += len(found.applied.class_ids)
            right += len(own.intersection(found.applied.class_ids.tolist()))
        shares = {name: n / len(test) for name, n in counts.items()}
        rows.append({"target": target, **shares, "agreement": right / applied if applied else None})
    return rows


def _learn_again(live: LiveModel, train: Dataset, places: Ints, class_ids: list[int]) -> None:
    starts, labels = train.labels
    for place in places.tolist():
        vector = train.vectors[place]
        true = [class_ids[label] for label in labels[starts[place] : starts[place + 1]].tolist()]
        ids, values = live.active(vector)
        known = ids >= 0  # all, unless max_features evicted some
        live.learn_again(ids[known], values[known], np.array(true, dtype=np.int32))


def _label_ids(live: LiveModel, names: list[str]) -> dict[str, int]:
    ids: dict[str, int] = {}
    unknown = _from(live.labels.n_ids)
    for name in names:
        if name not in ids:
            found = live.labels.find(name.encode())
            ids[name] = found if found >= 0 else next(unknown)
    return ids


def _from(first: int) -> Iterator[int]:
    while True:
        yield first
        first += 1

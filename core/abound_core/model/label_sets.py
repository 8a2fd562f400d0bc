"""The index of label sets: labels as features of other labels (``abound_core.model.label_sets_kernels``)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from abound_core.config import ModelConfig
from abound_core.index.dense_rows import Flows
from abound_core.index.index import Index
from abound_core.index.layout_kernels import Feedback
from abound_core.index.params import IndexParams
from abound_core.index.sls_kernels import MOST_SLOTS, STEPS_MASK
from abound_core.model.label_sets_kernels import MOST_GIVEN, SPREAD


def params_of(config: ModelConfig) -> IndexParams:
    return replace(IndexParams.of(config), update="sls", memory=None, rows=False)


def learn_set(index: Index, class_ids: npt.NDArray[np.int32], weight: float, partial: bool = False) -> None:
    """Learn the true labels of an event as ``learn_label_sets`` does."""
    t = (index.n_counted * int(SPREAD) % 2**64 >> 32) % len(class_ids)
    in_turn = np.roll(class_ids, -1 - t)
    given = in_turn[:-1][:MOST_GIVEN]
    index.learn(given, np.ones(len(given), np.float32), in_turn[-1:], feedback=Feedback(1, 0, weight, partial))


def moved(index: Index, flows: Flows, n_classes: int) -> Index:
    """Return an index of label sets in which some labels have moved to others, as features and as classes.

    The given index changes, too. Of several connections of a feature to one class the strongest is kept, and their step
    sums are added.
    """
    index.make_room(n_classes, n_classes)
    index.move_classes(flows, n_classes)
    arrays = index.to_arrays()
    counted, before, totals = arrays["counted"], np.zeros(n_classes), np.zeros(n_classes)
    before[: len(arrays["totals"])] = arrays["totals"]
    totals[:] = before
    totals[list(flows)] = 0.0
    features = np.repeat(np.arange(len(arrays["lengths"])), arrays["lengths"])
    places = [np.flatnonzero(~np.isin(features, list(flows)))]
    owners = [features[places[0]]]
    for label, flow in flows.items():
        for target in flow:
            totals[target] = min(totals[target] + before[label], float(counted[0]))
            places.append(np.flatnonzero(features == label))
            owners.append(np.full(len(places[-1]), target))
    place, owner = np.concatenate(places), np.concatenate(owners)
    ids, weights, steps = (arrays[name][place] for name in ("class_ids", "weights", "steps"))
    order = np.lexsort((-np.abs(weights), ids, owner))
    same = owner[order].astype(np.int64) * n_classes + ids[order]
    firsts = np.flatnonzero(np.diff(same, prepend=-1))
    kept, owner = order[firsts], owner[order[firsts]]
    summed = np.add.reduceat(steps[order].astype(np.int64), firsts) if len(firsts) else np.zeros(0, np.int64)
    strongest = np.lexsort((ids[kept], -np.abs(weights[kept]), owner))
    rank = np.arange(len(kept)) - np.searchsorted(owner, owner)
    strongest = np.sort(strongest[rank < int(MOST_SLOTS)])
    kept = kept[strongest]
    arrays = {
        "lengths": np.bincount(owner[strongest], minlength=n_classes).astype(np.uint16),
        "totals": totals,
        "class_ids": ids[kept],
        "weights": weights[kept],
        "steps": np.minimum(summed[strongest], int(STEPS_MASK)).astype(np.uint16),
        "counted": counted,
    }
    return Index.from_arrays(index.params, arrays, n_classes)

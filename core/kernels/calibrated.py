"""Applying records to a model that calibrates: what an instance's scores are worth is learned just before itself is.

A kernel of its own around ``apply_records``, so that other models do not pay for it.
"""

import numpy as np

from core.kernels.apply import AT, DONE, ENOUGH, SLICE_WORK, STATUS, apply_records
from core.kernels.calibration import BEST, learn_pairs
from core.kernels.keys import find_key, find_vector_at
from core.kernels.machine import kernel
from core.kernels.memory import load_f32, load_u16
from core.kernels.records import record_shape
from core.kernels.retrieval import rank_classes

CALIBRATED = 4
"""Place in the cursor, behind those of ``apply_records``: the byte of the record that was calibrated last, or -1."""


@kernel
def calibrate(calibration, live, buffer, at, shape):
    """Learn what the scores of the record at byte ``at`` are worth, by the ranking that ``/classify`` would give now.

    ``calibration`` changes, and nothing else.
    """
    ids, values = np.empty(shape.n_features, np.int32), np.empty(shape.n_features, np.float32)
    find_vector_at(live.features, buffer, at, ids)
    for i in range(shape.n_features):
        values[i] = load_f32(buffer, shape.values_at + 4 * i)
    best_ids, scores, true = np.empty(BEST, np.int32), np.empty(BEST, np.float64), np.zeros(BEST, np.bool_)
    n = rank_classes(live.postings, live.params, ids, values, np.empty(0, np.uint8), best_ids, scores)
    label_at = shape.labels_at
    for j in range(shape.n_labels):
        length = np.int64(load_u16(buffer, shape.label_lengths_at + 2 * j))
        class_id = find_key(live.labels, buffer, label_at, length)
        label_at += length
        for i in range(n):
            true[i] |= best_ids[i] == class_id
    learn_pairs(calibration, scores[:n], true[:n])


@kernel
def apply_calibrated(buffer, cursor, held, ranks, updated):
    """``apply_records`` for a model that calibrates.

    Parameters
    ----------
    cursor : int64 array, shape (5,)
        Also ``CALIBRATED``. Where arrays must grow first (``STATUS``) the next record has been calibrated already, and
        is not again when it is done again: the caller does that before anything else, and then makes this -1.
    buffer, held, ranks, updated
        As for ``apply_records``.
    """
    done, work = 0, 0
    cursor[STATUS] = ENOUGH
    while done < len(ranks) and work < SLICE_WORK:
        at = cursor[AT]
        shape = record_shape(buffer, at)
        if cursor[CALIBRATED] != at:
            calibrate(held.calibration, held.live, buffer, at, shape)
            cursor[CALIBRATED] = at
        apply_records(buffer, cursor, held, ranks[done : done + 1], updated[done : done + 1])
        if cursor[DONE] == 0:
            break
        done += 1
        work += shape.n_features * shape.n_labels
    cursor[DONE] = done

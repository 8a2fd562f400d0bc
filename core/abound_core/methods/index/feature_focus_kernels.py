"""Feature Focus over rows of sparse matrices (Madani, Connor and Greiner, JMLR 2009, section 4)."""

import numpy as np

from abound_core.index.layout_kernels import Feedback, memory_of
from abound_core.index.learning_kernels import has_room, learn_fsu
from abound_core.index.rank_kernels import rank_classes
from abound_core.numba.decorators import kernel


@kernel
def learn_rows(arrays, params, features, labels, first, last, counted):
    """Learn rows from ``first`` on with ``fsu``; return ``last``, or the first row for which the index must grow.

    ``features`` are the rows of X (indptr, indices, data): unique int32 indices within a row, float32 data above 0.
    ``labels`` are those of Y (indptr, indices). ``counted``: count the features as seen, in the first pass.
    """
    memory = memory_of(arrays)
    starts, ids, values = features
    label_starts, class_ids = labels
    ranks = np.empty(max(1, np.diff(label_starts[first : last + 1]).max()), np.int32)
    for row in range(first, last):
        own, true = slice(starts[row], starts[row + 1]), slice(label_starts[row], label_starts[row + 1])
        if not has_room(memory, params, ids[own], class_ids[true]):
            return row
        feedback = Feedback(true.stop - true.start, 0, 1.0)
        learn_fsu(memory, params, ids[own], values[own], class_ids[true], feedback, counted, ranks, None)
    return last


@kernel
def rank_rows(arrays, params, features, first, counts_out, ids_out, scores_out):
    """Rank the classes for the rows from ``first`` on, as many as ``counts_out`` (int64, shape (m,)) has places.

    The best classes of each row, best first, are written into ``ids_out`` and ``scores_out``, shape (m, k).
    """
    memory = memory_of(arrays)
    starts, ids, values = features
    every_class = np.empty(0, np.uint8)
    for i in range(len(counts_out)):
        own = slice(starts[first + i], starts[first + i + 1])
        counts_out[i] = rank_classes(memory, params, ids[own], values[own], every_class, ids_out[i], scores_out[i])

"""Labels as evidence: learn which labels go together, and rank the others of an instance given some of its labels.

A second index by ``sls`` (``abound_core.index.sls_kernels``) has labels as features and as classes. Of an event with
m > 1 true labels it learns one instance, after the event itself. The target t is the label at place
(N ``SPREAD`` mod 2^64) / 2^32 mod m, where N is the number of instances that this index has learned: the places take
turns, whatever period the events have. The features are the next labels after t, at most ``MOST_GIVEN`` of them, going
round; each has the value 1.

An answer that is given the labels T adds to the score of each class ``GIVEN_WEIGHT`` times its score for T.
"""

import numpy as np

from abound_core.index.layout_kernels import FORM, N_COUNTED, NONE, Feedback
from abound_core.index.learning_kernels import has_room
from abound_core.index.rank_kernels import add_votes_sls
from abound_core.index.sls_kernels import learn_squares
from abound_core.index.sls_rows_kernels import N_CLASSES, ROWS
from abound_core.index.votes_kernels import SMALL_K, pop_score, select_large, select_small
from abound_core.instances.record_kernels import shape_at
from abound_core.instances.vocabulary_kernels import find_key
from abound_core.model.answer_kernels import resolve
from abound_core.model.apply_kernels import ACTIVE, AT, DONE
from abound_core.numba.decorators import inlined, kernel
from abound_core.numba.intrinsics import (
    U0,
    U1,
    YES,
    load_float,
    load_id,
    load_u16,
    load_u32,
    load_word,
    pointer,
    store_float,
    store_id,
)

MOST_GIVEN = 16
GIVEN_WEIGHT = 0.5
SPREAD = np.uint64(0x9E3779B97F4A7C15)
U32 = np.uint64(32)


@inlined
def place_of(number, m):
    return np.int64(((number * SPREAD) >> U32) % np.uint64(m))


@inlined
def find_true(live, data, shape, class_ids):
    at = shape.labels_at
    for j in range(shape.n_true):
        length = np.int64(load_u16(data, shape.label_lengths_at + 2 * j))
        class_ids[j] = find_key(live.labels, data, at, length)
        at += length


@kernel
def learn_label_sets(buffer, cursor, sets):
    """Learn the label sets of records that a model has just learned.

    Parameters
    ----------
    buffer : bytes
    cursor : int64 array, shape (5,)
        ``AT`` is the byte to begin with and ``DONE`` the number of records; both are written. ``DONE`` is above 0
        afterwards if the index must grow first. Then ``ACTIVE`` features and the class are in the scratch.
    sets : ModelHandle
        That of the model, with the index of label sets.
    """
    live, scratch, data, size = sets.live, sets.scratch, pointer(buffer), len(buffer)
    while cursor[DONE] > 0:
        shape = shape_at(data, size, cursor[AT])
        m = shape.n_true
        if m > 1 and shape.details_at < 0:
            find_true(live, data, shape, scratch.ranks)
            t, n = place_of(load_word(live.postings.counters, N_COUNTED), m), min(m - 1, MOST_GIVEN)
            ids, values, target = scratch.ids[:n], scratch.values[:n], scratch.class_ids[:1]
            for j in range(n):
                ids[j], values[j] = scratch.ranks[(t + 1 + j) % m], 1.0
            target[0] = scratch.ranks[t]
            if not has_room(live.postings, live.params, ids, target):
                cursor[ACTIVE] = n
                return
            one = Feedback(np.int64(1), np.int64(0), shape.weight, shape.partial)
            learn_squares(live.postings, live.params, ids, values, target, one, YES, scratch.ranks, None)
        cursor[AT] = shape.end
        cursor[DONE] -= 1


@kernel
def rank_given(vector, held, sets, given, mask, ids_out, scores_out):
    """Run ``rank_vector`` for a model by ``sls``, given some labels of the instance.

    Parameters
    ----------
    held, sets : ModelHandle
        The model, and the same with the index of label sets.
    given : int32, shape (g,)
        Class ids of the given labels, unique.
    """
    live, scratch, memory, other = held.live, held.scratch, held.live.postings, sets.live.postings
    if load_u32(vector, 0) > len(scratch.ids):
        return -1
    n = resolve(vector, live.features, scratch.ids, scratch.values)
    n_touched = add_votes_sls(memory, live.params, scratch.ids[:n], scratch.values[:n], False, NONE)
    n_in_rows = load_word(memory.counters, N_CLASSES) if load_word(memory.counters, FORM) == ROWS else U0
    n_added = add_votes_sls(other, sets.live.params, given, np.ones(len(given), np.float32), False, NONE)
    for i in range(n_added):
        class_id = np.uint64(load_id(other.touched, i))
        before = load_float(memory.scores, class_id)
        store_float(memory.scores, class_id, before + GIVEN_WEIGHT * pop_score(other, class_id))
        if before == 0.0 and class_id >= n_in_rows:  # in rows, every class is listed already
            store_id(memory.touched, n_touched, np.uint32(class_id))
            n_touched += U1
    if len(ids_out) <= SMALL_K:
        return select_small(memory, n_touched, mask, ids_out, scores_out)
    return select_large(memory, n_touched, mask, ids_out, scores_out)

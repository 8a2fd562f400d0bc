"""Application of log records to a model, from the bytes of a record to the index and the score.

Records are applied in log order, and arrays never grow in here: if a record might need more space than there is, the
kernel stops before it is learned and reports which arrays are full. The caller grows them and applies the record again.

**Eviction** is the generalised clock algorithm. A feature gets a credit each time it is seen again, at most
``MAX_CREDIT``. A hand goes round the feature ids; it takes one credit from each feature it passes and evicts the
first one without credits. Features of the current instance are pinned, up to ``max_features`` known ones. If an
instance alone has more than ``max_features`` features, the surplus is not learned, and evicted if known. After the
bound was lowered, each event evicts at most ``MOST_EVICTED`` features until the bound is met; new features wait until
then.

The dense part of a record becomes features (``abound_core.instances.codes_kernels``). The first one fixes the dimension
of the model; those of another dimension are left out. Codes do not count as features in ``max_features`` and are never
evicted.

A record with details registers its label. It is learned, but not scored and not counted as an instance of its label.

A record with feedback also has rejected and ignored labels. They get no ids: those that the model does not know are
skipped. A record without true labels is learned and has no rank. One whose true labels are not all is not scored, since
the label that was ranked first may be true, too.

Models that calibrate and models that re-rank have kernels of their own, so that other models do not pay for them.
"""

import numpy as np

from abound_core.index.layout_kernels import Feedback, by_rule
from abound_core.index.learning_kernels import has_room, learn_fsu, learn_sls
from abound_core.index.rank_kernels import rank_classes
from abound_core.index.sls_rows_kernels import forget
from abound_core.instances.codes_kernels import EXPANSION, WINNERS, expand_record, is_code
from abound_core.instances.record_kernels import is_complete, nowhere, record_shape, shape_at
from abound_core.instances.vocabulary_kernels import (
    N_IDS,
    N_LIVE,
    START,
    add_key,
    add_missing,
    find_key,
    find_keys,
    remove_key,
    room_for,
)
from abound_core.model.calibration_kernels import MILLISECONDS, POSITION, learn_pairs, note_suspect
from abound_core.model.decision_kernels import AUDIT, is_audited, judge
from abound_core.model.prequential_kernels import LEARNED, UPDATED, count_ranks
from abound_core.model.reranker_kernels import (
    INDEX_CANDIDATES,
    add_vector,
    count_answer,
    find_candidates,
    has_rows,
    is_trusted,
    is_usable,
    new_candidates,
    put_softmax,
    take_step,
    write_answer,
)
from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.intrinsics import I0, NO, YES, load_f32, load_u16, load_u32, pointer
from abound_core.numba.top_k import N_BEST, Best, empty, n_places

AT, DONE, STATUS, ACTIVE, CLASSES = range(5)
"""Places in the cursor: byte of the next record, records applied by the last call, why it stopped, and how many
features and classes of the next record have an id in the scratch (with ``INDEX_FULL``).
"""

PREPARED, REGISTERED, SPACED, ANSWERED = 5, 6, 7, 8
"""Further places in the cursor: the byte of the record that the re-ranker has seen last, of the record with details
that is to be learned, and, with ``max_features``, of the record for which features were evicted last; the class that
the re-ranker ranked first for the next record. -1 if there is none.
"""

N_CURSOR = 9

ENOUGH, NAMES_FULL, INDEX_FULL, REGISTERS, FIRST_VECTOR = range(5)
"""Reasons to stop: all records or enough work are done; the vocabularies must grow first; the index must grow first;
the next record registers a label; the next record has the first vector, which starts the re-ranker.
"""

MAX_FEATURES, HAND, DIMENSION, CODES, N_CODES, UNLABELLED, REJECTED, IGNORED, WEIGHTED = range(9)
AWAITS_VECTOR = 9
"""Places in ``control``: the bound (0: none), the feature id at the clock's hand, the dimension of the model's vectors
(0: not known yet), the number of codes that exist (0: the model does not use them), and with a bound the number of
codes that have an id. Then counts of feedback: records that are not scored, rejected labels, ignored labels, and
records with a weight other than 1. ``AWAITS_VECTOR`` is 1 if the first vector starts the re-ranker; it is not part of
the state.
"""

SLICE_WORK = 16_384  # feature updates after which a call returns, so that every slice is short

MAX_CREDIT = 3
MOST_EVICTED = 16_384
PINNED = 128

_SPAN_LENGTH = np.uint64(0xFFFF)


@kernel
def apply_records(buffer, cursor, held, ranks, updated):
    """Apply records to a model, in place.

    Parameters
    ----------
    buffer : bytes
        Checked records (``abound_core.instances.record.check_records``).
    cursor : int64 array, shape (N_CURSOR,)
        ``AT`` is the byte to begin with; the first five are written. ``REGISTERED`` is read. With ``SPACED``, if the
        index must grow first (``STATUS``), features were already evicted for the next record. The caller must apply
        that record before anything else, and then set this to -1.
    held : ModelHandle
        The arrays of its model change.
    ranks : int32 array, shape (n,)
        Written: the rank of the best true label before learning, 0 = not retrieved or no true label. At most ``n``
        records are applied.
    updated : bool array, shape (n,)
        Written: whether the index changed.
    """
    apply_ranked(buffer, cursor, held, ranks, updated, np.empty(0, np.int32), held.scratch.first)


@inner
def apply_ranked(buffer, cursor, held, ranks, updated, given, best):
    """Run ``apply_records``, with ranks of the true labels that take the place of the index's.

    Parameters
    ----------
    given : int32 array
        The ranks: of length 0, or as long as the labels of the one record to apply. A label with 0 keeps its rank in
        the index.
    best : Best or First
        Empty, before and after. With a Best, the calibration learns from the scores of the index.
    """
    live, scratch, data, size = held.live, held.scratch, pointer(buffer), len(buffer)
    offset = pointer(held.calibration.at)
    learn = by_rule(live.params, learn_fsu, learn_sls)
    expand = by_rule(live.params, without_codes, with_codes)
    at, done, work = cursor[AT], 0, 0
    cursor[STATUS] = ENOUGH
    while done < len(ranks) and work < SLICE_WORK:
        shape, source = shape_at(data, size, at), data
        end = shape.end
        registers = shape.details_at >= 0
        # The caller decides whether the name of a label is to be learned.
        if registers and cursor[REGISTERED] != at:
            cursor[STATUS] = REGISTERS
            break
        if shape.dense_at >= 0:
            # The caller goes on with a re-ranker from here on, so the log alone decides where it starts.
            if starts_reranker(live):
                cursor[STATUS] = FIRST_VECTOR
                break
            shape, source = expand(live, scratch, data, shape, at)
        n, m = shape.n_features, shape.n_true
        if n < 0 or n > len(scratch.ids) or shape.n_labels > len(scratch.ranks) or not has_names_room(live, shape):
            cursor[STATUS] = NAMES_FULL
            break
        ids, values, own_ranks = scratch.ids[:n], scratch.values[:n], scratch.ranks[:m]
        # Give ids to keys and labels. If the record is applied again, this finds what it did the first time.
        n_classes, n_rejected = intern_labels(live, source, shape, scratch.class_ids)
        class_ids = scratch.class_ids[:n_classes]
        if live.control[MAX_FEATURES] == 0:
            find_keys(live.features, source, shape.lengths_at, n, ids)
            add_missing(live.features, source, shape.lengths_at, n, ids)
            read_values(source, shape, values)
        else:
            # Evict for new keys, once per record: when arrays grow depends on memory, and evictions must not.
            n = intern_bounded(live, source, shape, ids, values, cursor[SPACED] != at)
            cursor[SPACED] = at
            ids, values = ids[:n], values[:n]
        # Nothing was learned yet, so the record can be applied again once the index has grown.
        if not has_room(live.postings, live.params, ids, class_ids):
            cursor[STATUS] = INDEX_FULL
            cursor[ACTIVE] = n
            cursor[CLASSES] = n_classes
            break
        feedback = Feedback(m, n_rejected, shape.weight, shape.partial)
        changed = NO
        if n > 0 or not registers:  # a name that is known, or a label without one, is no instance
            changed = learn(live.postings, live.params, ids, values, class_ids, feedback, YES, own_ranks, best)
        # The ranking has noted the best classes; their probabilities are learned after the instance.
        if n_places(best) == N_BEST and not registers:
            calibrate(held, best, class_ids, m, n_rejected, is_complete(shape))
        first = cursor[ANSWERED] if cursor[ANSWERED] >= 0 else np.int64(best.class_ids[0])
        empty(best)
        ranks[done] = I0
        if not registers:
            for j in range(min(m, len(given))):
                own_ranks[j] = given[j] if given[j] > 0 else own_ranks[j]
            ranks[done] = count_outcome(live, shape, class_ids[:m], own_ranks, changed, first)
            for j in range(m):
                live.label_counts[class_ids[j]] += 1
        updated[done] = changed
        if live.control[MAX_FEATURES] > 0:
            for i in range(n):
                live.credits[ids[i]] &= PINNED - 1
        at = end
        done += 1
        offset[POSITION - MILLISECONDS] += 1
        work += n * max(n_classes, 1)
    cursor[AT] = at
    cursor[DONE] = done


@inner
def with_codes(live, scratch, data, shape, at):
    """Write a record with codes in place of its dense part into the scratch; return its shape and the pointer.

    The number of features is -1 if the scratch is too short.
    """
    memory = pointer(scratch.memory)
    if len(scratch.memory) < shape.end - at + EXPANSION:
        return nowhere(), memory
    if live.control[CODES] > 0 and live.control[DIMENSION] == 0:
        live.control[DIMENSION] = np.int64(load_u32(data, shape.dense_at))
    return expand_record(data, shape, live.control[CODES], live.control[DIMENSION], scratch.memory), memory


@inlined
def starts_reranker(live):
    return live.control[AWAITS_VECTOR] > 0 and live.control[DIMENSION] == 0


@inlined
def without_codes(live, scratch, data, shape, at):
    return shape, data


@inlined
def has_names_room(live, shape):
    n, m = shape.n_features, shape.n_labels
    n_ids, n_classes = live.features.state[N_IDS], live.labels.state[N_IDS]
    bounded = live.control[MAX_FEATURES] > 0
    return (
        room_for(live.features, n, shape.end - shape.keys_at)
        and room_for(live.labels, m, shape.end - shape.labels_at)
        and n_classes + m <= live.n_label_counts
        and (not bounded or n_ids + n <= live.n_credits)
        and np.uint64(n_ids + n) <= live.postings.n_headers
    )


@inner
def intern_labels(live, data, shape, class_ids):
    """Write the class ids of a record's labels; return the number of ids, and of those that are rejected.

    New true labels get ids in their order. Other labels are left out if they are unknown, and ignored ones also if they
    are not learned.
    """
    at, n, n_rejected = shape.labels_at, I0, I0
    wrong_end = shape.n_labels if live.params.implicit > 0.0 else shape.n_true + shape.n_rejected
    for j in range(wrong_end):
        length = np.int64(load_u16(data, shape.label_lengths_at + 2 * j))
        if j < shape.n_true:
            class_id = np.int64(add_key(live.labels, data, at, length))
        else:
            class_id = np.int64(find_key(live.labels, data, at, length))
        at += length
        if class_id >= 0:
            class_ids[n] = class_id
            n += 1
            n_rejected += np.int64(shape.n_true <= j < shape.n_true + shape.n_rejected)
    return n, n_rejected


@inlined
def count_outcome(live, shape, true, ranks, changed, first):
    """Count a learned record: ranks of its true labels, and its feedback; return the rank of the best true label.

    ``first`` is the class that was ranked first, -1 if there was none.
    """
    live.control[REJECTED] += shape.n_rejected
    live.control[IGNORED] += shape.n_labels - shape.n_true - shape.n_rejected
    live.control[WEIGHTED] += np.int64(shape.weight != 1.0)
    if shape.n_true > 0 and not shape.partial:
        return count_ranks(live.score, live.label_counts, true, ranks, changed, first)
    live.control[UNLABELLED] += 1
    live.score.counts[UPDATED] += np.int64(changed)
    best = I0
    for j in range(shape.n_true):
        if ranks[j] > 0 and (best == 0 or ranks[j] < best):
            best = np.int64(ranks[j])
    return best


@inner
def intern_bounded(live, data, shape, ids, values, evicts):
    """Write feature ids and values under ``max_features``; return the number of features to learn.

    ``evicts`` is whether space is made for new ones. It is false for a record that is applied again: when arrays grow
    depends on the layout in memory, and what is evicted must not.
    """
    most = live.control[MAX_FEATURES]
    at, n_new, n_pinned = shape.keys_at, I0, I0
    for i in range(shape.n_features):
        length = np.int64(load_u16(data, shape.lengths_at + 2 * i))
        ids[i] = find_key(live.features, data, at, length)
        is_word = not is_code(data, at, length)
        at += length
        if ids[i] < 0:
            n_new += np.int64(is_word)
        elif is_word and n_pinned >= most and live.credits[ids[i]] < PINNED:
            evict(live, np.int64(ids[i]))
            ids[i] = -1
        elif is_word:
            n_pinned += 1
            if live.credits[ids[i]] < PINNED:
                live.credits[ids[i]] = PINNED | min(live.credits[ids[i]] + 1, MAX_CREDIT)
    if evicts:
        make_space(live, n_new, n_pinned)
    at, kept = shape.keys_at, 0
    for i in range(shape.n_features):
        length = np.int64(load_u16(data, shape.lengths_at + 2 * i))
        key_id = np.int64(ids[i])
        if key_id < 0 and is_code(data, at, length):
            key_id = add_key(live.features, data, at, length)
            live.credits[key_id] = 0
            live.control[N_CODES] += 1
        elif key_id < 0 and live.features.state[N_LIVE] - live.control[N_CODES] < most:
            key_id = add_key(live.features, data, at, length)
            live.credits[key_id] = PINNED
        at += length
        if key_id >= 0:
            ids[kept] = key_id
            values[kept] = load_f32(data, shape.values_at + 4 * i)
            kept += 1
    return kept


@inner
def make_space(live, n_new, n_pinned):
    """Evict up to ``MOST_EVICTED`` features until ``n_new`` more fit under the bound or only pinned ones remain."""
    state, control, arena = live.features.state, live.control, live.features.arena
    n_words = state[N_LIVE] - control[N_CODES]
    n_evict = min(n_words + n_new - control[MAX_FEATURES], n_words - n_pinned, MOST_EVICTED)
    hand = control[HAND]
    while n_evict > 0:
        if hand >= state[N_IDS]:
            hand = 0
        span = live.features.spans[hand]
        length = np.int64(span & _SPAN_LENGTH)
        if length > 0:
            credit = live.credits[hand]
            if credit == 0 and is_code(arena, np.int64(span >> START), length):
                pass
            elif credit == 0:
                evict(live, hand)
                n_evict -= 1
            elif credit < PINNED:
                live.credits[hand] = credit - 1
        hand += 1
    control[HAND] = hand


@inner
def evict(live, feature):
    """Forget a feature: its key, its header, its connections. Its id is the next to be assigned."""
    remove_key(live.features, feature)
    forget(live.postings, np.uint64(feature))


@kernel
def skip_records(buffer, at, n):
    """Return the position after ``n`` checked records from byte ``at`` on."""
    for _ in range(n):
        at = record_shape(buffer, at).end
    return at


@kernel
def count_unchanged(labels, class_of, retired, buffer, at, n):
    """Return how many of ``n`` records from byte ``at`` on come before one that names a label that was changed.

    ``class_of`` and ``retired`` are those of ``abound_core.model.label_changes``.
    """
    data, size = pointer(buffer), len(buffer)
    for i in range(n):
        shape = shape_at(data, size, at)
        place = shape.labels_at
        for j in range(shape.n_labels if shape.n_true > 0 or shape.details_at < 0 else 0):
            length = np.int64(load_u16(data, shape.label_lengths_at + 2 * j))
            number = np.int64(find_key(labels, data, place, length))
            place += length
            if 0 <= number < len(class_of) and (class_of[number] != number or retired[number]):
                return i
        at = shape.end
    return n


@inlined
def read_values(data, shape, values):
    for i in range(shape.n_features):
        values[i] = load_f32(data, shape.values_at + 4 * i)


@inner
def find_all(live, data, shape, ids, values, class_ids):
    """Write feature ids and values of the record of this shape, and class ids of its labels; -1 for unknown ones."""
    find_keys(live.features, data, shape.lengths_at, shape.n_features, ids)
    read_values(data, shape, values)
    at = shape.labels_at
    for j in range(shape.n_labels):
        length = np.int64(load_u16(data, shape.label_lengths_at + 2 * j))
        class_ids[j] = find_key(live.labels, data, at, length)
        at += length


@inner
def calibrate(held, best, class_ids, n_true, n_rejected, complete):
    """Let the calibration learn from the best classes of an instance and their scores; keep it if it is suspicious.

    ``class_ids`` begin with ``n_true`` true and ``n_rejected`` rejected classes. If the labels are not ``complete``, it
    learns from rejected ones without a true one only: some of the true and wrong ones would shift all probabilities.
    """
    true, known = np.zeros(N_BEST, np.bool_), np.full(N_BEST, complete, np.bool_)
    for j in range(n_true + n_rejected):
        for i in range(N_BEST):
            if best.class_ids[i] == class_ids[j]:
                true[i], known[i] = j < n_true, complete or n_true == 0
    calibration, live = held.calibration, held.live
    if complete:
        note_suspect(calibration, live.score.counts[LEARNED] + 1, best, live.label_counts, class_ids, n_true, true)
    learn_pairs(calibration, best.scores, true, known)


@kernel
def apply_calibrated(buffer, cursor, held, ranks, updated):
    apply_ranked(buffer, cursor, held, ranks, updated, np.empty(0, np.int32), held.scratch.best)


@kernel
def apply_reranked(buffer, cursor, held, ranks, updated):
    """Run ``apply_records`` for a model that re-ranks or decides, and may calibrate.

    Before a record with a dense part is learned, the re-ranker and the calibration learn from its candidates;
    afterwards its vector is added to the means of its true classes. Other records are applied as by ``apply_records``.
    The counted ranks of true labels are those of the answer. In a model that decides, every record is ranked and
    decided before it is learned.

    Parameters
    ----------
    cursor : int64 array, shape (N_CURSOR,)
        Includes ``PREPARED``. If the index must grow first (``STATUS``), the re-ranker has already learned from the
        next record. The caller must apply that record before anything else, so that it is not learned again, and then
        set this to -1.
    buffer, held, ranks, updated
        As for ``apply_records``.
    """
    live, scratch, reranker, data, size = held.live, held.scratch, held.reranker, pointer(buffer), len(buffer)
    reranks, decides = len(reranker.weights) > 0, len(held.decisions.params) > 0
    done, work = 0, 0
    cursor[STATUS] = ENOUGH
    while done < len(ranks) and work < SLICE_WORK:
        at = cursor[AT]
        own = shape_at(data, size, at)
        shape, source = own, data
        if own.dense_at >= 0 and starts_reranker(live) and (own.details_at < 0 or cursor[REGISTERED] == at):
            cursor[STATUS] = FIRST_VECTOR
            break
        if own.dense_at >= 0 and cursor[PREPARED] != at:
            shape, source = with_codes(live, scratch, data, own, at)
        n_classes = live.labels.state[N_IDS] + own.n_labels
        has_dense = reranks and own.dense_at >= 0 and np.int64(load_u32(data, own.dense_at)) == live.control[DIMENSION]
        lacks_room = len(reranker.ranks) < own.n_labels or len(reranker.counts) < n_classes
        if shape.n_features < 0 or (reranks and lacks_room):
            cursor[STATUS] = NAMES_FULL
            break
        is_ready = is_usable(reranker, live.control[DIMENSION], data, own.dense_at)
        if has_dense and not (is_ready and has_rows(reranker, own.n_true)):
            cursor[STATUS] = NAMES_FULL
            break
        given = reranker.ranks[: own.n_labels if reranks else 0]
        if cursor[PREPARED] != at and own.details_at < 0:
            given[:] = 0
            audited = decides and is_audited(data, at, own.label_lengths_at - 4, held.decisions.params[AUDIT])
            cursor[ANSWERED] = -1
            if has_dense:
                cursor[ANSWERED] = rerank(held, data, own.dense_at, source, shape, given, audited)
            elif decides:
                judge_by_index(held, source, shape, audited)
            cursor[PREPARED] = at
        own_ranks, own_updated = ranks[done : done + 1], updated[done : done + 1]
        if len(held.calibration.weights) > 0 and not (has_dense or decides):
            apply_ranked(buffer, cursor, held, own_ranks, own_updated, given, scratch.best)
        else:
            apply_ranked(buffer, cursor, held, own_ranks, own_updated, given, scratch.first)
        if cursor[DONE] == 0:
            break
        if has_dense:
            for j in range(own.n_true):
                add_vector(reranker, data, own.dense_at, scratch.class_ids[j])
        done += 1
        work += (own.n_features + WINNERS) * max(own.n_labels, 1)
    cursor[DONE] = done


@inner
def judge_by_index(held, data, shape, audited):
    """Rank a record by the index alone, decide it, and let the calibration learn from it."""
    live = held.live
    ids, values = np.empty(shape.n_features, np.int32), np.empty(shape.n_features, np.float32)
    class_ids = np.empty(shape.n_labels, np.int32)
    find_all(live, data, shape, ids, values, class_ids)
    best_ids, scores = np.full(INDEX_CANDIDATES, -1, np.int32), np.zeros(INDEX_CANDIDATES, np.float64)
    n = rank_classes(live.postings, live.params, ids, values, np.empty(0, np.uint8), best_ids, scores)
    judge_ranking(held, audited, best_ids, scores, n, scores[0], class_ids, shape)


@inner
def judge_ranking(held, audited, ids, scores, n, plain, class_ids, shape):
    """Count the decision on an answer of ``n`` classes, if it is known what is true, and calibrate with it."""
    complete = is_complete(shape)
    if len(held.decisions.params) > 0 and complete:
        judge(held.decisions, held.calibration, audited, ids, scores, n, plain, class_ids, shape.n_true)
    if len(held.calibration.weights) > 0:
        best = Best(ids[:N_BEST], scores[:N_BEST])
        calibrate(held, best, class_ids, shape.n_true, shape.n_rejected, complete)


@inner
def rerank(held, vector, dense_at, data, shape, ranks, audited):
    """Count the ranks of a record's true labels, write them, and let the re-ranker and the calibration learn from it.

    Decide it, if the model does. Returns the class that is ranked first, -1 if the order of the index is used.

    Parameters
    ----------
    vector, dense_at
        Pointer to the record as it was sent, and the byte at which its dense part begins.
    data, shape
        Pointer to the record with codes, and its shape.
    ranks : int32 array, shape (n_labels,)
        Zeros. Written for true labels that are candidates, if the order of the re-ranker is used.
    """
    live, reranker, every = held.live, held.reranker, np.empty(0, np.uint8)
    ids, values = np.empty(shape.n_features, np.int32), np.empty(shape.n_features, np.float32)
    class_ids = np.empty(shape.n_labels, np.int32)
    find_all(live, data, shape, ids, values, class_ids)
    best_ids, scores = np.empty(INDEX_CANDIDATES, np.int32), np.empty(INDEX_CANDIDATES, np.float64)
    n_ranked = rank_classes(live.postings, live.params, ids, values, every, best_ids, scores)
    found, n_classes = new_candidates(), live.labels.state[N_IDS]
    n, n_index = find_candidates(
        reranker, n_classes, vector, dense_at, every, best_ids[:n_ranked], scores[:n_ranked], found
    )
    if n > 0:
        put_softmax(found, n)
    if len(held.calibration.weights) > 0:
        k = INDEX_CANDIDATES if len(held.decisions.params) > 0 else N_BEST
        out_ids, out_scores, shares = np.full(k, -1, np.int32), np.zeros(k), np.empty(k)
        n_out = write_answer(reranker, found, n, n_index, best_ids[:n_ranked], scores, out_ids, out_scores, shares)
        plain = scores[0] if n_ranked > 0 else 0.0
        judge_ranking(held, audited, out_ids, out_scores, n_out, plain, class_ids, shape)
    if n == 0 or shape.n_true == 0:
        return -1
    trusted, true = is_trusted(reranker.guard), np.zeros(n, np.bool_)
    best_of_index, best = 0, 0
    for i in range(n):
        place = np.int64(found.order[i])
        for j in range(shape.n_true):
            if found.class_ids[place] == class_ids[j]:
                true[place] = True
                ranks[j] = i + 1 if trusted else 0
                best = i + 1 if best == 0 else best
                if place < n_index and (best_of_index == 0 or place + 1 < best_of_index):
                    best_of_index = place + 1
    first = np.int64(found.class_ids[np.int64(found.order[0])]) if trusted else -1
    if not shape.partial:
        count_answer(reranker.guard, best_of_index, best)
        take_step(reranker, found, n, true)
    return first

"""Decisions: whether the first labels of an instance may be applied without a person, and how this is learned.

An instance gets **none** if the index's best score is below a bound, else **answer** if a label's probability reaches
the threshold, else **defer**. It is **audited** if SipHash of its vector is below a share: ``/classify`` and the apply
loop of every replica find the same without communication.

Before an instance is learned, it is ranked as ``/classify`` does, and decided. It **counts** unless it was answered and
is not audited: what applications send back of those is no sample. An audited answer has the weight 1 / audit, anything
else 1. With k = 1 - 1 / ``REMEMBERED`` for each that counts:

- **Outcomes.** For its first label (for its best ``N_BEST``, once instances have several labels) in the bin of the
  probability's logit: n <- k n + 1, right <- k right + (1 if true), traffic <- k traffic + weight. Other bins: times k.
- **Scores.** Histograms of the best score: one of known instances (with weights), one of examples of none, which have
  no label, or only labels that were new. They forget faster (``KNOWN_REMEMBERED``), as scores rise at first.
- **Sets.** Of what was deferred: theta <- theta + 2 max(1 / sqrt(t), .02) (miss - (1 - coverage)). A set has the labels
  with ln(.02 + s_1) - ln(.02 + s) <= theta (adaptive conformal inference: Gibbs and Candes 2021; Angelopoulos et al.
  2022).

**Threshold.** For a bin b, with sums over it and all bins above, W = sum traffic, A = sum traffic right/n / W, and
m = W^2 / sum traffic^2 / n, divided by the mean number of labels (a stratified sample is worth m labels, and those of
one instance are right or wrong together). The threshold is the lowest b at which m is at least ``LEAST_EVENTS`` and
Wilson's lower bound of A, for ``DEVIATIONS`` standard deviations, reaches the target.

**Bound.** The score below which a share of the known instances lies. With ``LEAST_EXAMPLES`` examples of none it is the
bound with the greatest difference between their share below it and that of the known ones, of which at most twice as
many may lie below it.
"""

import numpy as np

from abound_core.instances.siphash_kernels import siphash13
from abound_core.model.calibration_kernels import OFFSET, clip_score, estimate
from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.exp_log import logarithm
from abound_core.numba.top_k import N_BEST

DEFER, ANSWER, NONE = range(3)

AGREEMENT, AUDIT, NONE_SHARE, COVERAGE = range(4)  # places in ``params``

N, RIGHT, TRAFFIC = range(3)  # columns of ``outcomes``

KNOWN, EXAMPLES = range(2)  # rows of ``scores``

THETA, DEFERRED, HELD, REACHED, TRUE_LABELS = range(5)
"""Places in ``sets``: theta; instances with a set; those of which it held a true label, and those of which the best
``MOST_CANDIDATES`` labels did, both with k; and the mean number of labels beyond one, with k = 1 - 1 / 200.
"""

LABELS, RIGHT_LABELS = 3, 4
"""Places in ``totals`` after the instances that counted by decision: labels of audited answers, and right ones."""

N_PARAMS, N_SETS, N_TOTALS = 4, 5, 5
N_BINS, LOWEST_LOGIT, BINS_PER_LOGIT = 50, -4.0, 5.0
N_SCORES, LOWEST_LOG, BINS_PER_LOG = 128, -4.0, 24.0
NEWEST = 1000
REMEMBERED = 2000.0
KNOWN_REMEMBERED, EXAMPLES_REMEMBERED = 400.0, 1000.0
DEVIATIONS = 1.0
LEAST_EVENTS, LEAST_KNOWN, LEAST_EXAMPLES = 30.0, 100.0, 20.0
MOST_CANDIDATES, MOST_THETA = 50, 20.0

_KEY = np.uint64(0x61756469742E2E2E), np.uint64(0x2E2E61626F756E64)
_PER_HASH = 1.0 / 2.0**53
_SHIFT = np.uint64(11)


@inner
def is_audited(data, at, end, share):
    """Return whether the vector in these bytes belongs to the audited share."""
    return np.float64(siphash13(_KEY[0], _KEY[1], data, at, end - at) >> _SHIFT) * _PER_HASH < share


@inlined
def bin_of(probability):
    p = min(max(probability, 1e-6), 1.0 - 1e-6)
    place = (logarithm(p / (1.0 - p)) - LOWEST_LOGIT) * BINS_PER_LOGIT
    return np.int64(min(max(place, 0.0), N_BINS - 1.0))


@inlined
def score_bin(score):
    place = (logarithm(OFFSET + clip_score(score)) - LOWEST_LOG) * BINS_PER_LOG
    return np.int64(min(max(place, 0.0), N_SCORES - 1.0))


@inlined
def lower_bound(share, n):
    """Return Wilson's lower confidence bound of a share that ``n`` instances had."""
    square = DEVIATIONS * DEVIATIONS / n
    spread = DEVIATIONS * np.sqrt(share * (1.0 - share) / n + 0.25 * square / n)
    return (share + 0.5 * square - spread) / (1.0 + square)


@kernel
def put_curve(outcomes, n_labels, target, curve):
    """Write what each bin as the threshold would answer; return the lowest that meets the target, else ``N_BINS``.

    ``n_labels`` is the mean number of labels of an instance. ``curve``, float64, shape (N_BINS, 3), has traffic,
    agreement and its lower bound, 0 without evidence.
    """
    threshold, traffic, right, squares = N_BINS, 0.0, 0.0, 0.0
    for b in range(N_BINS - 1, -1, -1):
        n, weight = outcomes[b, N], outcomes[b, TRAFFIC]
        if n > 0.0:
            traffic += weight
            right += weight * (outcomes[b, RIGHT] / n)
            squares += weight * weight / n
        curve[b, 0], curve[b, 1], curve[b, 2] = traffic, 0.0, 0.0
        if squares > 0.0:
            worth, curve[b, 1] = traffic * traffic / squares / n_labels, min(right / traffic, 1.0)
            curve[b, 2] = lower_bound(curve[b, 1], worth) if worth >= LEAST_EVENTS else 0.0
            threshold = b if curve[b, 2] >= target else threshold
    return threshold


@kernel
def find_bound(scores, share):
    """Return the bin of ``scores`` below which an instance gets none."""
    known, examples = 0.0, 0.0
    for b in range(N_SCORES):
        known += scores[KNOWN, b]
        examples += scores[EXAMPLES, b]
    if known < LEAST_KNOWN or share == 0.0:
        return 0
    has_examples = examples >= LEAST_EXAMPLES
    most = 2.0 * share if has_examples else share
    below, caught, bound, best = 0.0, 0.0, 0, 0.0
    for b in range(1, N_SCORES):
        below += scores[KNOWN, b - 1] / known
        if below > most:
            break
        caught += scores[EXAMPLES, b - 1] / examples if has_examples else 0.0
        if not has_examples:
            bound = b
        elif caught - below > best:
            bound, best = b, caught - below
    return bound


@inner
def decide(decisions, plain, estimates, n, target, applied):
    """Return the decision on an instance. ``applied`` (bool, shape (N_BEST,)) is written: the labels to apply.

    ``plain`` is the index's best score, ``estimates`` the probabilities of the best ``n`` labels.
    """
    threshold = put_curve(decisions.outcomes, 1.0 + decisions.sets[TRUE_LABELS], target, np.empty((N_BINS, 3)))
    decision, judged = DEFER, n_judged(decisions, n)
    for i in range(N_BEST):
        applied[i] = i < judged and bin_of(estimates[i]) >= threshold
        decision = ANSWER if applied[i] else decision
    return NONE if score_bin(plain) < find_bound(decisions.scores, decisions.params[NONE_SHARE]) else decision


@inlined
def leave_out(retired, ids, scores):
    """Leave retired classes out of a ranking, in place; return how many are left."""
    kept = 0
    for i in range(len(ids)):
        if ids[i] >= len(retired) or retired[ids[i]] == 0:
            ids[kept], scores[kept] = ids[i], scores[i]
            kept += 1
    return kept


@inlined
def n_judged(decisions, n):
    """Return how many of the best labels can be applied: one, or more once instances have several labels."""
    return min(n, N_BEST if decisions.sets[TRUE_LABELS] > 0.01 else 1)


@inlined
def lag(scores, at):
    return logarithm(OFFSET + clip_score(scores[0])) - logarithm(OFFSET + clip_score(scores[at]))


@kernel
def decide_answer(decisions, vector, estimates, scores, target, applied):
    """Return the decision on a ranked instance, whether it is audited, and the size of the set of candidates.

    ``plain`` of the decisions must be the index's best score. ``applied`` is written (``decide``).
    """
    n, n_candidates = len(scores), 0
    decision = decide(decisions, decisions.plain[0], estimates, n, target, applied)
    while n_candidates < min(n, MOST_CANDIDATES) and lag(scores, n_candidates) <= decisions.sets[THETA]:
        n_candidates += 1
    return decision, is_audited(vector, 0, len(vector), decisions.params[AUDIT]), n_candidates


@inner
def judge(decisions, calibration, audited, ids, scores, n, plain, class_ids, n_true):
    """Decide an instance that is about to be learned, and count it.

    Parameters
    ----------
    calibration : CalibrationArrays
    audited : bool
    ids, scores, n
        The best ``n`` classes. Those that are retired are left out of the answer.
    plain : float
        The index's best score.
    class_ids : int32 array
        The ``n_true`` true classes, -1 for new ones. No true class: none fits.
    """
    params, sets, outcomes, totals = decisions.params, decisions.sets, decisions.outcomes, decisions.totals
    estimates, applied, true = np.zeros(N_BEST), np.zeros(N_BEST, np.bool_), np.zeros(N_BEST, np.bool_)
    best_ids, best_scores = ids[: min(n, 2)], scores[: min(n, 2)]
    ids, scores = ids[:n].copy(), scores[:n].copy()
    n = leave_out(decisions.retired, ids, scores)
    n_best = min(n, N_BEST)
    estimate(calibration, ids[:n_best], scores[:n_best], best_ids, best_scores, estimates)
    decision = decide(decisions, plain, estimates, n, params[AGREEMENT], applied)
    if decision == ANSWER and not audited:
        return
    weight = 1.0 / params[AUDIT] if decision == ANSWER else 1.0
    is_known, first_true = False, MOST_CANDIDATES
    for j in range(n_true):
        is_known |= class_ids[j] >= 0
        for i in range(n):
            if ids[i] == class_ids[j]:
                first_true = min(first_true, i)
                if i < N_BEST:
                    true[i] = True
    keep, n_applied, n_right = 1.0 - 1.0 / REMEMBERED, 0, 0
    if decision != NONE:
        for b in range(N_BINS):
            for column in range(3):
                outcomes[b, column] *= keep
        for i in range(n_judged(decisions, n)):
            b = bin_of(estimates[i])
            outcomes[b, N] += 1.0
            outcomes[b, RIGHT] += 1.0 if true[i] else 0.0
            outcomes[b, TRAFFIC] += weight
            n_applied += np.int64(decision == ANSWER and applied[i])
            n_right += np.int64(decision == ANSWER and applied[i] and true[i])
    row, place = KNOWN if is_known else EXAMPLES, score_bin(plain)
    for b in range(N_SCORES):
        decisions.scores[KNOWN, b] *= 1.0 - 1.0 / KNOWN_REMEMBERED
        decisions.scores[EXAMPLES, b] *= 1.0 - 1.0 / EXAMPLES_REMEMBERED
    decisions.scores[row, place] += weight if is_known else 1.0
    if is_known and decision == DEFER:
        sets[DEFERRED] = keep * sets[DEFERRED] + 1.0
        held = first_true < n and lag(scores, first_true) <= sets[THETA]
        sets[HELD] = keep * sets[HELD] + (1.0 if held else 0.0)
        sets[REACHED] = keep * sets[REACHED] + (1.0 if first_true < n else 0.0)
        step = 2.0 * max(1.0 / np.sqrt(sets[DEFERRED]), 0.02)
        sets[THETA] += step * ((0.0 if held else 1.0) - (1.0 - params[COVERAGE]))
        sets[THETA] = min(max(sets[THETA], 0.0), MOST_THETA)
    sets[TRUE_LABELS] += (max(n_true - 1.0, 0.0) - sets[TRUE_LABELS]) / 200.0
    decisions.newest[(totals[DEFER] + totals[ANSWER] + totals[NONE]) % NEWEST] = (
        decision | n_applied << 2 | n_right << 5
    )
    totals[decision] += 1
    totals[LABELS] += n_applied
    totals[RIGHT_LABELS] += n_right

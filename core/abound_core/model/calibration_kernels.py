"""Probabilities of scores: a logistic model of five terms and a constant, learned by Newton steps with forgetting.

An instance is ranked as it is learned, after its features were counted; with a vector, in a model that re-ranks, it is
ranked as ``/classify`` does before it is learned. Each of its best ``N_BEST`` labels with a score above 0 gives a
**pair**: the terms of the score, and whether the label is true. Labels of which that is not known give none. The
estimates of all pairs are computed and counted first. Then the model takes one step
for all of them. With p their estimates and x their terms:

    H <- k H + (1 - k) r I + sum p (1 - p) x x',    w <- w + H^-1 sum (y - p) x,    k = 1 - pairs / ``REMEMBERED``

p (1 - p) in H counts as at least ``LEAST_VARIANCE``. ``r`` (``RIDGE``) is the initial diagonal of H, and its lower
bound without new pairs, so that no step is too long: no pivot of H is less. Sums have a fixed order, and no
mathematical library computes a logarithm or exponential: every replica has the same bits.

This is recursive least squares with forgetting, for the logistic loss. Calibration by logistic regression: Platt
(1999).

**Answers** are more careful than the estimates that are counted, as long as there are few events. Of the newest pairs
with an estimate in a tenth of 0..1, let T be the number of true ones and E the sum of their estimates. In the middle of
a tenth the answer is the estimate times min(1, (T + 0.1) / (E + ``DOUBT``)), but at least the answer in the middle of
the one before; in between it is linear. A probability does not fall where the score and its lead on the second rise
together, for scores up to 1: in an answer the weight of ``log`` counts as at least 0, and that of the score is raised
if it must be.

**Suspicious** is an event if its label has a low probability before it is learned, and another label a high one: their
difference is at least ``LEAST_SUSPICION``. Of several labels the one that is ranked last counts. A label that was
learned less than ``LEAST_LEARNED`` times before is new rather than wrong. The ``MOST_SUSPECTS`` most suspicious of the
newest ``SUSPECTED`` events are kept. A new one takes the place of one that is too old, or of the least suspicious one.
"""

import numpy as np

from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.exp_log import exponential, logarithm
from abound_core.numba.intrinsics import floats_on_stack, pointer
from abound_core.numba.top_k import N_BEST

N_TERMS = 6
REMEMBERED = 10_000.0
RIDGE = 1.0
LEAST_VARIANCE = 0.02
DOUBT = 2.5
HIGHEST_SCORE = 1e6
OFFSET = 0.02
MOST_LOGIT = 30.0
MOST_LOGIT_WEIGHT = 2.0**30
"""Range of a weight: with terms up to ``HIGHEST_SCORE`` no sum overflows. Learned ones stay far below."""

MOST_CURVATURE = 2.0**60
"""Range of a number of H, which stays below .25 ``HIGHEST_SCORE`` ^2 ``REMEMBERED``, about 2^51."""

MOST_SOLVED = 6
MOST_IN_MATRIX = MOST_SOLVED * MOST_SOLVED

ALL, BEFORE, NOW = range(3)
"""Rows of the bins: all pairs; the last full period of at least ``STRETCH`` pairs; the pairs since then."""

N_ROWS = 3
N_BINS = 10
N_KNOTS = N_BINS + 2
PAIRS, TRUE, ESTIMATES, ERRORS = range(4)
"""Columns: pairs, true ones, the sum of the estimates, the sum of squared errors."""

N_COLUMNS = 4
STRETCH = 10_000.0

NUMBER, MILLISECONDS, SEQUENCE, POSITION, GIVEN, FIRST = range(6)
"""Columns of the suspicious events: the number of the event from 1 (0: the row is free), its offset, and class ids."""

MOST_SUSPECTS, SUSPECTED, LEAST_SUSPICION, LEAST_LEARNED = 1000, 100_000, 0.5, 5


@inlined
def clip_score(score):
    return min(score, HIGHEST_SCORE) if score > 0.0 else 0.0


@inlined
def put_terms(score, best, second, is_best, log, terms):
    """Write the terms of a label. All scores are clipped, ``log`` is that of 0.02 + score.

    The terms are 1, the score, the lead on the second (for the best), the distance from the best (for the others),
    whether it is the best, and ``log``.
    """
    terms[0] = 1.0
    terms[1] = score
    terms[2] = score - second if is_best else 0.0
    terms[3] = 0.0 if is_best else best - score
    terms[4] = 1.0 if is_best else 0.0
    terms[5] = log


@inlined
def estimate_all(weights, scores, n, best, second, best_at, logs, estimates):
    """Write the logarithm of 0.02 + score and the probability of each of ``n`` labels.

    Scores are clipped; ``best_at`` is the place of the best label, -1 if it is not among them. No loop has a branch, so
    that several labels are computed at once.
    """
    terms = floats_on_stack(N_TERMS)
    for i in range(n):
        logs[i] = logarithm(OFFSET + scores[i])
    for i in range(n):
        put_terms(scores[i], best, second, i == best_at, logs[i], terms)
        logit = 0.0
        for term in range(N_TERMS):
            logit += weights[term] * terms[term]
        estimates[i] = max(min(logit, MOST_LOGIT), -MOST_LOGIT)
    for i in range(n):
        estimates[i] = 1.0 / (1.0 + exponential(-estimates[i]))


@inlined
def put_knots(bins, knots):
    """Write the answers in the middle of each tenth, after that for 0 and before that for 1 (``N_KNOTS``)."""
    knots[0], share = 0.0, 0.0
    for b in range(N_BINS):
        n_true = bins[BEFORE, b, TRUE] + bins[NOW, b, TRUE] + 0.1  # so that nothing is impossible
        share = min(n_true / (bins[BEFORE, b, ESTIMATES] + bins[NOW, b, ESTIMATES] + DOUBT), 1.0)
        knots[b + 1] = max(knots[b], (b + 0.5) / N_BINS * share)
    knots[N_BINS + 1] = max(knots[N_BINS], share)


@inlined
def careful(knots, chance):
    place = chance * N_BINS + 0.5
    b = np.int64(place)
    part = 2.0 * place - 1.0 if b == 0 else 2.0 * (place - N_BINS) if b == N_BINS else place - b
    return knots[b] + (knots[b + 1] - knots[b]) * part


@inlined
def put_answer_weights(calibration, weights):
    for term in range(N_TERMS):
        weights[term] = calibration.weights[term]
    weights[5] = max(weights[5], 0.0)
    weights[1] = max(weights[1], -weights[2] - weights[5] / (1.0 + OFFSET))


@kernel
def estimate(calibration, class_ids, scores, best_ids, best_scores, estimates):
    """Write the probabilities of some labels of a ranking into ``estimates`` (float64), as answers have them.

    ``best_ids`` and ``best_scores``, shape (<= 2,), are the best two of all classes for the instance.
    """
    n, best_at = len(class_ids), -1
    clipped, logs = np.empty(n, np.float64), np.empty(n, np.float64)
    for i in range(n):
        clipped[i] = clip_score(scores[i])
        best_at = i if class_ids[i] == best_ids[0] else best_at
    best = clip_score(best_scores[0]) if len(best_scores) > 0 else 0.0
    second = clip_score(best_scores[1]) if len(best_scores) > 1 else 0.0
    weights, knots = floats_on_stack(N_TERMS), floats_on_stack(N_KNOTS)
    put_answer_weights(calibration, weights)
    estimate_all(weights, clipped, n, best, second, best_at, logs, estimates)
    put_knots(calibration.bins, knots)
    for i in range(n):
        estimates[i] = careful(knots, estimates[i])


@inlined
def solve(curvature, gradient, step, n, ridge):
    """Solve H step = gradient by Cholesky without roots (L D L'), for H with its lower triangle in ``curvature``.

    A pivot below ``ridge`` is raised to it; in exact arithmetic there is none. ``n`` is at most ``MOST_SOLVED``.
    """
    lower, pivots = floats_on_stack(MOST_IN_MATRIX), floats_on_stack(MOST_SOLVED)
    for i in range(n):
        for j in range(i + 1):
            total = curvature[i * n + j]
            for k in range(j):
                total -= lower[i * n + k] * pivots[k] * lower[j * n + k]
            if i == j:
                pivots[i] = total if total > ridge else ridge
            else:
                lower[i * n + j] = total / pivots[j]
        total = gradient[i]
        for k in range(i):
            total -= lower[i * n + k] * step[k]
        step[i] = total
    for i in range(n - 1, -1, -1):
        total = step[i] / pivots[i]
        for k in range(i + 1, n):
            total -= lower[k * n + i] * step[k]
        step[i] = total


@inlined
def add_step(weights, step, n):
    """Add a step to ``n`` weights, unless it takes one of them out of their range, or is not finite.

    No instances lead to such a step, but a state of foreign origin may.
    """
    for i in range(n):
        if not abs(weights[i] + step[i]) <= MOST_LOGIT_WEIGHT:
            return
    for i in range(n):
        weights[i] += step[i]


@inner
def count_pair(bins, estimate, is_true):
    """Count a pair in the rows ``ALL`` and ``NOW``."""
    at = np.int64(min(estimate * N_BINS, N_BINS - 1.0)) if estimate > 0.0 else 0  # also for NaN
    error = (1.0 if is_true else 0.0) - estimate
    for row in (ALL, NOW):
        bins[row, at, PAIRS] += 1.0
        bins[row, at, TRUE] += 1.0 if is_true else 0.0
        bins[row, at, ESTIMATES] += estimate
        bins[row, at, ERRORS] += error * error


@inner
def start_period(bins):
    """Move the row ``NOW`` to ``BEFORE`` once it is full."""
    n_pairs = 0.0
    for at in range(N_BINS):
        n_pairs += bins[NOW, at, PAIRS]
    if n_pairs >= STRETCH:
        for at in range(N_BINS):
            for column in range(N_COLUMNS):
                bins[BEFORE, at, column] = bins[NOW, at, column]
                bins[NOW, at, column] = 0.0


@kernel
def learn_pairs(state, scores, true, known):
    """Estimate the probabilities of an instance's best labels, count them, and learn from them, in place.

    ``scores``, best first, ``true`` and ``known`` have shape (N_BEST,). Labels from the first one on that is not above
    0 are left out.
    """
    weights, curvature, bins = pointer(state.weights), pointer(state.curvature), state.bins
    n_scored, n_pairs = 0, 0
    while n_scored < N_BEST and scores[n_scored] > 0.0:
        n_pairs += known[n_scored]
        n_scored += 1
    if n_pairs == 0:
        return
    clipped, logs, estimates = floats_on_stack(N_BEST), floats_on_stack(N_BEST), floats_on_stack(N_BEST)
    for at in range(N_BEST):
        clipped[at] = clip_score(scores[at])
    best, second = clipped[0], clipped[1]
    estimate_all(weights, clipped, N_BEST, best, second, 0, logs, estimates)
    keep = 1.0 - n_pairs / REMEMBERED
    gradient, terms, step = floats_on_stack(N_TERMS), floats_on_stack(N_TERMS), floats_on_stack(N_TERMS)
    for i in range(N_TERMS):
        gradient[i] = 0.0
        for j in range(i + 1):
            curvature[i * N_TERMS + j] *= keep
        curvature[i * N_TERMS + i] += (1.0 - keep) * RIDGE
    for at in range(n_scored):
        if not known[at]:
            continue
        put_terms(clipped[at], best, second, at == 0, logs[at], terms)
        chance = estimates[at]
        count_pair(bins, chance, true[at])
        error = (1.0 if true[at] else 0.0) - chance
        variance = max(chance * (1.0 - chance), LEAST_VARIANCE)
        for i in range(N_TERMS):
            gradient[i] += error * terms[i]
            for j in range(i + 1):
                curvature[i * N_TERMS + j] += variance * terms[i] * terms[j]
    start_period(bins)
    solve(curvature, gradient, step, N_TERMS, RIDGE)
    add_step(weights, step, N_TERMS)


@inner
def note_suspect(calibration, number, best, label_counts, class_ids, n_true, true):
    """Keep an event, before the calibration learns from it, if it is suspicious.

    ``number`` is that of the event. ``best`` has the best classes with a score above 0, and ``true``, shape (N_BEST,),
    says which are true; ``class_ids`` begin with the true ones. A label that is not among the best has probability 0.
    """
    first = 0
    while first < N_BEST and true[first]:
        first += 1
    if first == N_BEST or best.class_ids[first] < 0:
        return
    given, place = -1, first
    for j in range(n_true):
        at = 0
        while at < N_BEST and best.class_ids[at] != class_ids[j]:
            at += 1
        if at > place and class_ids[j] >= 0 and label_counts[class_ids[j]] >= LEAST_LEARNED:
            given, place = class_ids[j], at
    if given < 0:
        return
    # Most end here: an answer is not above its estimate, and with a logit below 0 that is below LEAST_SUSPICION.
    weights, terms, logit = floats_on_stack(N_TERMS), floats_on_stack(N_TERMS), 0.0
    put_answer_weights(calibration, weights)
    score, top, second = clip_score(best.scores[first]), clip_score(best.scores[0]), clip_score(best.scores[1])
    put_terms(score, top, second, first == 0, logarithm(OFFSET + score), terms)
    for term in range(N_TERMS):
        logit += weights[term] * terms[term]
    if logit < 0.0:
        return
    ids, scores, chances = np.empty(N_BEST, np.int32), np.empty(N_BEST), np.empty(N_BEST)
    for i in range(N_BEST):
        ids[i], scores[i] = best.class_ids[i], best.scores[i]
    estimate(calibration, ids, scores, ids[:2], scores[:2], chances)
    chance = chances[place] if place < N_BEST else 0.0
    if chances[first] - chance < LEAST_SUSPICION:
        return
    events, kept = calibration.suspects, calibration.suspect_chances
    row, least = -1, chances[first] - chance
    for i in range(MOST_SUSPECTS):
        own = kept[i, 1] - kept[i, 0] if events[i, NUMBER] + SUSPECTED > number else 0.0
        if own < least:
            row, least = i, own
    if row >= 0:
        events[row, NUMBER], events[row, GIVEN], events[row, FIRST] = number, given, ids[first]
        for i in range(len(calibration.at)):
            events[row, MILLISECONDS + i] = calibration.at[i]
        kept[row, 0], kept[row, 1] = chance, chances[first]

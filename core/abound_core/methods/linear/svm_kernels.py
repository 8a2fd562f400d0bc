"""A linear support vector machine by dual coordinate descent (Hsieh et al., ICML 2008)."""

import numpy as np

from abound_core.methods.embeddings.skip_grams_kernels import next_below
from abound_core.numba.decorators import kernel


@kernel
def fit_svm(rows, positive, cost, tolerance, passes, weights, state):
    """Fit one class against the rest with squared hinge loss, in place; return the passes.

    Minimises |w|^2 / 2 + C sum of max(0, 1 - y_i w x_i)^2, where each x_i has one more feature, 1, for the bias. In the
    dual (algorithm 3), for one row after the other in a random order:

        G = y_i w x_i - 1 + a_i / 2C;   a_i <- max(0, a_i - G / (|x_i|^2 + 1 / 2C));   w <- w + (change of a_i) y_i x_i

    A row with a_i = 0 and a gradient G above all of the pass before is left out (shrinking) until the other rows have
    converged: the largest and the smallest gradient differ by ``tolerance`` at most.

    Parameters
    ----------
    rows : (int32 or int64, int32, float32), compressed rows of X
    positive : bool, shape (n,)
    cost : float
        C.
    weights : float64, shape (d + 1,)
        Zeros, written; the bias last.
    state : uint64, shape (1,)
        State of the generator of the orders; not 0.
    """
    starts, columns, values = rows
    n, bias = len(positive), len(weights) - 1
    diagonal = 0.5 / cost
    duals, curvatures = np.zeros(n), np.empty(n)
    for row in range(n):
        curvatures[row] = 1.0 + diagonal
        for at in range(starts[row], starts[row + 1]):
            curvatures[row] += np.float64(values[at]) ** 2
    order = np.arange(n)
    n_active, shrink_above = n, np.inf
    for turn in range(passes):
        highest, lowest = -np.inf, np.inf
        for place in range(n_active):
            other = place + next_below(state, n_active - place)
            order[place], order[other] = order[other], order[place]
        place = 0
        while place < n_active:
            row = order[place]
            sign = 1.0 if positive[row] else -1.0
            score = weights[bias]
            for at in range(starts[row], starts[row + 1]):
                score += weights[columns[at]] * values[at]
            gradient = sign * score - 1.0 + duals[row] * diagonal
            if duals[row] == 0.0 and gradient > 0.0:
                if gradient > shrink_above:
                    n_active -= 1
                    order[place], order[n_active] = order[n_active], order[place]
                    continue
                gradient = 0.0
            highest, lowest = max(highest, gradient), min(lowest, gradient)
            if gradient != 0.0:
                before = duals[row]
                duals[row] = max(before - gradient / curvatures[row], 0.0)
                step = sign * (duals[row] - before)
                weights[bias] += step
                for at in range(starts[row], starts[row + 1]):
                    weights[columns[at]] += step * values[at]
            place += 1
        if highest - lowest > tolerance:
            shrink_above = highest if highest > 0.0 else np.inf
        elif n_active == n:
            return turn + 1
        else:
            n_active, shrink_above = n, np.inf
    return passes

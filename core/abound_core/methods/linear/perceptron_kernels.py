"""A perceptron over sparse rows (Madani, Connor and Greiner, JMLR 2009, section 5)."""

import numpy as np

from abound_core.numba.decorators import kernel


@kernel
def learn_perceptron(rows, positive, order, weights, initial, patience, passes):
    """Learn one class against the rest, until ``patience`` passes in a row bring no fewer errors; return the passes.

    Parameters
    ----------
    rows : (int32 or int64, int32, float32), compressed rows of X
    positive : bool, shape (n,)
    order : int64, shape (n,)
        Order of the rows in every pass.
    weights : float64, shape (d,)
        Zeros, written. There is no bias: rows have L2 norm 1, so a bias would change more per update than the weights,
        and make the ranking of classes worse.
    initial : float64, shape (d,)
        Added to a weight at its first update; before that a weight is 0.
    """
    starts, columns, values = rows
    is_new = np.ones(len(weights), np.bool_)
    best, waited = len(order) + 1, 0
    for turn in range(passes):
        errors = 0
        for row in order:
            score = 0.0
            for at in range(starts[row], starts[row + 1]):
                score += weights[columns[at]] * values[at]
            if (score > 0.0) == positive[row]:
                continue
            errors += 1
            sign = 1.0 if positive[row] else -1.0
            for at in range(starts[row], starts[row + 1]):
                column = columns[at]
                weights[column] += sign * values[at] + (initial[column] if is_new[column] else 0.0)
                is_new[column] = False
        if errors < best:
            best, waited = errors, 0
        else:
            waited += 1
        if errors == 0 or waited >= patience:
            return turn + 1
    return passes

"""Rows of the shifted positive pointwise mutual information of label vectors."""

import numpy as np

from abound_core.numba.decorators import kernel


@kernel
def fill_rows(first, end, labels, carriers, log_sums, offset, ids_out, values_out, counts_out):
    """Compute rows ``first`` to ``end`` of max(log(M_ij T / (s_i s_j)) - log(shift), 0) for M = Y Y', without zeros.

    Parameters
    ----------
    labels, carriers : (int32 or int64, int32), compressed rows of Y and of Y'
    log_sums : float64, shape (n,)
        Logarithms of the row sums of M.
    offset : float
        log T - log shift, T the sum of M.
    ids_out, values_out : int32, float32, shape ((end - first) n,)
        Written, one row after the other without gaps.
    counts_out : int64, shape (end - first,)

    Returns
    -------
    n_written : int
    """
    starts, ids = labels
    carrier_starts, carrier_ids = carriers
    together = np.zeros(len(log_sums), np.int32)
    touched = np.empty(len(log_sums), np.int32)
    written = 0
    for row in range(first, end):
        n_touched = 0
        for at in range(starts[row], starts[row + 1]):
            label = ids[at]
            for place in range(carrier_starts[label], carrier_starts[label + 1]):
                other = carrier_ids[place]
                if together[other] == 0:
                    touched[n_touched] = other
                    n_touched += 1
                together[other] += 1
        before = written
        base = offset - log_sums[row]
        for place in range(n_touched):
            other = touched[place]
            value = np.log(np.float64(together[other])) + base - log_sums[other]
            together[other] = 0
            if value > 0.0:
                ids_out[written] = other
                values_out[written] = value
                written += 1
        counts_out[row - first] = written - before
    return written

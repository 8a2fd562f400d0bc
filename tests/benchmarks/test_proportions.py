"""FSU alone, against counting."""

import numpy as np

from benchmarks.reproduction.proportions import (
    deviation,
    distances,
)


def test_a_tenth_as_least_weight_is_worse_than_a_hundredth():
    """Figures 21 and 22."""
    means = [np.mean([deviation(0.1, 100, w, np.random.default_rng(seed)) for seed in range(20)]) for w in (0.01, 0.1)]
    assert means[0] < means[1]
    l1 = [np.mean([distances(w, np.random.default_rng(seed))[0] for seed in range(20)]) for w in (0.01, 0.1)]
    assert l1[0] < l1[1]

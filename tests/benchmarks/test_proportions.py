"""FSU alone, against counting."""

import numpy as np
import pytest

from benchmarks.reproduction.proportions import (
    deviation,
    distances,
    estimated_weights,
)


def test_without_a_least_weight_the_estimate_is_what_was_counted():
    stream = np.random.default_rng(0).choice(5, 300, p=[0.5, 0.3, 0.1, 0.06, 0.04]).astype(np.int32)
    np.testing.assert_allclose(estimated_weights(stream, 5, 0.0), np.bincount(stream, minlength=5) / 300, rtol=1e-6)


def test_a_class_below_the_least_weight_is_dropped_and_its_weight_leaks():
    """0 nine times, then 1 once with w_min 0.2: the weight of 1, a tenth, is dropped, and the total is still 10."""
    stream = np.array([0] * 9 + [1], np.int32)
    assert estimated_weights(stream, 2, 0.2).tolist() == pytest.approx([0.9, 0.0])


def test_a_tenth_as_least_weight_is_worse_than_a_hundredth():
    """Figures 21 and 22."""
    means = [np.mean([deviation(0.1, 100, w, np.random.default_rng(seed)) for seed in range(20)]) for w in (0.01, 0.1)]
    assert means[0] < means[1]
    l1 = [np.mean([distances(w, np.random.default_rng(seed))[0] for seed in range(20)]) for w in (0.01, 0.1)]
    assert l1[0] < l1[1]

"""Feature Focus as a batch method."""

import numpy as np
from scipy import sparse

from abound_core.methods import fitted, registry
from abound_core.methods.index.feature_focus import Model
from abound_core.methods.training.progress import no_progress
from tests.core.methods.toy import made


def test_who_ranks_leaves_nothing_in_the_index():
    """Several threads rank by one index, so what one of them sums up must be nowhere that another one sees it."""
    data = made(100, seed=0)
    model = fitted.fit("ff", data, registry.params_of("ff", {}), np.random.default_rng(0), no_progress).model
    assert isinstance(model, Model)
    before = model.rank(data.X, 3)
    model.index._scores[:] = 1e9  # as if another thread were in the middle of its sums
    model.index._touched[:] = 3
    after = model.rank(data.X, 3)
    np.testing.assert_array_equal(before.ids, after.ids)
    np.testing.assert_array_equal(before.scores, after.scores)
    assert np.all(model.index._scores == 1e9)
    assert len(model.rank(sparse.csr_matrix((0, data.X.shape[1]), dtype=np.float32), 3).ids) == 0

"""What a feature adds alone is what ranking it alone gives, by either update rule."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from abound_core.config import ModelConfig
from abound_core.index.index import Index
from abound_core.index.params import IndexParams
from abound_core.model.label_features import weights_to

N_FEATURES, N_CLASSES = 60, 9


def taught(**changes: Any) -> Index:
    index = Index(replace(IndexParams.of(ModelConfig()), **changes))
    rng = np.random.default_rng(5)
    for _ in range(300):
        ids = rng.choice(N_FEATURES, 6, replace=False).astype(np.int32)
        values = (rng.random(6, np.float32) + np.float32(0.1)).astype(np.float32)
        index.learn(ids, values / np.linalg.norm(values), np.array([rng.integers(N_CLASSES)], np.int32))
    return index


@pytest.mark.parametrize(
    "changes", [{}, {"d_max": 2}, {"update": "sls"}, {"update": "sls", "idf": True}], ids=lambda one: str(one)
)
def test_a_weight_is_the_score_of_the_feature_alone(changes):
    index = taught(**changes)
    alone = np.zeros((N_FEATURES, N_CLASSES))
    for feature in range(N_FEATURES):
        ranking = index.rank(np.array([feature], np.int32), np.ones(1, np.float32), N_CLASSES)
        alone[feature, ranking.class_ids] = ranking.scores
    assert np.count_nonzero(alone) > 50
    for class_id in range(N_CLASSES):
        found = [weights_to(index, class_id, first, min(first + 7, N_FEATURES)) for first in range(0, N_FEATURES, 7)]
        np.testing.assert_allclose(np.concatenate(found), alone[:, class_id], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("update", ["fsu", "sls"])
def test_what_was_never_learned_points_nowhere(update):
    index = taught(update=update)
    assert not weights_to(index, N_CLASSES + 5, 0, N_FEATURES).any()
    assert not weights_to(index, 0, index.n_features, index.n_features + 10).any()
    assert len(weights_to(index, 0, 3, 3)) == 0

"""The index's arrays have room for each other: every class that has a score has a place among the touched."""

import numpy as np

from core.config import ModelConfig
from core.index import Index
from core.index_params import IndexParams


def test_every_class_can_be_touched_at_once_however_the_arrays_grew():
    index = Index(IndexParams.of(ModelConfig()))
    for n_classes in range(1, 2000):
        # 20 classes a feature: all of them vote, so that an instance with all features touches every class.
        ids, values = np.array([(n_classes - 1) // 20], np.int32), np.ones(1, np.float32)
        index.learn(ids, values, np.array([n_classes - 1], np.int32))
        assert len(index.arrays.touched) > len(index.arrays.scores), n_classes
    everything = np.arange(100, dtype=np.int32)
    ranking = index.rank(everything, np.full(100, 0.1, np.float32), 5000)
    assert sorted(ranking.class_ids.tolist()) == list(range(1999))

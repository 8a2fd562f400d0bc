"""The memory of a model is bounded: no event takes more than was foretold and what its own contents need."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from abound_core.config import ModelConfig
from abound_core.index.layout_kernels import UNITS
from abound_core.index.learning_kernels import new_classes
from abound_core.instances.codes_kernels import WINNERS
from abound_core.instances.record import add_dense, add_details, pack_labels, pack_vector
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel

SMALLEST_STEPS = 64 * 1024
"""Arrays of a small model grow by more than an eighth: keys by 1,024, ids by 64 or a page."""

N_EMPTY = 50

CONFIGS: list[dict[str, Any]] = [
    {"update": "fsu", "calibrate": False},
    {"update": "fsu", "max_features": 300},
    {"update": "sls", "calibrate": False},
    {"update": "sls", "rows": False, "max_features": 300},
    {"update": "sls", "rerank": True},
    {"update": "sls", "rerank": False},
]


class Event:
    """A random event, and the bytes that its own contents may need."""

    def __init__(self, rng: np.random.Generator, n_words: int, n_labels: int, dimension: int, kind: str) -> None:
        words = np.unique(rng.integers(0, n_words, rng.choice([1, 5, 50, 1000], p=[0.2, 0.5, 0.27, 0.03])))
        labels = np.unique(rng.integers(0, n_labels, rng.choice([1, 3, 50], p=[0.8, 0.17, 0.03])))
        vector = pack_vector([b"%d%b" % (word, b"x" * (word % 40)) for word in words], np.full(len(words), 0.2, "f4"))
        if kind == "vector":
            vector = add_dense(vector, rng.integers(-99, 100, dimension - 1).astype(np.int8).tobytes() + b"\1", 0.1)
        if kind == "registered":
            labels = labels[:1]
        self.record = vector + pack_labels([f"label {label}" for label in labels], Limits())
        if kind == "registered":
            more = int(rng.integers(0, n_labels)), b"d" * int(rng.integers(0, 500))
            self.record = add_details(self.record, b'{"parent":"label %d","metadata":"%b"}' % more)
        self.n_features, self.n_labels = len(words) + WINNERS * (kind == "vector"), len(labels)
        self.dimension = dimension if kind == "vector" else 0

    def own_bytes(self, model: LiveModel) -> int:
        """Return the bytes for its names, a longer list for each of its features, its means and its receipt."""
        params = model.index.kernel_params
        classes = int(new_classes(params, np.uint64(self.n_labels)))
        most = max(int(params.d_max), int(params.slots)) + classes
        lists = 8 * self.n_features * 2 * int(UNITS[4 * most + 8 >= UNITS].max())
        names = 200 * (self.n_features + self.n_labels) + 2 * len(self.record)
        means = 6 * self.dimension * (2 * self.n_labels + 32) if self.dimension else 0
        return names + lists + means + 600 + SMALLEST_STEPS


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: "-".join(map(str, config.values())))
@pytest.mark.parametrize("seed", range(3))
def test_no_event_takes_more_than_was_foretold_and_its_own_contents_need(config, seed):
    rng = np.random.default_rng(seed)
    model = LiveModel(ModelConfig.from_dict(config), (1, 2))
    n_words, n_labels = [(100, 5), (20_000, 20_000), (500, 40)][seed]
    dimension = [256, 2048, 8][seed]
    shares = {"text": 0.7, "vector": 0.2, "registered": 0.1}
    word = pack_vector([b"w"], np.ones(1, "f4"))
    names = b"".join(word + pack_labels([f"label {at}"], Limits()) for at in range(n_labels))
    model.begin(names, n_labels, [Unit(n_labels)]).finish()
    for number in range(300):
        kind = "text" if number < 40 else str(rng.choice(list(shares), p=list(shares.values())))
        event = Event(rng, n_words, n_labels, dimension, kind)
        before, foretold, own = model.n_bytes, model.growth_bytes, event.own_bytes(model)
        model.begin(event.record, 1, [Unit(1, f"key {number}", b"body")]).finish()
        assert model.n_bytes - before <= foretold + own, (number, kind)


def test_an_empty_model_takes_about_what_it_counts():
    models = [LiveModel(ModelConfig(), (1, 2))]
    models[0].vectorizer.vectorize(b'{"f": 1}', None)
    tracemalloc.start()
    try:
        for _ in range(N_EMPTY):
            models.append(LiveModel(ModelConfig(), (1, 2)))
            models[-1].vectorizer.vectorize(b'{"f": 1}', None)
        taken = tracemalloc.get_traced_memory()[0] / N_EMPTY
    finally:
        tracemalloc.stop()
    assert 0.8 * models[0].n_bytes < taken < 1.2 * models[0].n_bytes

"""Load models with changed arrays, and use those that load: ``python -m tests.core.model.forging SEED N NAME ...``.

A process of its own, since a kernel that trusts a wrong number ends the process. Each change is printed before it is
tried, and at the end how many were refused and how many served.
"""

import json
import random
import sys
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from abound_core.array_spec import check_room
from abound_core.config import ModelConfig
from abound_core.errors import Corrupted
from abound_core.instances.record import add_dense, add_details, pack_labels, pack_vector
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.types import Offset

D = 8
EVENTS = 300
RANKINGS = 300

CONFIGS: dict[str, dict[str, Any]] = {
    "fsu": {"leak": False, "max_features": 60, "implicit": 0.1, "calibrate": False},
    "fsu calibrated": {"memory": 5.0},
    "sls": {"update": "sls", "rows": False, "rerank": False, "max_features": 60, "calibrate": False},
    "sls calibrated": {"update": "sls", "rows": False, "rerank": False},
    "rows": {"update": "sls", "rerank": False, "implicit": 0.1, "calibrate": False},
    "vectors reranked": {"update": "sls", "rows": False},
    "vectors deciding": {"update": "sls", "decide": {"agreement": 0.7, "audit": 0.5}},
}

NUMBERS = [1e308, -1e308, 1e38, -1e38, 1e30, -1.0, np.nan, np.inf, -np.inf, 0.0, 5e-324, 1e-45, 1.0]
NUMBERS += [sign * 2.0**power for power in (30, 53, 60, 64, 192) for sign in (1, -1)]
"""Numbers for floats; the last ones are the ends of ranges."""

WHOLE = [-1, 0, 1, 2, 3, 127, 128, 255, 511, 512, 2**15, 2**16 - 1, 2**19 - 1]
WHOLE += [2**24, 2**31 - 1, 2**31, 2**52, 2**53, 2**62, 2**63 - 1]


def instance(rng: random.Random, name: str) -> tuple[bytes, list[str]]:
    labels = [f"c{kind}" for kind in rng.sample(range(12), rng.randint(1, 4) if "rows" in name else 1)]
    words = sorted({f"{label}w{rng.randrange(9)}" for label in labels} | {f"n{rng.randrange(40)}" for _ in range(3)})
    values = np.array([rng.choice([0.3, 0.5, 1.0]) for _ in words], np.float32)
    vector = pack_vector([word.encode() for word in words], values)
    if "vectors" in name and rng.random() < 0.5:
        dense = [(ord(labels[0][-1]) * (i + 3)) % 90 - 45 + rng.randrange(-20, 20) for i in range(D)]
        vector = add_dense(vector, np.array(dense, np.int8).tobytes(), 0.25)
    return vector, labels


def records(rng: random.Random, name: str, n: int) -> list[bytes]:
    made = []
    for i in range(n):
        vector, labels = instance(rng, name)
        feedback: dict[str, Any] = {}
        if rng.random() < 0.1:
            feedback = {"rejected": [f"c{rng.randrange(12, 15)}"], "ignored": ["c15"], "weight": rng.choice([0.5, 3.0])}
        record = vector + pack_labels(labels, Limits(), **feedback)
        if i % 25 == 0:
            named = pack_vector([b"name"], np.ones(1, np.float32)) + pack_labels(labels[:1], Limits())
            record = add_details(named, b'{"parent":"c%d"}' % (i // 25))
        made.append(record)
    return made


def changed(rng: random.Random, array: npt.NDArray[Any]) -> tuple[str, npt.NDArray[Any]]:
    """The array with some of its numbers replaced, and how."""
    flat = array.reshape(-1).copy()
    kind, info = array.dtype.kind, np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
    numbers = NUMBERS if info is None else [n for n in WHOLE if info.min <= n <= info.max]
    ways = ["one", "one", "few", "all", "bits", "copied", "scaled"]
    how = rng.choice(ways)
    at = [rng.randrange(flat.size) for _ in range({"one": 1, "bits": 1, "copied": 1, "scaled": 1}.get(how, 4))]
    value = rng.choice(numbers)
    with np.errstate(all="ignore"):
        if how in ("one", "few"):
            flat[at] = value
        elif how == "all":
            flat[:] = value
        elif how == "bits":
            flat.view(np.uint8)[rng.randrange(flat.nbytes)] ^= 1 << rng.randrange(8)
        elif how == "copied":
            flat[at] = flat[rng.randrange(flat.size)]
        else:
            flat[at] = (flat[at].astype(np.float64) * rng.choice([-1, 2, 1e3, 1e9, 1e-9])).astype(array.dtype)
    return f"{how} {kind} {value!r} at {at}", flat.reshape(array.shape)


class Forgery:
    """A model of one configuration that has learned, and the events and questions for its forged copies."""

    def __init__(self, name: str) -> None:
        rng = random.Random(name)
        self.config = ModelConfig.from_dict(CONFIGS[name])
        model = LiveModel(self.config, (3, 4))
        learned = b"".join(records(rng, name, 400))
        model.begin(learned, 400, [Unit(400, key="a", body=b"b")], Offset(1, 1, 0)).finish()
        self.meta, self.arrays = model.meta(), model.to_arrays()
        self.events = b"".join(records(rng, name, EVENTS))
        self.questions = [instance(rng, name)[0] for _ in range(RANKINGS)]

    def try_one(self, arrays: dict[str, npt.NDArray[Any]]) -> bool:
        """Whether a model with these arrays loads. Then it must learn, rank and load from its own arrays."""
        try:
            check_room(arrays)
            model = LiveModel.from_arrays(self.meta, arrays, (5, 6))
        except Corrupted:
            return False
        model.digest()
        model.begin(self.events, EVENTS, [Unit(EVENTS)], Offset(2, 1, 0)).finish()
        for vector in self.questions:
            if model.decisions.on:
                model.decide(vector, 5)
            ranking = model.rank_estimated(vector, 5) if model.calibration.on else model.rank(vector, 5)
            assert np.isfinite(ranking.scores).all(), ranking
            assert ranking.probabilities is None or np.isfinite(ranking.probabilities).all(), ranking
            assert all(0 <= class_id < model.labels.n_ids for class_id in ranking.class_ids.tolist())
        json.dumps(model.stats(), allow_nan=False)
        copy = LiveModel.from_arrays(model.meta(), model.to_arrays(), (7, 8))
        assert copy.digest() == model.digest()
        return True


forgery_of = cache(Forgery)


def forge(name: str, seed: int, n: int) -> None:
    rng, forgery = random.Random(f"{name} {seed}"), Forgery(name)
    assert forgery.try_one(forgery.arrays)
    names = [one for one, array in forgery.arrays.items() if array.size]
    served = 0
    for i in range(n):
        wrong, told = dict(forgery.arrays), []
        for one in {names[i % len(names)], *rng.sample(names, rng.choice([0, 0, 0, 1]))}:
            how, wrong[one] = changed(rng, wrong[one])
            told.append(f"{one}: {how}")
        print(i, "; ".join(told), flush=True)
        served += forgery.try_one(wrong)
    print("done", name, n - served, served, flush=True)


if __name__ == "__main__":
    for given in sys.argv[3:]:
        forge(given, int(sys.argv[1]), int(sys.argv[2]))

"""What strings cost: JSON to vectors, text to vectors, keys to ids. Run ``python -m benchmarks.vectors [keys]``.

Times are of the processor, the best of five rounds; ratios are to ``json.loads`` of the same bytes, which knows no
hashing, no ids and no normalising.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable

import numpy as np

from core.config import AnalyzerConfig, ModelConfig
from core.kernels import keys as kernels
from core.limits import Limits
from core.record import pack_vector
from core.text import build
from core.vectorize import Vectorizer
from core.vocabulary import Vocabulary


def microseconds(function: Callable[[], object], n: int) -> float:
    """The best time of a call in five rounds of ``n``."""
    rounds = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(n):
            function()
        rounds.append(time.process_time() - began)
    return min(rounds) / n * 1e6


def instances(rng: random.Random) -> None:
    """Features objects of the two usual sizes, with short and with full numbers."""
    vectorizer = Vectorizer(ModelConfig(), Limits())
    for n in (26, 207):
        for digits in (4, 17):
            features = json.dumps(
                {f"{rng.choice('abcdefghij')}word{rng.randrange(10**6)}": round(rng.random(), digits) for _ in range(n)}
            ).encode()
            ours = microseconds(lambda f=features: vectorizer.vectorize(f, None), 5000)
            loads = microseconds(lambda f=features: json.loads(f), 2000)
            size = f"{len(features)} bytes, {digits} digits"
            print(f"{n:4} features ({size}): {ours:6.2f} us, {ours / loads:.2f} of json.loads ({loads:.1f} us)")


def texts(rng: random.Random) -> None:
    """Texts of several lengths, against the analyzer alone."""
    words = [f"w{int(rng.paretovariate(0.7))}" for _ in range(5000)]
    vectorizer, analyzer = Vectorizer(ModelConfig(), Limits()), build(AnalyzerConfig())
    for n in (5, 50, 500, 5000):
        text = " ".join(words[:n])
        ours = microseconds(lambda t=text: vectorizer.vectorize(None, t), 20_000 // n)
        alone = microseconds(lambda t=text: analyzer(t), 20_000 // n)
        print(f"{n:4} words: {ours:7.1f} us, {ours / alone:.2f} of the analyzer alone")


def vocabularies(n_keys: int) -> None:
    """Whole vectors looked up in a vocabulary: the same one again, and 2,000 random ones in turn."""
    keys = [b"feature%d" % n for n in range(n_keys)]
    vocabulary, rng = Vocabulary((11, 22)), np.random.default_rng(1)
    ids = np.zeros(n_keys, np.int32)
    vector = pack_vector(keys, np.ones(n_keys, np.float32))
    vocabulary.make_room(n_keys, len(vector))
    kernels.intern_vector(vocabulary.arrays, bytes(4), 0, ids)
    began = time.process_time()
    kernels.intern_vector(vocabulary.arrays, vector, 0, ids)
    print(f"{n_keys} keys: {(time.process_time() - began) / n_keys * 1e9:.0f} ns to add one, ", end="")
    print(f"{vocabulary.n_bytes / n_keys:.1f} bytes each")
    empty = microseconds(lambda: kernels.find_vector(vocabulary.arrays, bytes(4), ids), 20_000)
    for n in (26, 207):
        vectors = [
            pack_vector([keys[at] for at in rng.choice(n_keys, n, replace=False)], np.ones(n, np.float32))
            for _ in range(2000)
        ]
        warm = microseconds(lambda v=vectors[0]: kernels.find_vector(vocabulary.arrays, v, ids), 5000)
        turn = microseconds(lambda vs=vectors: [kernels.find_vector(vocabulary.arrays, v, ids) for v in vs], 5) / 2000
        print(f"{n:4} keys found: {warm - empty:5.2f} us warm, {turn - empty:5.2f} us in turn, ", end="")
        print(f"and {empty:.2f} us for the call from Python")
    began = time.process_time()
    vocabulary.make_room(vocabulary.arrays.slots.size * 3 // 5 - n_keys + 1, 0)
    print(f"a table of twice the size: {(time.process_time() - began) * 1e3:.0f} ms")
    began = time.process_time()
    arrays = vocabulary.to_arrays()
    saved = time.process_time()
    Vocabulary.from_arrays((33, 44), arrays)
    print(f"saved in {saved - began:.2f} s, loaded in {time.process_time() - saved:.2f} s")


if __name__ == "__main__":
    generator = random.Random(3)
    instances(generator)
    texts(generator)
    vocabularies(int(sys.argv[1]) if len(sys.argv) > 1 else 300_000)

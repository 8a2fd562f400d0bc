"""What strings cost: JSON to vectors, text to vectors, keys to ids: ``python -m benchmarks.vectors [KEYS] [--json]``.

Times are of the processor, the best of five rounds; ratios are to ``json.loads`` of the same bytes, which knows no
hashing, no ids and no normalising.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from abound.core.config import AnalyzerConfig, ModelConfig
from abound.core.instances.record import pack_vector
from abound.core.instances.text_analyzer import Analyzer
from abound.core.instances.vectorizer import Vectorizer
from abound.core.instances.vocabulary import Vocabulary
from abound.core.kernels.names import table as kernels
from abound.core.limits import Limits

SIZES = (26, 207)
WORDS = (5, 50, 500, 5000)
QUICK_PART = 100
"""By how much the calls of a round are fewer with ``--quick``."""

Figures = dict[str, dict[str, Any]]


def microseconds(function: Callable[[], object], n: int) -> float:
    """The best time of a call in five rounds of ``n``, of one at least."""
    rounds = []
    n = max(1, n)
    for _ in range(5):
        began = time.process_time()
        for _ in range(n):
            function()
        rounds.append(time.process_time() - began)
    return min(rounds) / n * 1e6


def instances(rng: random.Random, part: int) -> Figures:
    """Features objects of the two usual sizes, with short and with full numbers."""
    vectorizer = Vectorizer(ModelConfig(), Limits())
    told = {}
    for n in SIZES:
        for digits in (4, 17):
            features = json.dumps(
                {f"{rng.choice('abcdefghij')}word{rng.randrange(10**6)}": round(rng.random(), digits) for _ in range(n)}
            ).encode()
            ours = microseconds(lambda f=features: vectorizer.vectorize(f, None), 5000 // part)
            loads = microseconds(lambda f=features: json.loads(f), 2000 // part)
            told[f"{n} features, {digits} digits"] = {"bytes": len(features), "us": ours, "json_loads_us": loads}
    return told


def texts(rng: random.Random, part: int) -> Figures:
    """Texts of several lengths, and the analyzer alone."""
    words = [f"w{int(rng.paretovariate(0.7))}" for _ in range(max(WORDS))]
    vectorizer, analyzer = Vectorizer(ModelConfig(), Limits()), Analyzer(AnalyzerConfig())
    told = {}
    for n in WORDS:
        text = " ".join(words[:n])
        ours = microseconds(lambda t=text: vectorizer.vectorize(None, t), 20_000 // n // part)
        alone = microseconds(lambda t=text: analyzer(t), 20_000 // n // part)
        told[f"{n} words"] = {"us": ours, "analyzer_us": alone}
    return told


def vocabularies(n_keys: int, part: int) -> Figures:
    """Whole vectors looked up in a vocabulary: the same one again, and 2,000 random ones in turn."""
    keys = [b"feature%d" % n for n in range(n_keys)]
    vocabulary, rng = Vocabulary((11, 22)), np.random.default_rng(1)
    ids = np.zeros(n_keys, np.int32)
    vector = pack_vector(keys, np.ones(n_keys, np.float32))
    vocabulary.make_room(n_keys, len(vector))
    kernels.intern_vector(vocabulary.arrays, bytes(4), 0, ids)
    began = time.process_time()
    kernels.intern_vector(vocabulary.arrays, vector, 0, ids)
    took = time.process_time() - began
    whole = {"keys": n_keys, "add_ns": took / n_keys * 1e9, "bytes": vocabulary.n_bytes / n_keys}
    empty = microseconds(lambda: kernels.find_vector(vocabulary.arrays, bytes(4), ids), 20_000 // part)
    told: Figures = {}
    for n in SIZES:
        vectors = [
            pack_vector([keys[at] for at in rng.choice(n_keys, n, replace=False)], np.ones(n, np.float32))
            for _ in range(2000 // part)
        ]
        warm = microseconds(lambda v=vectors[0]: kernels.find_vector(vocabulary.arrays, v, ids), 5000 // part)
        turn = microseconds(lambda vs=vectors: [kernels.find_vector(vocabulary.arrays, v, ids) for v in vs], 5)
        told[f"{n} keys found"] = {"warm_us": warm - empty, "turn_us": turn / len(vectors) - empty, "call_us": empty}
    began = time.process_time()
    vocabulary.make_room(vocabulary.arrays.slots.size * 3 // 5 - n_keys + 1, 0)
    whole["twice_the_table_ms"] = (time.process_time() - began) * 1e3
    began = time.process_time()
    arrays = vocabulary.to_arrays()
    saved = time.process_time()
    Vocabulary.from_arrays((33, 44), arrays)
    whole |= {"save_seconds": saved - began, "load_seconds": time.process_time() - saved}
    return {"vocabulary": whole} | told


def show(told: Figures) -> None:
    """Print the figures for people."""
    for name, row in told.items():
        if "json_loads_us" in row:
            ratio = f"{row['us'] / row['json_loads_us']:.2f} of json.loads ({row['json_loads_us']:.1f} us)"
            print(f"{name} ({row['bytes']} bytes): {row['us']:.2f} us, {ratio}")
        elif "analyzer_us" in row:
            print(f"{name}: {row['us']:.1f} us, {row['us'] / row['analyzer_us']:.2f} of the analyzer alone")
        elif "warm_us" in row:
            called = f"and {row['call_us']:.2f} us for the call from Python"
            print(f"{name}: {row['warm_us']:.2f} us warm, {row['turn_us']:.2f} us in turn, {called}")
        else:
            print(f"{row['keys']} keys: {row['add_ns']:.0f} ns to add one, {row['bytes']:.1f} bytes each")
            print(f"a table of twice the size: {row['twice_the_table_ms']:.0f} ms")
            print(f"saved in {row['save_seconds']:.2f} s, loaded in {row['load_seconds']:.2f} s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vectors", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("keys", nargs="?", type=int, default=300_000, help="of the vocabulary")
    parser.add_argument("--quick", action="store_true", help="few calls a round: to see that it runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rng, part = random.Random(3), QUICK_PART if options.quick else 1
    told = instances(rng, part) | texts(rng, part) | vocabularies(options.keys, part)
    print(json.dumps(told)) if options.json else show(told)


if __name__ == "__main__":
    main()

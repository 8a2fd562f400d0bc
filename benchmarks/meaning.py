"""What vectors add: text alone, vectors alone, both, and both with ``rerank``, on the same data.

    python -m benchmarks.meaning TRAIN.jsonl TEST.jsonl [--embed wordllama] [--set codes=16384] [--json]

Every line of the files has ``text``, ``labels`` and, without ``--embed``, ``vector``. Learns the training part in one
pass with ``update: sls``, then ranks the test part. Prints R@1 of each instance before it was learned, R@1 and MRR of
the test part, the microseconds of a core for learning and for ranking an instance (made into a vector before), and the
bytes of the model.
"""

from __future__ import annotations

import argparse
import base64
import json
import time
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from abound.core.config import ModelConfig
from abound.core.evaluation.evaluate import fit
from abound.core.instances import text_encoder
from abound.core.instances.data_formats import Dataset, vectorize_all
from abound.core.instances.encoded_vector import EncodedVector
from abound.core.instances.vectorizer import Vectorizer
from abound.core.limits import DATASET_LIMITS
from abound.core.model.live_model import LiveModel
from abound.service.datasets.files import read_file
from abound.service.processes.encoder_files import use_encoders

DEPTH = 1000

PARTS: dict[str, dict[str, Any]] = {"text": {"vector": None}, "vector": {"text": None}, "both": {}, "reranked": {}}


def read(path: str, part: str, config: ModelConfig, embed: str | None) -> Dataset:
    """The instances of a file, with text, vector, or both."""
    instances = read_file(path)
    if embed is not None:
        instances = (replace(one, vector=_encode(embed, one.text)) for one in instances)
    instances = (replace(one, **PARTS[part]) for one in instances)
    return vectorize_all(instances, Vectorizer(config, DATASET_LIMITS).vectorize, DATASET_LIMITS)


def _encode(embed: str, text: str | None) -> EncodedVector | None:
    vector = text_encoder.load(embed).encode(text or "")
    return None if vector is None else EncodedVector(base64=base64.b64encode(vector).decode(), dtype="int8")


def reciprocal_ranks(live: LiveModel, test: Dataset) -> npt.NDArray[np.float64]:
    """1 / rank of the best true label of each instance, 0 for one that is not ranked."""
    found = np.zeros(len(test))
    starts, ids = test.labels
    for i, vector in enumerate(test.vectors):
        true = {live.labels.find(test.names[label].encode()) for label in ids[starts[i] : starts[i + 1]].tolist()}
        ranked = live.rank(vector, DEPTH).class_ids.tolist()
        found[i] = next((1 / rank for rank, class_id in enumerate(ranked, 1) if class_id in true), 0.0)
    return found


def measure(train_path: str, test_path: str, part: str, config: ModelConfig, embed: str | None) -> dict[str, float]:
    """The figures of one part of the instances."""
    config = replace(config, rerank=part == "reranked")
    train, test = read(train_path, part, config, embed), read(test_path, part, config, embed)
    started = time.process_time()
    live = fit(train, config, (1, 2))
    learned = time.process_time()
    for vector in test.vectors:
        live.rank(vector, 10)
    ranked = time.process_time()
    found = reciprocal_ranks(live, test)
    return {
        "prequential": live.stats()["all"]["R@1"],
        "R@1": float((found == 1).mean()),
        "MRR": float(found.mean()),
        "us learn": (learned - started) / len(train) * 1e6,
        "us rank": (ranked - learned) / len(test) * 1e6,
        "connections": live.index.n_connections,
        "MB": live.n_bytes / 1e6,
    }


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--embed", metavar="ENCODER", help="make the vectors from the texts")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    changes = {name: msgspec.json.decode(value) for name, _, value in (one.partition("=") for one in given.set)}
    use_encoders(None)
    config = ModelConfig.from_dict({"update": "sls", **changes})
    told = {part: measure(given.train, given.test, part, config, given.embed) for part in PARTS}
    if given.json:
        print(json.dumps(told))
        return
    names = list(told["text"])
    print("".join(f"{name:>13}" for name in ["", *names]))
    for part, figures in told.items():
        print(f"{part:>13}" + "".join(f"{figures[name]:13.4g}" for name in names))


if __name__ == "__main__":
    main()

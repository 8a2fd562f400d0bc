"""What vectors of texts add: words, words and codes, and both with the re-ranker, on the same instances.

    python -m benchmarks.meaning [--json] [--data DIR] [--only NAME]... [--orders 3] [--embed wordllama] [--way WAY]...

Each set is learned in one pass with ``update: sls``, in the order of its file and in ``--orders`` random ones;
``commits-git`` is learned in order of time alone. The figures of random orders are their means:

- R@1 and R@5 of the test part, of the instances that have a label, and R@1 of each instance before it was learned;
- the microseconds of a processor to make an instance into a vector, to learn it and to rank it;
- the bytes of the model.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from abound.processes.encoder_files import use_encoders
from abound_core.config import ModelConfig
from abound_core.evaluation.evaluate import fit
from abound_core.instances.data_formats import Dataset, DatasetInstance, vectorize_all
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import DATASET_LIMITS
from abound_core.model.live_model import LiveModel, warmup
from benchmarks.sets import NAMES, data_folder, read_file

SETS = (
    "clinc150",
    "reuters21578",
    "gutenberg-subjects",
    "newsgroups20",
    "commits-git",
    "wordnet-hypernyms",
    "yso-finna-en",
)

ONE_ORDER = ("commits-git",)
"""Sets that are learned in order of time alone."""

ALL = None, None
SIZES: dict[str, tuple[int | None, int | None]] = {"yso-finna-en": (100_000, 10_000)}
"""The first instances of the two parts, where not all of them are used."""

WAYS: dict[str, dict[str, Any]] = {
    "words": {},
    "codes": {"rerank": False},
    "reranked": {"rerank": True},
}
"""Settings of the ways to learn a set. All but ``words`` have an encoder."""

K = 10


class Parts(NamedTuple):
    """Training part and test part, as vectors, and the microseconds of a processor that an instance took."""

    train: Dataset
    test: Dataset
    us_vector: float


def instances(name: str, data: Path) -> list[list[DatasetInstance]]:
    """Return the instances of the training part and of the test part that have a label."""
    files = [read_file(str(data / name / f"{part}.{NAMES[name]}.gz")) for part in ("train", "test")]
    return [[row for row in islice(rows, n) if row.labels] for rows, n in zip(files, SIZES.get(name, ALL), strict=True)]


def config_of(way: str, encoder: str) -> ModelConfig:
    """Return the configuration of a way."""
    analyzer = {"embed": encoder if way != "words" else None}
    return ModelConfig.from_dict({"update": "sls", "analyzer": analyzer} | WAYS[way])


def read(name: str, data: Path, config: ModelConfig) -> Parts:
    """Return the parts of a set as vectors."""
    vectorizer = Vectorizer(config, DATASET_LIMITS)
    rows = instances(name, data)
    began = time.process_time()
    train, test = (vectorize_all(part, vectorizer, DATASET_LIMITS) for part in rows)
    return Parts(train, test, (time.process_time() - began) / (len(train) + len(test)) * 1e6)


def rank_test(live: LiveModel, test: Dataset) -> dict[str, float]:
    """Return R@1 and R@5 of the test part in percent, and the microseconds of a processor to rank an instance."""
    began = time.process_time()
    ranked = [live.rank(vector, K).class_ids for vector in test.vectors]
    us_rank = (time.process_time() - began) / len(test) * 1e6
    known = np.array([live.labels.find(label.encode()) for label in test.names])
    hits = [
        np.isin(ids[:5], true[true >= 0])
        for ids, true in zip(ranked, np.split(known[test.labels.ids], test.labels.starts[1:-1]), strict=True)
    ]
    r1, r5 = (100 * float(np.mean([one[:k].any() for one in hits])) for k in (1, 5))
    return {"R@1": r1, "R@5": r5, "us rank": us_rank}


def measure(parts: Parts, config: ModelConfig, seed: int | None) -> dict[str, float]:
    """Return the figures of a set that is learned in the random order of a seed, or in that of the file (None)."""
    rng = None if seed is None else np.random.default_rng(seed)
    began = time.process_time()
    live = fit(parts.train, config, (1, 2), rng=rng)
    us_learn = (time.process_time() - began) / len(parts.train) * 1e6
    figures = rank_test(live, parts.test)
    return {
        "R@1": figures["R@1"],
        "R@5": figures["R@5"],
        "prequential": 100 * live.stats()["all"]["R@1"],
        "us vector": parts.us_vector,
        "us learn": us_learn,
        "us rank": figures["us rank"],
        "MB": live.n_bytes / 1e6,
    }


def mean(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each figure."""
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def of_set(name: str, data: Path, n_random: int, encoder: str, ways: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each way to learn a set, in the order of its file and in random ones."""
    words, embedded = (read(name, data, config_of(way, encoder)) for way in ("words", "reranked"))
    orders = {"file": [None], "random": [] if name in ONE_ORDER else list(range(n_random))}
    for kind, seeds in orders.items():
        found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for seed in seeds:
            for way, rows in found.items():
                rows.append(measure(words if way == "words" else embedded, config_of(way, encoder), seed))
        for way, rows in found.items():
            if rows:
                yield {"set": name, "order": kind, "way": way} | mean(rows)


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a JSON object per row")
    parser.add_argument("--data", type=Path, help="the folder of the data sets; ABOUND_DATA without it")
    parser.add_argument("--only", action="append", choices=SETS, help="only this set; may be repeated")
    parser.add_argument("--orders", type=int, default=3, help="random orders")
    parser.add_argument("--way", action="append", choices=WAYS, help="only this way; may be repeated")
    parser.add_argument("--embed", metavar="ENCODER", default="wordllama")
    given = parser.parse_args()
    data = data_folder(given.data)
    use_encoders(None)
    warmup("learning", "answering", "sls", "reranked")
    ways = given.way or WAYS
    for name in given.only or SETS:
        for i, row in enumerate(of_set(name, data, given.orders, given.embed, ways)):
            if given.json:
                print(json.dumps(row), flush=True)
                continue
            if i == 0:
                print(*(f"{key:>18}" for key in row), sep="")
            print(
                *(f"{value:18.1f}" if isinstance(value, float) else f"{value!s:>18}" for value in row.values()), sep=""
            )


if __name__ == "__main__":
    main()

"""Vectors of any encoder over HTTP, next to words alone and to exact nearest neighbours on the same vectors.

    python -m benchmarks.own_vectors TRAIN TEST [--neighbours 20] [--json]

TRAIN and TEST are files of JSON lines with ``text``, ``vector`` and ``labels``. A service learns the training part in
one pass, in the order of the file, by ``POST /learn``: words alone, vectors alone, and both. Then it classifies the
test part. Neighbours vote for their labels with their cosine. Printed is R@1 of the test instances that have a label.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from abound.core.instances.data_formats import DatasetInstance
from abound.service.client import Client
from benchmarks.serving import Serving
from benchmarks.sets import read_file

ROWS = 512
"""Test instances whose similarities to all training instances are computed together."""

WAYS: dict[str, Callable[[DatasetInstance], DatasetInstance]] = {
    "words": lambda one: replace(one, vector=None),
    "vectors": lambda one: replace(one, text=None, features=None),
    "both": lambda one: one,
}


def over_http(client: Client, way: str, train: list[DatasetInstance], test: list[DatasetInstance]) -> dict[str, float]:
    """Return R@1 in percent, and instances learned and classified a second."""
    client.configure(way, {"update": "sls"})
    began = time.perf_counter()
    for answer in client.learn_stream(way, (WAYS[way](one).to_json() for one in train)):
        assert "offset" in answer, answer
    learned = time.perf_counter()
    lines = (WAYS[way](one).to_json(labels=False) for one in test)
    answers = list(client.classify_stream(way, lines))
    ended = time.perf_counter()
    hits = [
        bool(answer["labels"]) and answer["labels"][0]["label"] in one.labels
        for answer, one in zip(answers, test, strict=True)
    ]
    return {
        "R@1": 100 * float(np.mean(hits)),
        "learned a second": len(train) / (learned - began),
        "classified a second": len(test) / (ended - learned),
    }


def neighbours(train: list[DatasetInstance], test: list[DatasetInstance], k: int) -> dict[str, float]:
    """Return R@1 in percent of the votes of the ``k`` most similar training instances."""
    known, asked = unit_rows(train), unit_rows(test)
    hits = []
    for start in range(0, len(test), ROWS):
        similarities = asked[start : start + ROWS] @ known.T
        nearest = np.argpartition(-similarities, k, axis=1)[:, :k]
        for one, row, places in zip(test[start : start + ROWS], similarities, nearest, strict=True):
            votes: Counter[str] = Counter()
            for place in places[np.argsort(-row[places], kind="stable")]:
                votes.update(dict.fromkeys(train[place].labels, float(row[place])))
            hits.append(votes.most_common(1)[0][0] in one.labels)
    return {"R@1": 100 * float(np.mean(hits))}


def unit_rows(instances: list[DatasetInstance]) -> npt.NDArray[np.float32]:
    """Return the vectors, each of length 1."""
    rows = np.array([np.frombuffer(one.dense or b"", np.int8) for one in instances], np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--neighbours", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    train, test = ([one for one in read_file(name) if one.labels] for name in (given.train, given.test))
    found = {f"{given.neighbours}-NN": neighbours(train, test, given.neighbours)}
    with tempfile.TemporaryDirectory() as folder:
        serving = Serving(Path(folder), output=Path(folder) / "log")
        try:
            serving.until_ready()
            with Client(serving.url) as client:
                found |= {way: over_http(client, way, train, test) for way in WAYS}
        finally:
            serving.stop()
    if given.json:
        print(json.dumps(found))
        return
    for way, figures in found.items():
        print(f"{way:10}", *(f"{value:12,.1f} {name}" for name, value in figures.items()))


if __name__ == "__main__":
    main()

"""Small files of instances for the commands."""

import gzip
import json
import random
from pathlib import Path

import pytest


def rows(n: int, seed: int = 0) -> list[dict[str, object]]:
    rng = random.Random(seed)
    made: list[dict[str, object]] = []
    for _ in range(n):
        kind = rng.randrange(5)
        words = [f"k{kind}w{rng.randrange(4)}" for _ in range(3)] + [f"noise{rng.randrange(9)}" for _ in range(3)]
        made.append({"text": " ".join(words), "labels": [f"kind {kind}"]})
    return made


def write(path: Path, made: list[dict[str, object]]) -> Path:
    data = "".join(json.dumps(row) + "\n" for row in made).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return write(tmp_path / "train.jsonl.gz", rows(1500))


@pytest.fixture
def test(tmp_path: Path) -> Path:
    return write(tmp_path / "test.jsonl", rows(100, seed=1))

"""Small data sets under the names of the real ones and in their formats, for programs that measure on these."""

import gzip
import json
import random
from collections.abc import Collection, Iterator
from pathlib import Path

from benchmarks import sets

NAMES = sets.NAMES | {"aloi": "txt", "llms4subjects-tib": "jsonl"}

DEVELOPMENT = {"llms4subjects-tib"}
"""Sets with a development part instead of a test part."""

N_CLASSES, OWN_WORDS = 12, 8
SIZES = {
    "clinc150": (1600, 400),
    "commits-git": (2000, 500),
    "gutenberg-subjects": (1200, 300),
    "wordnet-hypernyms": (2000, 200),
}
"""Instances of the two parts; of a set that is not named, ``FEW``."""

FEW = (400, 100)


def make(folder: Path, names: Collection[str] = NAMES) -> None:
    """Each class has words of its own, and one label in thirty is a mistake. ``vectors`` has vectors too."""
    for name in names:
        ending = NAMES[name]
        (folder / name).mkdir(parents=True)
        rng = random.Random(name)
        parts = ("train", "dev" if name in DEVELOPMENT else "test")
        for part, n in zip(parts, SIZES.get(name, FEW), strict=True):
            rows = list(instances(n, rng))
            text = as_text(rows) if ending == "txt" else as_lines(rows)
            (folder / name / f"{part}.{ending}.gz").write_bytes(gzip.compress(text.encode(), 1))
    if names is not NAMES:
        return
    labels = [{"label": f"class {one}", "name": f"word{one}"} for one in range(N_CLASSES)]
    text = "".join(json.dumps(one) + "\n" for one in labels)
    (folder / "llms4subjects-tib" / "labels.jsonl.gz").write_bytes(gzip.compress(text.encode(), 1))
    rng = random.Random("vectors")
    (folder / "vectors").mkdir()
    for part, n in (("train", 100), ("test", 30)):
        (folder / "vectors" / f"{part}.jsonl").write_text(as_lines(list(instances(n, rng)), vectors=True))


def instances(n: int, rng: random.Random) -> Iterator[tuple[list[int], list[int]]]:
    """Words and classes of each instance, as numbers."""
    for _ in range(n):
        own = rng.randrange(N_CLASSES)
        words = [N_CLASSES * rng.randrange(OWN_WORDS) + own for _ in range(4)]
        words += [N_CLASSES * OWN_WORDS + rng.randrange(20) for _ in range(3)]
        labels = {rng.randrange(N_CLASSES) if rng.random() < 1 / 30 else own}
        if rng.random() < 0.2:
            labels.add((own + 1) % N_CLASSES)
        yield sorted(set(words)), sorted(labels)


def as_lines(rows: list[tuple[list[int], list[int]]], vectors: bool = False) -> str:
    """As JSON lines with texts, and with the counts of words as vectors if they are wanted."""

    def fields(words: list[int], labels: list[int]) -> dict[str, object]:
        made: dict[str, object] = {"text": " ".join(f"word{word}" for word in words)}
        if vectors:
            made["vector"] = [float(word in words) for word in range(N_CLASSES * OWN_WORDS + 20)]
        return made | {"labels": [f"class {one}" for one in labels]}

    return "".join(json.dumps(fields(*row)) + "\n" for row in rows)


def as_text(rows: list[tuple[list[int], list[int]]]) -> str:
    """In the text format of the Extreme Classification repository."""
    head = f"{len(rows)} {N_CLASSES * OWN_WORDS + 20} {N_CLASSES}\n"
    return head + "".join(
        f"{','.join(map(str, labels))} {' '.join(f'{word}:1' for word in words)}\n" for words, labels in rows
    )

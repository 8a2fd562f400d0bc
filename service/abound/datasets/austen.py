"""Jane Austen's novels as a stream of instances: predict each word from the words around it.

Each word is one instance, and its class is the word itself (Madani, Connor and Greiner, JMLR 2009, section 6,
"Jane Austen"). An instance has fifteen features: the three words on each side with their offsets, and the
five pairs and four triples of neighbours among them. Their names make explanations readable: ``-1=very``,
``-2,-1=of the``, ``-1,+1,+2=very of the``.
"""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Iterator
from functools import lru_cache
from importlib import resources

import msgspec

from abound_core.instances.data_formats import DatasetInstance

END = "|"  # stands before the first and after the last word of a novel
SINGLES = (-3, -2, -1, 1, 2, 3)
PAIRS = ((-3, -2), (-2, -1), (-1, 1), (1, 2), (2, 3))
TRIPLES = ((-3, -2, -1), (-2, -1, 1), (-1, 1, 2), (1, 2, 3))

TEMPLATES: tuple[tuple[str, tuple[int, ...]], ...] = tuple(
    (",".join(f"{offset:+d}" for offset in offsets), offsets)
    for offsets in (*((single,) for single in SINGLES), *PAIRS, *TRIPLES)
)
"""Name and offsets of each feature, in the order in which an instance has them."""

_REACH = 3
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case: runs of letters, with apostrophes allowed inside."""
    return _WORD.findall(text.lower())


@lru_cache(maxsize=1)
def novels() -> tuple[tuple[str, ...], ...]:
    folder = resources.files("abound.datasets") / "novels"
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".txt.gz"))
    texts = (gzip.decompress((folder / name).read_bytes()).decode() for name in files)
    return tuple(tuple(words_of(text)) for text in texts)


def features_of(padded: list[str], place: int) -> dict[str, str]:
    """Return features by name: ``{"-1": "very", "-2,-1": "of the", ...}``; ``padded`` has three words on each side."""
    return {name: " ".join(padded[place + offset] for offset in offsets) for name, offsets in TEMPLATES}


def context(before: str, after: str) -> DatasetInstance:
    """Return the instance of a gap between two pieces of text, to predict the missing word."""
    left, right = words_of(before), words_of(after)
    padded = [*[END] * _REACH, *left, "", *right, *[END] * _REACH]
    return DatasetInstance(features=msgspec.json.encode(features_of(padded, _REACH + len(left))))


def stream(seed: int | None = None) -> Iterator[DatasetInstance]:
    """Yield all 724,858 instances, novel by novel, or in a random order determined by ``seed``."""
    padded: list[str] = []
    places: list[int] = []
    for novel in novels():
        first = len(padded) + _REACH
        padded += [*[END] * _REACH, *novel, *[END] * _REACH]
        places += range(first, first + len(novel))
    if seed is not None:
        random.Random(seed).shuffle(places)
    encode = msgspec.json.encode
    for place in places:
        yield DatasetInstance(features=encode(features_of(padded, place)), labels=(padded[place],))

"""The data sets of the experiments and their splits. They are kept vectorized, so that a split reads no file."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import msgspec
import numpy as np

from abound.datasets import austen
from abound_core.config import AnalyzerConfig, ModelConfig
from abound_core.instances.data_formats import Dataset, DatasetInstance, vectorize_all
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import DATASET_LIMITS
from abound_core.methods.training.gather import of_dataset
from abound_core.methods.training.matrices import Matrices
from benchmarks.sets import read_file

TOP_TEN = ("earn", "acq", "money-fx", "grain", "crude", "trade", "interest", "wheat", "ship", "corn")
"""The ten largest classes of Reuters-21578."""

ENDINGS = ("txt.gz", "jsonl.gz", "txt", "jsonl")

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """The source of a data set, and the choice of its test part.

    Attributes
    ----------
    folder : str or None
        Subfolder of the data folder, with ``train`` and ``test``; None: Jane Austen's novels, which come with
        the program.
    test_share : float or None
        Share of both parts together that is drawn as test part, by the seed; None: the stored parts.
    instances : int or None
        Maximum number of training instances, from the start.
    queries : int or None
        Maximum number of test instances, from the start.
    labels : tuple of str or None
        Keep only these labels, and only instances with at least one of them, or with ``exactly_one``, exactly
        one.
    exactly_one : bool
    counts : bool
        Whether the values of words are plain counts, instead of 1 + ln of them.
    min_length : int
        Minimum characters of a word; the service's default is 1, scikit-learn's 2.
    tree : bool
        Whether to put the hierarchy of WordNet's hypernyms over the labels.
    """

    folder: str | None
    test_share: float | None = None
    instances: int | None = None
    queries: int | None = None
    labels: tuple[str, ...] | None = None
    exactly_one: bool = False
    counts: bool = False
    min_length: int = 1
    tree: bool = False

    def files(self, data: Path) -> tuple[Path, Path] | None:
        """Return the files of the two parts; None if one is missing."""
        if self.folder is None:
            return None
        for ending in ENDINGS:
            train, test = (data / self.folder / f"{part}.{ending}" for part in ("train", "test"))
            if train.is_file() and test.is_file():
                return train, test
        return None

    @property
    def stored(self) -> bool:
        """Whether ``abound evaluate`` can read both parts unchanged."""
        return self == DataSet(folder=self.folder) and self.folder is not None


SETS = {
    "bibtex": DataSet(folder="bibtex"),
    "delicious": DataSet(folder="delicious"),
    "rcv1v2": DataSet(folder="rcv1v2"),
    "rcv1v2-subset1": DataSet(folder="rcv1v2-subset1"),
    "stackex-cooking": DataSet(folder="stackex-cooking"),
    "aloi": DataSet(folder="aloi"),
    "newsgroups20": DataSet(folder="newsgroups20"),
    "newsgroups20-random": DataSet(folder="newsgroups20", test_share=0.2),
    "reuters10-random": DataSet(folder="reuters21578", test_share=0.1, labels=TOP_TEN),
    "reuters10-words": DataSet(folder="reuters21578", test_share=0.1, labels=TOP_TEN, min_length=2),
    "reuters10-single": DataSet(folder="reuters21578", test_share=0.1, labels=TOP_TEN, exactly_one=True),
    "austen-random": DataSet(folder=None, test_share=0.1),
    "wordnet-hypernyms": DataSet(folder="wordnet-hypernyms"),
    "wordnet-counts": DataSet(folder="wordnet-hypernyms", counts=True),
    "wordnet-tree": DataSet(folder="wordnet-hypernyms", tree=True),
    "wordnet-10000": DataSet(folder="wordnet-hypernyms", instances=10_000, queries=2000),
    "yso-50000": DataSet(folder="yso-finna-en", instances=50_000, queries=2000),
    "yso-finna-en-2000": DataSet(folder="yso-finna-en", queries=2000),
    "yso-counts-2000": DataSet(folder="yso-finna-en", queries=2000, counts=True),
}
"""Data sets by the name that experiments use."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LoadedDataSet:
    """A data set in memory.

    Attributes
    ----------
    train : Dataset
        The training part, or all instances if they are still to be split.
    test : Dataset or None
    test_share : float
    text : bool
    pairs : tuple of (str, str)
        A label or class, and a class above it.
    """

    train: Dataset
    test: Dataset | None
    test_share: float
    text: bool
    pairs: tuple[tuple[str, str], ...]

    def split(self, seed: int) -> tuple[Dataset, Dataset]:
        """Return the training and the test part."""
        if self.test is not None:
            return self.train, self.test
        order = np.random.default_rng(seed).permutation(len(self.train)).tolist()
        cut = round(self.test_share * len(order))
        return self.train.select(order[cut:]), self.train.select(order[:cut])

    def matrices(self, seed: int) -> tuple[Matrices, Matrices]:
        """Return both parts as matrices, the second with the columns of the first."""
        train, test = self.split(seed)
        read = replace(of_dataset(train, (seed, 1)), text=self.text)
        return read, replace(of_dataset(test, (seed, 1), like=read), text=self.text)


def read(source: DataSet, data: Path, *, boolean: bool) -> LoadedDataSet:
    """Read and vectorize a data set whose files exist.

    Raises
    ------
    Malformed
        A file cannot be read.
    """
    config = ModelConfig(boolean=boolean, analyzer=AnalyzerConfig(min_length=source.min_length))
    vectorizer = Vectorizer(config, DATASET_LIMITS)
    seen = _Seen()

    def held(instances: Iterable[DatasetInstance]) -> Dataset:
        return vectorize_all(seen.watch(_wanted(source, instances)), vectorizer, DATASET_LIMITS)

    files = source.files(data)
    parts = [austen.stream()] if files is None else [read_file(str(file)) for file in files]
    if source.test_share is not None:
        return LoadedDataSet(
            train=held(chain(*parts)), test=None, test_share=source.test_share, text=seen.text, pairs=()
        )
    train, test = held(islice(parts[0], source.instances)), held(islice(parts[1], source.queries))
    pairs = _hypernyms(files, set(train.names)) if source.tree and files else ()
    return LoadedDataSet(train=train, test=test, test_share=0.0, text=seen.text, pairs=pairs)


class _Seen:
    """Detects whether any instance is a text."""

    def __init__(self) -> None:
        self.text = False

    def watch(self, instances: Iterable[DatasetInstance]) -> Iterator[DatasetInstance]:
        for instance in instances:
            self.text |= instance.text is not None
            yield instance


def _wanted(source: DataSet, instances: Iterable[DatasetInstance]) -> Iterator[DatasetInstance]:
    for instance in instances:
        if source.labels is not None:
            labels = tuple(label for label in instance.labels if label in source.labels)
            if not labels or (source.exactly_one and len(labels) > 1):
                continue
            instance = replace(instance, labels=labels)
        if source.counts and isinstance(instance.text, str):
            counts = Counter(_WORD.findall(instance.text.lower()))
            instance = replace(instance, text=None, features=msgspec.json.encode(counts))
        yield instance


def _hypernyms(files: Iterable[Path], labels: set[str]) -> tuple[tuple[str, str], ...]:
    """Return each label with its parent: that of the one synset with the label's word and part of speech.
    Cycles are cut.
    """
    above: dict[tuple[str, str], set[str]] = defaultdict(set)
    for file in files:
        for line in gzip.decompress(file.read_bytes()).splitlines():
            fields = json.loads(line)
            kind = "v" if fields["file"].startswith("verb") else "n"
            above[fields["words"][0], kind].add(fields["labels"][0])
    parents = {}
    for label in sorted(labels):
        word, _, rest = label.rpartition(".")
        found = above.get((word, rest[:1]), set())
        if len(found) == 1 and label not in found:
            parents[label] = next(iter(found))
    for label in list(parents):
        seen, at = {label}, parents.get(label)
        while at is not None and at not in seen:
            seen.add(at)
            at = parents.get(at)
        if at is not None:
            del parents[label]
    return tuple(sorted(parents.items()))

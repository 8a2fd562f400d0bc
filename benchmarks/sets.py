"""The data sets as arrays: vectorized once, kept beside the results, and the same for every method that is measured.

A set is two parts, ``train`` and ``test``, of the vectorizer's vectors (l2-normalised; words of a text count 1 + ln of
how often they come). Features and labels are numbers in order of first appearance, those of the training part first, so
what the test part alone has is at or above ``n_features`` and ``n_labels`` of the training part.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from abound.datasets import files
from abound_core.config import AnalyzerConfig, ModelConfig
from abound_core.instances.data_formats import Dataset, DatasetInstance, vectorize_all
from abound_core.instances.read_options import WITHOUT_OTHERS
from abound_core.instances.record import unpack_vector
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import DATASET_LIMITS

NAMES = {
    "clinc150": "jsonl",
    "reuters21578": "jsonl",
    "newsgroups20": "jsonl",
    "rcv1v2": "txt",
    "bibtex": "txt",
    "stackex-cooking": "txt",
    "delicious": "txt",
    "gutenberg-subjects": "jsonl",
    "wordnet-hypernyms": "jsonl",
    "commits-git": "jsonl",
    "yso-finna-en": "jsonl",
}
"""The sets, the smaller ones first, and how their files end."""

IN_TIME = ("commits-git", "gutenberg-subjects")
"""Sets whose training part is in order of time, with the test part after it."""

ANALYZERS = {
    "words": AnalyzerConfig(),
    "pairs": AnalyzerConfig(ngrams=(1, 2)),
    "triples": AnalyzerConfig(ngrams=(1, 3)),
    "chars": AnalyzerConfig(kind="char_wb", ngrams=(3, 5)),
}
"""How texts may become terms."""


def read_file(name: str) -> Iterator[DatasetInstance]:
    """Yield the instances of a file. Fields that are no part of an instance, as ids and dates, are left out."""
    return files.read_file(name, options=WITHOUT_OTHERS)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Instances one after the other.

    Attributes
    ----------
    starts, ids, values : int64 (n + 1,), int32, float32
        The features of instance i are ``starts[i]`` to ``starts[i + 1]``.
    label_starts, label_ids : int64 (n + 1,), int32
    """

    starts: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    label_starts: npt.NDArray[np.int64]
    label_ids: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def labelled(self) -> npt.NDArray[np.int64]:
        """Places of the instances that have a label and an active feature."""
        return np.flatnonzero((np.diff(self.label_starts) > 0) & (np.diff(self.starts) > 0))

    def taken(self, places: npt.NDArray[np.int64]) -> Rows:
        """These instances, in this order."""
        starts, features = _picked(self.starts, places)
        label_starts, labels = _picked(self.label_starts, places)
        return Rows(starts, self.ids[features], self.values[features], label_starts, self.label_ids[labels])


def _picked(
    starts: npt.NDArray[np.int64], places: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the new starts of some rows, and the places of their elements, one row after the other."""
    lengths = np.diff(starts)[places]
    begins = np.concatenate(([0], np.cumsum(lengths)))
    return begins, np.arange(begins[-1]) + np.repeat(starts[places] - begins[:-1], lengths)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A training part, a test part, and how many features and labels the training part has."""

    train: Rows
    test: Rows
    n_features: int
    n_labels: int


def default_folder() -> Path:
    """Where arrays and results are kept unless something else is said."""
    return Path(tempfile.gettempdir()) / "abound-benchmarks"


def data_folder(given: Path | None) -> Path:
    """The folder of the data sets: what was given, or what ``ABOUND_DATA`` names."""
    folder = given or os.environ.get("ABOUND_DATA")
    if folder is None:
        raise SystemExit("say where the data sets are, by --data or ABOUND_DATA; python -m benchmarks.data builds them")
    return Path(folder)


def load(name: str, data: Path, kept: Path, analyzer: str = "words") -> Task:
    """A set as arrays: made on first use, then read from the folder ``kept``."""
    path = kept / f"{name}.{analyzer}.npz"
    if not path.exists():
        kept.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.npz")
        np.savez(part, allow_pickle=False, **_arrays(name, data, ANALYZERS[analyzer]))
        part.rename(path)
    return read(path)


def read(path: Path) -> Task:
    """A set from its file of arrays."""
    with np.load(path, allow_pickle=False) as arrays:
        train, test = (Rows(*(arrays[f"{part}_{field}"] for field in Rows.__slots__)) for part in ("train", "test"))
        n_features, n_labels = arrays["sizes"].tolist()
        return Task(train, test, n_features, n_labels)


def _arrays(name: str, data: Path, analyzer: AnalyzerConfig) -> dict[str, npt.NDArray[np.generic]]:
    features: dict[str, int] = {}
    labels: dict[str, int] = {}
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    sizes: list[int] = []
    vectorizer = Vectorizer(ModelConfig(analyzer=analyzer), DATASET_LIMITS)
    for part in ("train", "test"):
        instances = read_file(str(data / name / f"{part}.{NAMES[name]}.gz"))
        dataset = vectorize_all(instances, vectorizer, DATASET_LIMITS)
        arrays |= {f"{part}_{field}": array for field, array in _rows(dataset, features, labels).items()}
        sizes = sizes or [len(features), len(labels)]
    return arrays | {"sizes": np.array(sizes)}


def _rows(dataset: Dataset, features: dict[str, int], labels: dict[str, int]) -> dict[str, npt.NDArray[np.generic]]:
    ids: list[npt.NDArray[np.int32]] = []
    values = []
    for vector in dataset.vectors:
        keys, numbers = unpack_vector(vector)
        ids.append(np.array([features.setdefault(key, len(features)) for key in keys], np.int32))
        values.append(numbers)
    renamed = np.array([labels.setdefault(label, len(labels)) for label in dataset.names], np.int32)
    return {
        "starts": np.cumsum([0, *map(len, ids)]),
        "ids": np.concatenate(ids),
        "values": np.concatenate(values).astype(np.float32),
        "label_starts": dataset.labels.starts,
        "label_ids": renamed[dataset.labels.ids],
    }

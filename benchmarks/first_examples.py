"""How soon a model is of use: clinc150 with the first examples of each label, and a model that is fitted each time.

    python -m benchmarks.first_examples [--json] [--data DIR] [--draws 3] [--embed wordllama]

R@1 of the test part in per cent, the mean of random draws of 1, 2, 3, 5 and 10 examples of each label. Abound learns
them in one pass with ``update: sls``: words, words with the names of the labels (each learned once, before the
examples), and with the encoder's vectors, re-ranked, with the names.

The baseline is scikit-learn's ``LogisticRegression`` on the same vectors (int8, at length 1), fitted on the same
examples, with each name as one more. Its ``C`` is the best of 1, 10 and 100 on the test part, which favours it.
``nearest name`` ranks by the cosine to the names alone. Rows with ``all`` have the whole training part; there ``C`` is
chosen on a random tenth of it, and *words* are tf-idf weights beside the vectors.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from abound.processes.encoder_files import use_encoders
from abound_core.instances.data_formats import DatasetInstance, vectorize_all
from abound_core.instances.record import add_details, dense_of, pack_labels
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import DATASET_LIMITS as LIMITS
from abound_core.model.entry_application import Unit
from abound_core.model.label_details import words_of
from abound_core.model.live_model import LiveModel
from benchmarks.meaning import config_of, instances, rank_test
from benchmarks.sets import data_folder

SET = "clinc150"
EXAMPLES = (1, 2, 3, 5, 10)
WAYS = (("words", False), ("words", True), ("reranked", True))
"""Settings of ``benchmarks.meaning``, and whether names are learned."""

STRENGTHS = (1, 10, 100)
"""Values of ``C``."""

Rows = list[DatasetInstance]


def chosen(train: Rows, n: int, draw: int) -> Rows:
    """Return the first ``n`` instances of each label in a random order."""
    taken: dict[str, int] = {}
    rows = []
    for place in np.random.default_rng(draw).permutation(len(train)).tolist():
        label = train[place].labels[0]
        taken[label] = taken.get(label, 0) + 1
        if taken[label] <= n:
            rows.append(train[place])
    return rows


def abound(draws: list[Rows], test: Rows, names: dict[str, str], way: str, encoder: str) -> float:
    """Return the mean R@1 of models that learn the names and then the instances of a draw."""
    config = config_of(way, encoder)
    vectorizer = Vectorizer(config, LIMITS)
    tested = vectorize_all(test, vectorizer, LIMITS)
    found = []
    for rows in draws:
        live = LiveModel(config, (1, 2), LIMITS)
        records = [
            add_details(vectorizer.vectorize(None, name) + pack_labels([label], LIMITS), b"")
            for label, name in names.items()
        ]
        records += [vectorizer.vectorize(None, row.text) + pack_labels(list(row.labels), LIMITS) for row in rows]
        live.begin(b"".join(records), len(records), [Unit(n=len(records))]).finish()
        found.append(rank_test(live, tested)["R@1"])
    return float(np.mean(found))


def vectors(texts: list[Any], encoder: str) -> npt.NDArray[np.float64]:
    """Return the encoder's vectors (n, d) of texts, at length 1."""
    vectorizer = Vectorizer(config_of("reranked", encoder), LIMITS)
    numbers = [dense_of(vectorizer.vectorize(None, text)) for text in texts]
    d = next(len(one) for one in numbers if one is not None)
    table = np.array([np.zeros(d) if one is None else one for one in numbers], np.float64)
    return table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-9)


def scores(X: Any, labels: list[str], test: Any, true: list[str], strengths: tuple[int, ...]) -> list[float]:
    """Return R@1 of the test instances for each value of ``C``."""
    fitted = [LogisticRegression(C=strength, max_iter=1000).fit(X, labels) for strength in strengths]
    return [100 * float(np.mean(model.predict(test) == np.array(true))) for model in fitted]


def baseline(draws: list[Rows], test: npt.NDArray[Any], true: list[str], names: dict[str, str], encoder: str) -> float:
    """Return the mean R@1 of logistic regression on the vectors of each draw and of the names."""
    found = []
    for rows in draws:
        X = vectors([row.text for row in rows] + list(names.values()), encoder)
        found.append(max(scores(X, [row.labels[0] for row in rows] + list(names), test, true, STRENGTHS)))
    return float(np.mean(found))


def with_all(train: Rows, test: Rows, encoder: str) -> Iterator[tuple[str, float]]:
    """Yield R@1 of logistic regression on the whole training part: vectors, and vectors and words."""
    labels, true = ([row.labels[0] for row in rows] for rows in (train, test))
    words = TfidfVectorizer(sublinear_tf=True)
    X, tested = (vectors([row.text for row in rows], encoder) for rows in (train, test))
    both = sp.hstack([X, words.fit_transform([row.text for row in train])], format="csr")
    both_tested = sp.hstack([tested, words.transform([row.text for row in test])], format="csr")
    order = np.random.default_rng(0).permutation(len(train))
    held, kept = order[: len(train) // 10], order[len(train) // 10 :]
    own = np.array(labels)
    for name, A, B in (("vectors", X, tested), ("vectors, words", both, both_tested)):
        checked = scores(A[kept], own[kept].tolist(), A[held], own[held].tolist(), STRENGTHS)
        best = STRENGTHS[int(np.argmax(checked))]
        yield name, scores(A, labels, B, true, (best,))[0]


def measured(data: Path, n_draws: int, encoder: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table."""
    train, test = instances(SET, data)
    true = [row.labels[0] for row in test]
    names = {label: name for label in dict.fromkeys(row.labels[0] for row in train) if (name := words_of(label))}
    tested = vectors([row.text for row in test], encoder)
    if names:
        near = np.argmax(tested @ vectors(list(names.values()), encoder).T, axis=1)
        right = np.array(list(names))[near] == np.array(true)
        yield {"examples": 0, "way": "nearest name", "R@1": 100 * float(right.mean())}
    for n in (0, *EXAMPLES):
        draws = [chosen(train, n, draw) for draw in range(n_draws if n else 1)]
        for way, with_names in WAYS:
            if n or with_names:
                r1 = abound(draws, test, names if with_names else {}, way, encoder)
                yield {"examples": n, "way": f"{way}, names" if with_names else way, "R@1": r1}
        if n:
            r1 = baseline(draws, tested, true, names, encoder)
            yield {"examples": n, "way": "logistic regression, names", "R@1": r1}
    for name, r1 in with_all(train, test, encoder):
        yield {"examples": "all", "way": f"logistic regression, {name}", "R@1": r1}


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a JSON object per row")
    parser.add_argument("--data", type=Path, help="the folder of the data sets; ABOUND_DATA without it")
    parser.add_argument("--draws", type=int, default=3, help="random choices of the examples")
    parser.add_argument("--embed", metavar="ENCODER", default="wordllama")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", "The number of unique classes")
    use_encoders(None)
    for row in measured(data_folder(given.data), given.draws, given.embed):
        told = f"{row['examples']!s:>4}  {row['R@1']:6.1f}  {row['way']}"
        print(json.dumps(row) if given.json else told, flush=True)


if __name__ == "__main__":
    main()

"""One rival on one set: ``python -m benchmarks.rivals.run ARRAYS RIVAL SECONDS`` prints one JSON object.

Started by ``benchmarks.libraries`` in the rivals' environment. More than SECONDS of the processor end it.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.rivals import batch, online
from benchmarks.rivals.instances import Outcome, Problem, measures, read
from benchmarks.rivals.peak import peak, start_peak

BITS = "-b 24"
"""16 million weights for Vowpal Wabbit, where its default of 262,144 would be too few for so many classes."""

RIVALS: dict[str, Callable[[Problem], Outcome]] = {
    "vw oaa": partial(online.vowpal, reduction="oaa", options=f"{BITS} --loss_function logistic --probabilities"),
    "vw multilabel_oaa": partial(
        online.vowpal, reduction="multilabel_oaa", options=f"{BITS} --loss_function logistic --probabilities"
    ),
    "vw ect": partial(online.vowpal, reduction="ect", options=BITS),
    "vw plt": partial(online.vowpal, reduction="plt", options=f"{BITS} --loss_function logistic --top_k 5"),
    "vw recall_tree": partial(online.vowpal, reduction="recall_tree", options=BITS),
    "vw log_multi": partial(online.vowpal, reduction="log_multi", options=BITS),
    "river MultinomialNB": online.naive_bayes,
    "sklearn SGD partial_fit": online.sgd,
    "sklearn LinearSVC": batch.svc,
    "fastText": batch.fasttext,
    "omikuji": batch.omikuji,
    "20-NN": batch.neighbours,
}


def main() -> None:
    """Measure one rival."""
    path, name, seconds = sys.argv[1:]
    problem = read(Path(path))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))
    before = start_peak()
    outcome = RIVALS[name](problem)
    grown = peak() - before
    figures = measures(outcome.answers, problem.test.labels) | {
        "learn/s": problem.train.X.shape[0] / max(outcome.learning, 1e-9),
        "classify/s": problem.test.X.shape[0] / max(outcome.classifying, 1e-9),
        "seconds": outcome.learning + outcome.classifying,
        "memory": grown,
        "model": outcome.model_bytes,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

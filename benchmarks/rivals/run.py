"""One rival on one set: ``python -m benchmarks.rivals.run ARRAYS RIVAL SECONDS [on]`` prints one JSON object.

Started by ``benchmarks.libraries`` in the rivals' environment. More than SECONDS of the processor end it.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import scipy.sparse as sp

from benchmarks.rivals import batch, online
from benchmarks.rivals.instances import Outcome, Part, Problem, measures, read
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
BATCH = (batch.svc, batch.fasttext, batch.omikuji, batch.neighbours)

REFIT = 500
"""Test instances after which a rival that cannot learn one by one is fitted again, on all that came before."""


def refitted(rival: Callable[[Problem], Outcome], problem: Problem) -> Outcome:
    """What a rival does that is fitted again as the test goes on: its answers, and the seconds of all fits."""
    X, labels = problem.train.X, list(problem.train.labels)
    whole = Outcome(0.0, 0.0, [])
    for at in range(0, len(problem.test.labels), REFIT):
        rows, own = problem.test.X[at : at + REFIT], problem.test.labels[at : at + REFIT]
        outcome = rival(Problem(Part(X, labels), Part(rows, own), 1 + max(map(max, labels))))
        whole.learning += outcome.learning
        whole.classifying += outcome.classifying
        whole.answers += outcome.answers
        known = [i for i, one in enumerate(own) if one]
        X, labels = sp.vstack([X, rows[known]], format="csr"), labels + [own[i] for i in known]
    return whole


def main() -> None:
    """Measure one rival."""
    path, name, seconds, *on = sys.argv[1:]
    problem = read(Path(path), bool(on))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))
    before = start_peak()
    outcome = refitted(RIVALS[name], problem) if problem.on and RIVALS[name] in BATCH else RIVALS[name](problem)
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

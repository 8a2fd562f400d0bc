"""Rivals that learn one instance after the other, in one pass."""

from __future__ import annotations

import os
import tempfile
import time

import numpy as np

from benchmarks.rivals.instances import DEPTH, Outcome, Problem, best

clock = time.process_time


def _line(row_ids, row_values) -> str:
    return " | " + " ".join(f"{i}:{v:.6g}" for i, v in zip(row_ids, row_values, strict=True))


def _lines(part) -> list:
    X = part.X
    return [_line(X.indices[a:b], X.data[a:b]) for a, b in zip(X.indptr[:-1], X.indptr[1:], strict=True)]


def vowpal(problem: Problem, reduction: str, options: str) -> Outcome:
    """Vowpal Wabbit in process, given text lines: parsing is part of its time. One example for each true label of an
    instance where the reduction takes one label only."""
    from vowpalwabbit import Workspace

    many = reduction in ("multilabel_oaa", "plt")
    lines, queries = _lines(problem.train), _lines(problem.test)
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "model")
        vw = Workspace(f"--{reduction} {problem.n_labels} {options} --quiet -f {model}")
        first = 0 if many else 1

        def learn(line: str, labels: list) -> None:
            if many:
                vw.learn(",".join(str(label) for label in labels) + line)
            else:
                for label in labels:
                    vw.learn(str(label + first) + line)

        started = clock()
        for line, labels in zip(lines, problem.train.labels, strict=True):
            learn(line, labels)
        learned = clock()
        answers = []
        for line, labels in zip(queries, problem.learned_on, strict=True):
            prediction = vw.predict(line)
            if isinstance(prediction, (list, tuple)) and "--probabilities" in options:
                # The binding hands multilabel_oaa's list back with what it held for examples before in front.
                scores = np.asarray(prediction)[-problem.n_labels :]
                answers.append(np.argsort(-scores, kind="stable")[:DEPTH].tolist())
            elif isinstance(prediction, (list, tuple)):
                answers.append([int(label) for label in prediction])
            else:
                answers.append([int(prediction) - first])
            if labels:
                learn(line, labels)
        done = clock()
        vw.finish()
        return Outcome(learned - started, done - learned, answers, os.path.getsize(model))


def naive_bayes(problem: Problem) -> Outcome:
    """river's MultinomialNB, its classifier for text; one example for each true label."""
    from river.naive_bayes import MultinomialNB

    def rows(part):
        X = part.X
        bounds = zip(X.indptr[:-1], X.indptr[1:], strict=True)
        return [dict(zip(X.indices[a:b].tolist(), X.data[a:b].tolist(), strict=True)) for a, b in bounds]

    train, test = rows(problem.train), rows(problem.test)
    model = MultinomialNB()
    started = clock()
    for row, labels in zip(train, problem.train.labels, strict=True):
        for label in labels:
            model.learn_one(row, label)
    learned = clock()
    answers = []
    for row, labels in zip(test, problem.learned_on, strict=True):
        chances = model.predict_proba_one(row)
        answers.append(sorted(chances, key=chances.get, reverse=True)[:DEPTH])
        for label in labels:
            model.learn_one(row, label)
    return Outcome(learned - started, clock() - learned, answers)


def sgd(problem: Problem) -> Outcome:
    """scikit-learn's SGDClassifier by partial_fit, batches of 1,000 (of one where it learns on), one pass; for several
    labels in a MultiOutputClassifier."""
    from sklearn.linear_model import SGDClassifier
    from sklearn.multioutput import MultiOutputClassifier
    from sklearn.preprocessing import MultiLabelBinarizer

    classes = np.arange(problem.n_labels)
    X, labels = problem.train.X, problem.train.labels
    single = problem.single
    model = SGDClassifier(loss="log_loss", random_state=0)
    model = model if single else MultiOutputClassifier(model)
    binarize = MultiLabelBinarizer(classes=classes).fit([[]])

    def learn(rows, own: list) -> None:
        if single:
            model.partial_fit(rows, [label[0] for label in own], classes=classes)
        else:
            model.partial_fit(rows, binarize.transform(own), classes=[[0, 1]] * problem.n_labels)

    started = clock()
    for at in range(0, X.shape[0], 1000):
        learn(X[at : at + 1000], labels[at : at + 1000])
    learned = clock()
    answers = []
    step = 1 if problem.on else 1000
    for at in range(0, problem.test.X.shape[0], step):
        own = problem.test.X[at : at + step]
        if single:
            answers += best(model.decision_function(own))
        else:
            answers += best(np.column_stack([one.decision_function(own) for one in model.estimators_]))
        if problem.learned_on[at]:
            learn(own, problem.learned_on[at : at + 1])
    return Outcome(learned - started, clock() - learned, answers)

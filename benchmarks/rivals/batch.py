"""Rivals that are fitted on the whole training part."""

from __future__ import annotations

import os
import tempfile
import time

import numpy as np
import scipy.sparse as sp

from benchmarks.rivals.instances import DEPTH, Outcome, Problem, best

clock = time.process_time


def _weighted(problem: Problem):
    """Both parts with tf-idf weights of the training part, of length 1."""
    from sklearn.feature_extraction.text import TfidfTransformer

    weights = TfidfTransformer().fit(problem.train.X)
    return weights.transform(problem.train.X), weights.transform(problem.test.X)


def svc(problem: Problem) -> Outcome:
    """LinearSVC with C = 1 on tf-idf, one-versus-rest."""
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import MultiLabelBinarizer
    from sklearn.svm import LinearSVC

    started = clock()
    train, test = _weighted(problem)
    if problem.single:
        model = LinearSVC().fit(train, [own[0] for own in problem.train.labels])
        names = model.classes_
    else:
        binarize = MultiLabelBinarizer().fit(problem.train.labels)
        model = OneVsRestClassifier(LinearSVC()).fit(train, binarize.transform(problem.train.labels))
        names = binarize.classes_
    learned = clock()
    answers = []
    for at in range(0, test.shape[0], 1000):
        answers += [[int(names[i]) for i in row] for row in best(model.decision_function(test[at : at + 1000]))]
    return Outcome(learned - started, clock() - learned, answers)


def fasttext(problem: Problem) -> Outcome:
    """fastText as its tutorial has it (25 epochs; lr 1 and softmax for one label, lr .5 and ova for many), words only,
    one thread. It reads text: parsing is part of its time."""
    import fasttext as library

    def words(X, i):
        return " ".join(map(str, X.indices[X.indptr[i] : X.indptr[i + 1]]))

    with tempfile.TemporaryDirectory() as folder:
        path, model_path = os.path.join(folder, "train.txt"), os.path.join(folder, "model.bin")
        with open(path, "w") as file:
            for i, own in enumerate(problem.train.labels):
                file.write(" ".join(f"__label__{label}" for label in own) + f" {words(problem.train.X, i)}\n")
        chosen = {"lr": 1.0, "loss": "softmax"} if problem.single else {"lr": 0.5, "loss": "ova"}
        started = clock()
        model = library.train_supervised(path, epoch=25, thread=1, verbose=0, **chosen)
        learned = clock()
        answers = []
        for i in range(problem.test.X.shape[0]):
            # The method below predict(), which asks numpy for what numpy 2 refuses.
            pairs = model.f.predict(words(problem.test.X, i) + "\n", DEPTH, 0.0, "strict")
            answers.append([int(name.removeprefix("__label__")) for _, name in pairs])
        done = clock()
        model.save_model(model_path)
        return Outcome(learned - started, done - learned, answers, os.path.getsize(model_path))


def omikuji(problem: Problem) -> Outcome:
    """omikuji (Parabel by its defaults) on tf-idf, one thread."""
    import omikuji as library

    train, test = _weighted(problem)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "train.txt")
        with open(path, "w") as file:
            file.write(f"{train.shape[0]} {train.shape[1]} {problem.n_labels}\n")
            for i, own in enumerate(problem.train.labels):
                span = slice(train.indptr[i], train.indptr[i + 1])
                order = np.argsort(train.indices[span])
                ids, values = train.indices[span][order], train.data[span][order]
                pairs = " ".join(f"{f}:{v:.6g}" for f, v in zip(ids, values, strict=True))
                file.write(",".join(map(str, sorted(own))) + f" {pairs}\n")
        started = clock()
        model = library.Model.train_on_data(path, library.Model.default_hyper_param(), n_threads=1)
        learned = clock()
        answers = []
        for i in range(test.shape[0]):
            span = slice(test.indptr[i], test.indptr[i + 1])
            order = np.argsort(test.indices[span])
            pairs = list(zip(test.indices[span][order].tolist(), test.data[span][order].tolist(), strict=True))
            answers.append([label for label, _ in model.predict(pairs, top_k=DEPTH)])
        done = clock()
        model.save(os.path.join(folder, "model"))
        size = sum(entry.stat().st_size for entry in os.scandir(os.path.join(folder, "model")))
        return Outcome(learned - started, done - learned, answers, size)


def neighbours(problem: Problem, k: int = 20) -> Outcome:
    """A vote of the 20 nearest training instances by cosine of tf-idf, weighted by the squared similarity."""
    started = clock()
    train, test = _weighted(problem)
    columns = sp.csr_matrix(train.T)
    learned = clock()
    answers = []
    for at in range(0, test.shape[0], 200):
        near = sp.csr_matrix(test[at : at + 200] @ columns)
        for i in range(near.shape[0]):
            places, likeness = (part[near.indptr[i] : near.indptr[i + 1]] for part in (near.indices, near.data))
            if len(places) > k:
                kept = np.argpartition(-likeness, k - 1)[:k]
                places, likeness = places[kept], likeness[kept]
            votes: dict = {}
            for place, weight in zip(places.tolist(), likeness.tolist(), strict=True):
                for label in problem.train.labels[place]:
                    votes[label] = votes.get(label, 0.0) + weight * weight
            answers.append(sorted(votes, key=votes.get, reverse=True)[:DEPTH])
    return Outcome(learned - started, clock() - learned, answers)

"""Decoders from an embedding to labels: the linear map that minimises a loss, by stochastic gradient descent.

Step 6 of algorithm 3 of Mineiro and Karampatziakis (2015). The paper leaves out what decides the quality: the
embedding is whitened first; the result is the average of the last few hundred iterates; a held-out part of the data
gives the number of epochs, and then everything is fitted again with that number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound_core.methods.training.matrices import Csr
from abound_core.methods.training.progress import Progress, subrange

Singles = npt.NDArray[np.float32]
Loss = Literal["softmax", "logistic"]

BATCH = 500
MOMENTUM = 0.9
DECAY = 0.97  # factor on the step per epoch

AVERAGED = 1_000  # iterates in the average; later ones weigh more

PATIENCE = 3  # epochs without a better held-out loss before the fit stops

HELD_OUT = 0.1

STEPS = {"softmax": 400.0, "logistic": 40.0}
"""Step size for a batch of ``BATCH``, to be divided by the number of inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientDescent:
    """A fit by stochastic gradient descent.

    ``softmax`` is multinomial (several labels of an instance share its weight); ``logistic`` fits each label
    separately.
    """

    loss: Loss
    epochs: int

    def fit(self, H: Singles, Y: Csr, rng: np.random.Generator, progress: Progress) -> Singles:
        """Return the map Q, shape (m, L), for whitened inputs of shape (n, m) whose last column is ones.

        Costs 4 n m L operations per epoch, and memory for 4 m L numbers and two blocks of 500 L.
        """
        n = H.shape[0]
        epochs = self.epochs
        if n >= 20:
            order = rng.permutation(n)
            held, kept = np.sort(order[: int(HELD_OUT * n)]), np.sort(order[int(HELD_OUT * n) :])
            _, epochs = self._descend(H[kept], Y[kept], rng, subrange(progress, 0.0, 0.5), (H[held], Y[held]))
        return self._descend(H, Y, rng, subrange(progress, 0.5, 1.0), None, epochs)[0]

    def _descend(
        self,
        H: Singles,
        Y: Csr,
        rng: np.random.Generator,
        progress: Progress,
        held: tuple[Singles, Csr] | None,
        epochs: int | None = None,
    ) -> tuple[Singles, int]:
        """Return the map, and the number of epochs with the best loss on ``held``."""
        n, m = H.shape
        epochs = epochs or self.epochs
        size = min(BATCH, max(16, n // 100))
        step = STEPS[self.loss] / m * size / BATCH
        Q = self._start(Y, m)
        speed, mean = np.zeros_like(Q), Q.copy()
        best, best_epoch, updates = np.inf, 1, 0
        for epoch in range(epochs):
            order = rng.permutation(n)
            for first in range(0, n, size):
                progress("decoder", (epoch + first / n) / epochs)
                rows = order[first : first + size]
                inputs = H[rows]
                errors = self._errors(inputs @ Q, Y[rows])
                speed *= MOMENTUM
                speed -= np.float32(step * DECAY**epoch / len(rows)) * (inputs.T @ errors)
                Q += speed
                updates += 1
                mean += np.float32(max(1 / AVERAGED, 1 / updates)) * (Q - mean)
            if held is not None:
                loss = self._loss_of(mean, *held, progress, (epoch + 1) / epochs)
                if loss < best:
                    best, best_epoch = loss, epoch + 1
                elif epoch + 1 - best_epoch >= PATIENCE:
                    break
        return mean, best_epoch

    def _start(self, Y: Csr, m: int) -> Singles:
        """Return zero weights, with biases set to the share of instances that have each label."""
        Q = np.zeros((m, Y.shape[1]), np.float32)
        shares = (np.bincount(Y.indices, minlength=Y.shape[1]) + 0.5) / (Y.shape[0] + 1.0)
        Q[-1] = np.log(shares) if self.loss == "softmax" else np.log(shares / (1.0 - np.minimum(shares, 0.999)))
        return Q

    def _errors(self, scores: Singles, Y: Csr) -> Singles:
        """Replace the scores by the derivative of the loss with respect to them, in place."""
        if self.loss == "softmax":
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=1, keepdims=True)
        else:
            np.negative(scores, out=scores)
            np.clip(scores, -80.0, 80.0, out=scores)
            np.exp(scores, out=scores)
            scores += 1.0
            np.reciprocal(scores, out=scores)
        rows, weights = _weights(Y, self.loss)
        scores[rows, Y.indices] -= weights
        return scores

    def _loss_of(self, Q: Singles, H: Singles, Y: Csr, progress: Progress, done: float) -> float:
        total = 0.0
        for first in range(0, H.shape[0], BATCH):
            progress("decoder", done)
            part_of_Y = sparse.csr_matrix(Y[first : first + BATCH])
            scores = (H[first : first + BATCH] @ Q).astype(np.float64)
            rows, weights = _weights(part_of_Y, self.loss)
            if self.loss == "softmax":
                top = scores.max(axis=1)
                total += float(np.sum(np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top))
            else:
                total += float(np.logaddexp(0.0, scores).sum())
            total -= float(np.dot(scores[rows, part_of_Y.indices], weights))
        return total / max(len(H), 1)


def _weights(Y: Csr, loss: Loss) -> tuple[npt.NDArray[np.int64], Singles]:
    """Return the row and the weight of each asserted label. Those of an instance sum to 1 (softmax), or are 1 each."""
    sizes = np.diff(Y.indptr)
    rows = np.repeat(np.arange(Y.shape[0]), sizes)
    if loss == "logistic":
        return rows, np.ones(len(rows), np.float32)
    return rows, (1.0 / sizes[rows]).astype(np.float32)

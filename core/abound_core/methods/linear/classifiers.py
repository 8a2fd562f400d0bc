"""Linear classifiers of one class against the rest: perceptrons, committees of them, support vector machines.

These are the baselines of Madani, Connor and Greiner (JMLR 2009), section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from abound_core.methods.linear.perceptron_kernels import learn_perceptron
from abound_core.methods.linear.svm_kernels import fit_svm
from abound_core.methods.training import param_checks
from abound_core.methods.training.matrices import Csr

Kind = Literal["perceptron", "committee", "svm"]
KINDS = ("perceptron", "committee", "svm")
Floats = npt.NDArray[np.float64]

MOST_PASSES = 200
TOLERANCE = 0.01
"""Of the gradients of a support vector machine. The ranking does not change with less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The parameters of the classifier of each class.

    Attributes
    ----------
    kind : ``perceptron`` | ``committee`` | ``svm``
        Kind of classifier: a perceptron; a committee, which is several perceptrons averaged into one classifier, whose
        weights begin at random in [-1, 1] at their first update; a support vector machine with squared hinge loss.
    C : float
        Cost of an error, for the support vector machine.
    members : int
        Perceptrons in a committee.
    patience : int
        Passes without improvement: a perceptron stops after this many in a row without fewer errors, and after
        ``MOST_PASSES``. Errors are counted during a pass; the paper counts them again at its end, which costs
        as much as the pass.
    """

    kind: Kind = "svm"
    C: float = 1.0
    members: int = 10
    patience: int = 5

    def __post_init__(self) -> None:
        param_checks.choice("kind", self.kind, KINDS)
        param_checks.number("C", self.C, 1e-9, 1e9)
        param_checks.whole("members", self.members, 1, 10_000)
        param_checks.whole("patience", self.patience, 1, 1_000)

    def fit(self, X: Csr, positive: npt.NDArray[np.bool_], rng: np.random.Generator) -> Floats:
        """Return weights of shape (d + 1,) with the bias last: score = x w + b, > 0 for the class."""
        d = X.shape[1]
        if positive.all() or not positive.any():
            return np.append(np.zeros(d), 1.0 if positive.all() else -1.0)
        if self.kind == "svm":
            return svm_weights(X, positive, self.C, rng)
        rows = (X.indptr, X.indices, X.data)
        total = np.zeros(d)
        members = self.members if self.kind == "committee" else 1
        for _ in range(members):
            weights = np.zeros(d)
            initial = rng.uniform(-1.0, 1.0, d) if self.kind == "committee" else np.zeros(d)
            learn_perceptron(rows, positive, rng.permutation(X.shape[0]), weights, initial, self.patience, MOST_PASSES)
            total += weights
        return np.append(total / members, 0.0)


def svm_weights(X: Csr, positive: npt.NDArray[np.bool_], cost: float, rng: np.random.Generator) -> Floats:
    """Return the weights of a support vector machine, shape (d + 1,), with the bias last."""
    weights, state = np.zeros(X.shape[1] + 1), rng.integers(1, 2**63, 1).astype(np.uint64)
    fit_svm((X.indptr, X.indices, X.data), positive, cost, TOLERANCE, MOST_PASSES, weights, state)
    return weights

"""Top-down classification in a hierarchy: a linear classifier for each child of a node, trained against its siblings.

Madani, Connor and Greiner (JMLR 2009), section 5 ("top-down"): a sigmoid turns a score into a probability,
probabilities are multiplied along the path, and a path ends below ``p_min``. A label with labels below it has itself
as an additional child. Data without a hierarchy get one by grouping similar labels.

Differences from the paper: all children of a node share one sigmoid, where figure 7 has a probability for each
classifier (with a sigmoid for each of them R@1 on RCV1-v2 was 93.8 in place of 95.2). A path that ends at an inner
class gives no label, unless that class is an additional child of itself; the paper keeps every class of which no
child is left. ``p_min`` is a parameter, and is not chosen on the test part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed
from scipy import sparse

from abound_core.errors import Corrupted
from abound_core.measures import Rankings
from abound_core.methods.embeddings.cluster_ensemble import narrowed
from abound_core.methods.linear import classifiers
from abound_core.methods.training import array_checks, hierarchy, param_checks
from abound_core.methods.training.matrices import Csr, Hierarchy, Matrices
from abound_core.methods.training.progress import Progress, monotonic, subrange
from abound_core.methods.training.rankings import dense_top, in_blocks

COST = "fit O(branches nnz passes depth); rank O(l branches nodes reached); memory up to 8 depth nnz bytes"
USE = "Thousands of labels in a hierarchy: with 6,000, an eighth of the fitting time of one_vs_rest; less accurate."

DEFAULT_SIGMOID = (2.0, 0.0)  # slope and offset of 1 / (1 + exp(-2 s)), for a node for which none is fitted

HELD_OUT = 0.2

MIN_SIGMOID_INSTANCES = 20  # of a node for a fitted sigmoid


MOST_NODES = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(classifiers.Params):
    """The parameters of the classifiers, and those of the hierarchy.

    Attributes
    ----------
    trials : int
        Splits that fit the sigmoid of a node, each into 80 % and 20 % of the instances; 0: the fixed one.
    p_min : float
        A path ends where its probability is below this.
    branches : int
        Children of a node, for data without a hierarchy of their own.
    """

    trials: int = 1
    p_min: float = 0.05
    branches: int = 32

    def __post_init__(self) -> None:
        classifiers.Params.__post_init__(self)
        param_checks.whole("trials", self.trials, 0, 100)
        param_checks.number("p_min", self.p_min, 0.0, 1.0)
        param_checks.whole("branches", self.branches, 2, 10_000)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    place: int  # number of the node; the root has the highest
    # shape (c,); numbers of the children; the node's own number for the label that it is itself
    children: npt.NDArray[np.int32]
    features: npt.NDArray[np.int32]  # shape (f,); columns that occur below the node, ascending
    weights: npt.NDArray[np.float32]  # shape (f + 1, c)
    sigmoid: tuple[float, float]  # slope and offset

    def probabilities(self, X: Csr) -> npt.NDArray[np.float64]:
        """Return the probability of each child, given the node; shape (n, c). An only child has 1."""
        if len(self.children) == 1:
            return np.ones((X.shape[0], 1))
        scores = narrowed(X, self.features) @ self.weights[:-1] + self.weights[-1]
        return sigmoid_probability(scores.astype(np.float64), self.sigmoid)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The nodes that have children, each before the nodes below it."""

    n_labels: int
    n_nodes: int
    p_min: float
    nodes: tuple[Node, ...]

    def rank(self, X: Csr, k: int) -> Rankings:
        """Rank the best ``k`` labels of each row by the probability of their best path, if at least ``p_min``."""

        def block(first: int, end: int) -> Rankings:
            return dense_top(self._chances(X[first:end]), k)

        return in_blocks(X.shape[0], max(16, 2**22 // (self.n_nodes + self.n_labels + 1)), block)

    def _chances(self, X: Csr) -> npt.NDArray[np.float64]:
        reached = np.zeros((self.n_nodes + 1, X.shape[0]))
        reached[-1] = 1.0
        labels = np.full((X.shape[0], self.n_labels), -np.inf)
        leaves = set(range(self.n_labels)) - {node.place for node in self.nodes}
        for node in self.nodes:
            rows = np.flatnonzero((reached[node.place] >= self.p_min) & (reached[node.place] > 0.0))
            if not len(rows):
                continue
            chances = node.probabilities(X[rows]) * reached[node.place, rows][:, None]
            for place, child in enumerate(node.children.tolist()):
                if child != node.place:
                    reached[child, rows] = np.maximum(reached[child, rows], chances[:, place])
                if child == node.place or child in leaves:
                    kept = np.where(chances[:, place] >= self.p_min, chances[:, place], -np.inf)
                    labels[rows, child] = np.maximum(labels[rows, child], kept)
        return labels

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        counts = [(node.place, len(node.children), len(node.features)) for node in self.nodes]
        return {
            "sizes": np.array([self.n_labels, self.n_nodes], np.int64),
            "p_min": np.array(self.p_min),
            "nodes": np.array(counts, np.int64).reshape(-1, 3),
            "sigmoids": np.array([node.sigmoid for node in self.nodes], np.float64).reshape(-1, 2),
            "children": np.concatenate([np.zeros(0, np.int32), *(node.children for node in self.nodes)]),
            "features": np.concatenate([np.zeros(0, np.int32), *(node.features for node in self.nodes)]),
            "weights": np.concatenate([np.zeros(0, np.float32), *(node.weights.ravel() for node in self.nodes)]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], d: int, n_labels: int) -> Model:
        n_stored, n_nodes = array_checks.require_array(arrays, "sizes", np.int64, 2).tolist()
        if n_stored != n_labels or not n_labels <= n_nodes <= MOST_NODES:
            raise Corrupted("the number of nodes of the hierarchy does not match the labels")
        sizes = array_checks.require_array(arrays, "nodes", np.int64, None, 3, low=0, high=MOST_NODES)
        sigmoids = array_checks.require_array(arrays, "sigmoids", np.float64, len(sizes), 2)
        whole = np.array((sizes[:, 1].sum(), sizes[:, 2].sum(), (sizes[:, 1] * (sizes[:, 2] + 1)).sum()))
        array_checks.require_array(arrays, "children", np.int32, int(whole[0]), low=0, high=n_nodes - 1)
        array_checks.require_array(arrays, "features", np.int32, int(whole[1]), low=0, high=d - 1)
        array_checks.require_array(arrays, "weights", np.float32, int(whole[2]))
        nodes, at = [], np.zeros(3, np.int64)
        for (place, c, f), sigmoid in zip(sizes.tolist(), sigmoids.tolist(), strict=True):
            ends = at + np.array((c, f, (f + 1) * c))
            children, features, weights = (
                arrays[name][start:end]
                for name, start, end in zip(("children", "features", "weights"), at, ends, strict=True)
            )
            array_checks.require_ascending("features", features)
            if not c or place > n_nodes or (n_labels <= place and place in children):
                raise Corrupted("a node of the hierarchy has no children, or an invalid number")
            nodes.append(Node(place, children, features, weights.reshape(f + 1, c), (sigmoid[0], sigmoid[1])))
            at = ends
        return cls(n_labels, n_nodes, float(array_checks.require_array(arrays, "p_min", np.float64)), tuple(nodes))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Layout:
    """The instances in a hierarchy."""

    n_nodes: int  # also the number of the root
    # carries, own: shapes (n, n_nodes), (n, L); instances below each node; instances of each label itself
    carries: sparse.csc_matrix
    own: sparse.csc_matrix
    below: sparse.csc_matrix  # shape (n_nodes, n_nodes); the children of each node
    tops: npt.NDArray[np.int64]  # nodes with instances and without a parent
    inner: list[int]  # the root and the nodes with instances that have children, each before the nodes below it

    @classmethod
    def of(cls, Y: Csr, tree: Hierarchy) -> Layout:
        """Place the instances with the labels ``Y`` in a hierarchy. Raises ValueError if a node is above itself."""
        n_nodes = tree.parents.shape[0]
        above = hierarchy.ancestors(tree)
        carries = sparse.csc_matrix(sparse.csr_matrix(Y.astype(np.int32) @ above[: Y.shape[1]]))
        below = sparse.csc_matrix(tree.parents)
        seen = np.diff(carries.indptr) > 0
        order = np.argsort(np.diff(above.indptr), kind="stable")
        inner = [n_nodes, *(int(node) for node in order if seen[node] and below.indptr[node + 1] > below.indptr[node])]
        tops = np.flatnonzero((np.diff(tree.parents.indptr) == 0) & seen)
        return cls(n_nodes=n_nodes, carries=carries, own=sparse.csc_matrix(Y), below=below, tops=tops, inner=inner)

    def rows(self, place: int) -> npt.NDArray[np.int64]:
        if place == self.n_nodes:
            return np.arange(self.carries.shape[0])
        return np.sort(_column(self.carries, place))

    def children(self, place: int) -> npt.NDArray[np.int64]:
        """Return the children of a node that have instances, and the node itself if it is a label with instances."""
        if place == self.n_nodes:
            return self.tops
        under = _column(self.below, place)
        under = under[np.diff(self.carries.indptr)[under] > 0]
        itself = place < self.own.shape[1] and len(_column(self.own, place)) > 0
        return np.append(under, place) if itself else under

    def member(self, place: int, child: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return np.isin(rows, _column(self.own if child == place else self.carries, child), assume_unique=True)


def _column(matrix: sparse.csc_matrix, column: int) -> npt.NDArray[np.int64]:
    return matrix.indices[matrix.indptr[column] : matrix.indptr[column + 1]].astype(np.int64)


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    """Fit every node separately, on as many threads as ``joblib.parallel_config`` sets.

    Raises ValueError if some node of the hierarchy is above itself.
    """
    progress = monotonic(progress)
    progress("hierarchy", 0.0)
    tree = data.hierarchy or hierarchy.group_labels(data, params.branches, rng, subrange(progress, 0.0, 0.05))
    layout = Layout.of(data.Y, tree)
    inner = layout.inner
    seeds = rng.integers(0, 2**63, len(inner))

    def one(number: int) -> Node:
        progress("classifiers", 0.05 + 0.95 * number / len(inner))
        place = inner[number]
        children, rows = layout.children(place), layout.rows(place)
        members = [layout.member(place, child, rows) for child in children.tolist()]
        tell = subrange(progress, 0.05 + 0.95 * number / len(inner), 1.0)
        return _node(data.X[rows], place, children, members, params, np.random.default_rng(seeds[number]), tell)

    nodes = Parallel(require="sharedmem")(delayed(one)(number) for number in range(len(inner)))
    return Model(data.Y.shape[1], layout.n_nodes, params.p_min, tuple(nodes))


def _node(
    X: Csr,
    place: int,
    children: npt.NDArray[Any],
    members: list[npt.NDArray[np.bool_]],
    params: Params,
    rng: np.random.Generator,
    progress: Progress,
) -> Node:
    """Fit the classifiers of a node's children, and the sigmoid that they share."""
    features = np.unique(X.indices).astype(np.int32) if len(children) > 1 else np.zeros(0, np.int32)
    X = narrowed(X, features)
    ids = children.astype(np.int32)
    if len(children) == 1:
        return Node(place, ids, features, np.zeros((1, 1), np.float32), DEFAULT_SIGMOID)
    weights = np.empty((len(features) + 1, len(members)), np.float32)
    for number, member in enumerate(members):
        progress("classifiers", 0.0)
        weights[:, number] = params.fit(X, member, rng)
    n = X.shape[0]
    if n < MIN_SIGMOID_INSTANCES or not params.trials:
        return Node(place, ids, features, weights, DEFAULT_SIGMOID)
    scores, truth = [], []
    for _ in range(params.trials):
        order = rng.permutation(n)
        held, kept = order[: int(HELD_OUT * n)], np.sort(order[int(HELD_OUT * n) :])
        known, unseen = X[kept], X[held]
        for member in members:
            progress("classifiers", 0.0)
            fitted = params.fit(known, member[kept], rng)
            scores.append(unseen @ fitted[:-1] + fitted[-1])
            truth.append(member[held])
    return Node(place, ids, features, weights, fitted_sigmoid(np.concatenate(scores), np.concatenate(truth)))


def sigmoid_probability(scores: npt.NDArray[np.float64], sigmoid: tuple[float, float]) -> npt.NDArray[np.float64]:
    result: npt.NDArray[np.float64] = 1.0 / (1.0 + np.exp(-np.clip(sigmoid[0] * scores + sigmoid[1], -500.0, 500.0)))
    return result


def fitted_sigmoid(scores: npt.NDArray[np.float64], truth: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Return slope and offset of the sigmoid with the maximum likelihood (Platt, 1999), by Newton's method.

    As in Platt's paper, targets are moved away from 0 and 1, so that separable scores have a finite solution.
    """
    hits = int(truth.sum())
    if hits in (0, len(truth)):
        return DEFAULT_SIGMOID
    target = np.where(truth, (hits + 1.0) / (hits + 2.0), 1.0 / (len(truth) - hits + 2.0))
    inputs = np.stack((scores, np.ones(len(scores))))
    theta = np.array(DEFAULT_SIGMOID)
    for _ in range(50):
        p = sigmoid_probability(scores, (theta[0], theta[1]))
        slope = inputs @ (target - p)
        curvature = (inputs * (p * (1.0 - p))) @ inputs.T + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, slope)
        theta = theta + step * min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-12))
        if np.abs(step).max() < 1e-8:
            break
    return (float(theta[0]), float(theta[1])) if theta[0] > 0 else DEFAULT_SIGMOID

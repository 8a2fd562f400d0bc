"""XR-Linear: trees of labels with a sparse linear classifier for each child of a node, searched with a beam.

Prabhu, Kag, Harsola, Agrawal and Varma, "Parabel" (WWW 2018); Yu, Zhong, Zhang, Chang and Dhillon, "PECOS" (JMLR 2022).
Labels are grouped by the mean of their instances, by balanced 2-means. A classifier is a support vector machine with
squared hinge loss, trained against the instances of its siblings. A score s is the log chance -max(0, 1 - s)^2; logs
are added along the path, and chances averaged over the trees, which begin with other centres.

Differences from the papers: a node keeps its heaviest weights, where Parabel drops those below 0.1.
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
from abound_core.methods.linear.classifiers import svm_weights
from abound_core.methods.linear.top_down import Layout
from abound_core.methods.linear.xr_linear_kernels import rank_rows
from abound_core.methods.training import array_checks, hierarchy, param_checks
from abound_core.methods.training.matrices import Csr, Matrices
from abound_core.methods.training.progress import Progress, monotonic, subrange
from abound_core.methods.training.rankings import in_blocks, of_padded

COST = "fit O(trees (leaf + depth) nnz passes); rank O(trees beam depth l); memory 32 trees weights L / leaf bytes"
USE = "Thousands of labels, one or several an instance, where a fit may take minutes; an answer looks at few labels."

BLOCK = 1000  # rows of one call of the kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The parameters of the trees and their classifiers.

    Attributes
    ----------
    trees : int
        Number of trees; their chances are averaged.
    leaf : int
        Most labels of a node; more are divided into two halves.
    beam : int
        Best nodes of a level that are searched, in each tree.
    C : float
        Cost of an error.
    weights : int
        Heaviest weights that a node keeps, of all its children, and the biases.
    """

    trees: int = 3
    leaf: int = 100
    beam: int = 10
    C: float = 1.0
    weights: int = 30_000

    def __post_init__(self) -> None:
        param_checks.whole("trees", self.trees, 1, 100)
        param_checks.whole("leaf", self.leaf, 2, 10_000)
        param_checks.whole("beam", self.beam, 1, 1000)
        param_checks.number("C", self.C, 1e-9, 1e9)
        param_checks.whole("weights", self.weights, 1, 10_000_000)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Model:
    """The nodes of all trees; ``rank_rows`` says what the arrays are."""

    beam: int
    n_labels: int
    d: int
    roots: npt.NDArray[np.int64]
    feature_starts: npt.NDArray[Any]
    features: npt.NDArray[np.int32]
    child_starts: npt.NDArray[Any]
    targets: npt.NDArray[np.int32]
    weights: Csr  # float32, shape (places of features, children)

    def rank(self, X: Csr, k: int) -> Rankings:
        """Rank the best ``k`` of the labels that the beams reach."""
        starts, slots = self.weights.indptr, self.weights.indices
        tree = (self.feature_starts, self.features, self.child_starts, starts, slots, self.weights.data)

        def block(first: int, end: int) -> Rankings:
            part, shape = X[first:end], (end - first, min(k, self.n_labels))
            ids, scores = np.empty(shape, np.int32), np.empty(shape)
            rows = (part.indptr, part.indices, part.data)
            counts = rank_rows(rows, self.d, self.roots, tree, self.targets, self.n_labels, self.beam, ids, scores)
            return of_padded(ids, scores, counts)

        return in_blocks(X.shape[0], BLOCK, block)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {
            "beam": np.array(self.beam),
            "roots": self.roots,
            "feature_starts": self.feature_starts,
            "features": self.features,
            "child_starts": self.child_starts,
            "targets": self.targets,
            "starts": self.weights.indptr.astype(np.int64),
            "slots": self.weights.indices.astype(np.int32),
            "weights": self.weights.data,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], d: int, n_labels: int) -> Model:
        roots = array_checks.require_array(arrays, "roots", np.int64, None, low=0)
        ends = array_checks.require_rows(arrays, "feature_starts", "features", None, (None, d + 1))
        n_nodes, n_places = ends.shape[0], ends.nnz
        children = array_checks.require_rows(arrays, "child_starts", "targets", None, (n_nodes, n_labels + n_nodes))
        weights = array_checks.require_rows(arrays, "starts", "slots", "weights", (n_places, children.nnz))
        node_of_child = np.repeat(np.arange(n_nodes), np.diff(children.indptr))
        node_of_place = np.repeat(np.arange(n_nodes), np.diff(ends.indptr))
        node_of_weight = np.repeat(node_of_place, np.diff(weights.indptr))
        below = children.indices - n_labels
        # A node is below one with a smaller number only, so that every search ends.
        if (
            not len(roots)
            or roots.max() >= n_nodes
            or (below[below >= 0] <= node_of_child[below >= 0]).any()
            or (node_of_child[weights.indices] != node_of_weight).any()
        ):
            raise Corrupted("the nodes of the trees do not fit together")
        ascending = np.diff(ends.indices) > 0
        if not (ascending | (np.diff(node_of_place) > 0)).all():
            raise Corrupted("the features of a node do not ascend")
        return cls(
            beam=int(array_checks.require_array(arrays, "beam", np.int64, low=1, high=1000)),
            n_labels=n_labels,
            d=d,
            roots=roots,
            feature_starts=ends.indptr,
            features=ends.indices,
            child_starts=children.indptr,
            targets=children.indices,
            weights=weights,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """The classifiers of one node: the weights of pairs of a child and a feature."""

    children: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]  # the place of a child in ``children``
    features: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    """Fit every node separately, on as many threads as ``joblib.parallel_config`` sets."""
    progress = monotonic(progress)
    X, (d, n_labels) = data.X, (data.X.shape[1], data.Y.shape[1])
    roots: list[int] = []
    nodes: list[Node] = []
    numbers: list[dict[int, int]] = []
    for number in range(params.trees):
        told = subrange(progress, number / params.trees, (number + 1) / params.trees)
        layout = Layout.of(data.Y, hierarchy.group_labels(data, params.leaf, rng, told, halves=True))
        seeds = rng.integers(0, 2**63, len(layout.inner))

        def one(at: int, layout: Layout = layout, seeds: Any = seeds, told: Progress = told) -> Node:
            place = layout.inner[at]
            done = subrange(told, at / len(layout.inner), 1.0)
            return _node(X, layout, place, params, np.random.default_rng(seeds[at]), done)

        roots.append(len(nodes))
        numbers.append({place: len(nodes) + at for at, place in enumerate(layout.inner)})
        nodes += Parallel(require="sharedmem")(delayed(one)(at) for at in range(len(layout.inner)))
    return _packed(nodes, roots, numbers, params, d, n_labels)


def _node(X: Csr, layout: Layout, place: int, params: Params, rng: np.random.Generator, progress: Progress) -> Node:
    """Fit the classifiers of a node's children. The bias of a classifier is its weight of the feature d."""
    rows, children = layout.rows(place), layout.children(place)
    own = X[rows]
    features = np.unique(own.indices).astype(np.int32)
    own = narrowed(own, features)
    columns = np.append(features, np.int32(X.shape[1]))
    parts = []
    for slot, child in enumerate(children.tolist()):
        progress("classifiers", 0.0)
        member = layout.member(place, child, rows)
        weights = np.append(np.zeros(len(features)), 1.0) if member.all() else svm_weights(own, member, params.C, rng)
        used = np.append(np.flatnonzero(weights[:-1]), len(features))
        parts.append((np.full(len(used), slot), columns[used], weights[used].astype(np.float32)))
    slots, ids, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    sizes = np.where(ids == X.shape[1], np.inf, np.abs(values))  # biases stay
    kept = np.sort(np.argsort(-sizes, kind="stable")[: params.weights + len(children)])
    return Node(children, slots[kept], ids[kept], values[kept])


def _packed(
    nodes: list[Node], roots: list[int], numbers: list[dict[int, int]], params: Params, d: int, n_labels: int
) -> Model:
    """Join the nodes; ``numbers`` are those of the nodes of each tree, by their place in its hierarchy."""
    tree = np.repeat(np.arange(len(roots)), np.diff([*roots, len(nodes)]))
    targets = [
        [child if child < n_labels else n_labels + numbers[own][child] for child in node.children.tolist()]
        for own, node in zip(tree, nodes, strict=True)
    ]
    features, places = zip(*(np.unique(node.features, return_inverse=True) for node in nodes), strict=True)
    feature_starts = np.cumsum([0, *map(len, features)])
    child_starts = np.cumsum([0, *map(len, targets)])
    rows = np.concatenate([start + place for start, place in zip(feature_starts, places, strict=False)])
    slots = np.concatenate([start + node.slots for start, node in zip(child_starts, nodes, strict=False)])
    values = np.concatenate([node.weights for node in nodes])
    weights = sparse.coo_matrix((values, (rows, slots)), shape=(feature_starts[-1], child_starts[-1])).tocsr()
    weights.sort_indices()
    arrays = {
        "beam": np.array(params.beam),
        "roots": np.array(roots),
        "feature_starts": feature_starts,
        "features": np.concatenate(features),
        "child_starts": child_starts,
        "targets": np.concatenate(targets).astype(np.int32),
        "starts": weights.indptr,
        "slots": weights.indices,
        "weights": weights.data,
    }
    return Model.from_arrays(arrays, d, n_labels)

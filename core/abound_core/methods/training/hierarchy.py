"""Hierarchies of classes above the labels: read from names, or made by grouping labels with similar instances."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound_core.methods.training import clusters
from abound_core.methods.training.matrices import Csr, Hierarchy, Matrices, l2_normalise
from abound_core.methods.training.progress import Progress


def of_pairs(labels: Sequence[str], pairs: Iterable[tuple[str, str]]) -> Hierarchy:
    """Build the hierarchy given by (child, parent) names; names that are not labels become nodes above them.

    Raises ValueError if some node is above itself.
    """
    nodes = {label: place for place, label in enumerate(labels)}
    links = [(nodes.setdefault(child, len(nodes)), nodes.setdefault(parent, len(nodes))) for child, parent in pairs]
    children, parents = zip(*dict.fromkeys(links), strict=True) if links else ((), ())
    shape = (len(nodes), len(nodes))
    matrix = sparse.csr_matrix((np.ones(len(children), np.int8), (children, parents)), shape=shape)
    hierarchy = Hierarchy(parents=matrix)
    ancestors(hierarchy)
    return hierarchy


def ancestors(hierarchy: Hierarchy) -> Csr:
    """Return a matrix with 1 at (i, j) where node j is node i or above it. Raises ValueError if one is above itself."""
    parents = hierarchy.parents.astype(np.int32)
    result = sparse.csr_matrix(sparse.identity(parents.shape[0], np.int32, format="csr"))
    step = result
    for _ in range(parents.shape[0] + 1):
        step = sparse.csr_matrix(step @ parents)
        step.data[:] = 1
        if not step.nnz:
            result.data[:] = 1
            return result
        if step.diagonal().any():
            break
        result = result + step
    raise ValueError("hierarchy has a node that is above itself")


def group_labels(
    data: Matrices, branches: int, rng: np.random.Generator, progress: Progress, *, halves: bool = False
) -> Hierarchy:
    """Group labels by the mean of their instances, with at most about ``branches`` children per node.

    More labels are divided into ``branches`` groups, or with ``halves`` into two equal ones.
    """
    n_labels = data.Y.shape[1]
    means = sparse.csr_matrix(sparse.csr_matrix(data.Y.T).astype(np.float32) @ data.X)
    means.sort_indices()
    l2_normalise(means)
    children: list[int] = []
    parents: list[int] = []
    n_nodes = n_labels
    waiting: list[tuple[int, npt.NDArray[np.int64]]] = [(-1, np.arange(n_labels))]
    while waiting:
        progress("hierarchy", 0.0)
        parent, members = waiting.pop()
        groups = [np.array([member]) for member in members]
        if len(members) > branches and halves:
            groups = [members[part] for part in clusters.halves(means[members], rng, progress)]
        elif len(members) > branches:
            _, places = clusters.find_clusters(means[members], branches, rng, progress)
            groups = [members[places == place] for place in range(int(places.max()) + 1)]
            if len(groups) == 1:
                groups = np.array_split(members, branches)
        for group in groups:
            node = int(group[0])
            if len(group) > 1:
                node, n_nodes = n_nodes, n_nodes + 1
                waiting.append((node, group))
            if parent >= 0:
                children.append(node)
                parents.append(parent)
    shape = (n_nodes, n_nodes)
    return Hierarchy(parents=sparse.csr_matrix((np.ones(len(children), np.int8), (children, parents)), shape=shape))


def sibling_share(vectors: npt.NDArray[np.floating], hierarchy: Hierarchy) -> float:
    """Return the share of labels that have a parent in common with their nearest other label by cosine.

    This measures an embedding as in Mineiro and Karampatziakis (2015), section 4.3.1, over the labels that have a
    parent and a vector other than 0. Returns 0 if there are none.
    """
    lengths = np.linalg.norm(vectors, axis=1)
    n_labels = len(vectors)
    parents = sparse.csr_matrix(hierarchy.parents[:n_labels])
    able = np.flatnonzero((lengths > 0) & (np.diff(parents.indptr) > 0))
    unit = (vectors[able] / lengths[able, None]).astype(np.float32)
    hits = 0
    for first in range(0, len(able) if len(able) > 1 else 0, 1024):
        cosines = unit[first : first + 1024] @ unit.T
        own = np.arange(len(cosines))
        cosines[own, first + own] = -np.inf
        near = able[np.argmax(cosines, axis=1)]
        mine = parents[able[first : first + 1024]]
        hits += int(np.count_nonzero(np.asarray(mine.multiply(parents[near]).sum(axis=1))))
    return hits / max(len(able), 1)

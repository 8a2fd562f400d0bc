"""The parents of labels: a forest over class ids, and the labels at and below each one.

A depth-first walk numbers the labels. A label and all below it have consecutive numbers, so they are one slice of
``order``. The walk is repeated when it is needed and a parent has changed since: 7 ms for a
million labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from abound_core.array_spec import ArraySpec, check_arrays
from abound_core.errors import Corrupted
from abound_core.model.label_tree_kernels import walk

MAX_PATH = 100  # labels of a path; more of those nearest to the root are left out

ARRAYS = {"parents": ArraySpec(np.int32, ("classes",), -1, "classes")}
"""The array of ``LabelTree.to_arrays``: the parent of each class id, -1 without one; none if no label has a parent."""


class LabelTree:
    def __init__(self) -> None:
        self._parents = np.zeros(0, np.int32)
        self._n_parents = 0
        self.n_changes = 0  # since it was loaded
        self._walked: npt.NDArray[np.int32] | None = None  # rows: order, first, end

    def __len__(self) -> int:
        """Return the number of labels with a parent."""
        return self._n_parents

    @property
    def n_bytes(self) -> int:
        return 4 * self._parents.nbytes  # with what ``walk`` writes

    def growth_bytes(self, n_classes: int) -> int:
        """Return the bytes that the next parent may need."""
        return 18 * n_classes if n_classes > len(self._parents) else 0

    def parent(self, class_id: int) -> int:
        """Return the parent of a class, -1 without one."""
        return int(self._parents[class_id]) if 0 <= class_id < len(self._parents) else -1

    def children(self, class_id: int) -> list[int]:
        return np.flatnonzero(self._parents == class_id).tolist()

    def put(self, class_id: int, parent: int) -> None:
        """Replace the parent of a class; -1 removes it.

        A parent that would close a cycle, or has ``MAX_PATH`` labels on its path, is dropped: the class has none then.
        """
        if max(class_id, parent) >= len(self._parents):
            if parent < 0:
                return
            more = np.full(max(class_id, parent) + 1 + len(self._parents) // 8, -1, np.int32)
            more[: len(self._parents)] = self._parents
            self._parents, self._walked = more, None
        above = self.path(parent) if parent >= 0 else []
        if class_id in above or len(above) == MAX_PATH:
            parent = -1
        if parent != self._parents[class_id]:
            self._n_parents += int(parent >= 0) - int(self._parents[class_id] >= 0)
            self._parents[class_id], self._walked = parent, None
            self.n_changes += 1

    def move(self, class_id: int, into: int) -> None:
        """Give the children of a class to another one, and its parent, unless that has one."""
        if class_id >= len(self._parents):
            return
        parent = self.parent(class_id)
        self.put(class_id, -1)
        for child in self.children(class_id):
            self.put(child, into if child != into else -1)
        if self.parent(into) < 0 and parent not in (-1, into):
            self.put(into, parent)

    def below(self, class_id: int) -> npt.NDArray[np.int32]:
        """Return the ids of a class and of all below it."""
        if not (self._n_parents and 0 <= class_id < len(self._parents)):
            return np.array([class_id], np.int32)
        if self._walked is None:
            self._walked = np.empty((3, len(self._parents)), np.int32)
            walk(self._parents, *self._walked)
        order, first, end = self._walked
        below: npt.NDArray[np.int32] = order[first[class_id] : end[class_id]]
        return below

    def path(self, class_id: int) -> list[int]:
        """Return the ids from the root to a class, at most the nearest ``MAX_PATH``."""
        path = [class_id]
        while len(path) < MAX_PATH and (parent := self.parent(path[-1])) >= 0:
            path.append(parent)
        return path[::-1]

    def to_arrays(self, n_classes: int) -> dict[str, npt.NDArray[Any]]:
        if not self._n_parents:
            return {}
        parents = np.full(n_classes, -1, np.int32)
        parents[: len(self._parents)] = self._parents[:n_classes]
        return {"parents": parents}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], n_classes: int) -> LabelTree:
        found = cls()
        if arrays:
            found._parents = check_arrays("the parents", arrays, ARRAYS, classes=n_classes)["parents"].copy()
            found._n_parents = int(np.count_nonzero(found._parents >= 0))
            found._walked = np.empty((3, len(found._parents)), np.int32)
            if walk(found._parents, *found._walked) < n_classes:
                raise Corrupted("the parents of labels have a cycle")
        return found

    def digest_bytes(self, n_classes: int) -> bytes:
        """Return bytes that are the same however many labels without a parent there is room for."""
        return np.trim_zeros(self._parents[:n_classes] + np.int32(1), "b").tobytes()


def warmup() -> None:
    tree = LabelTree()
    tree.put(0, 1)
    tree.below(1)

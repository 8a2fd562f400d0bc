"""The memory of instances of a model: the newest instances with a vector and their labels.

A model with ``memory_instances`` keeps so many, and its re-ranker compares each vector with all of them. The memory is
part of the model's state. ``core/kernels/model/instance_memory.py`` has the rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from abound.core.kernels.model.instance_memory import MOST_LABELS, PAGE, WRITTEN
from abound.core.types import Offset


class InstanceMemoryArrays(NamedTuple):
    """The arrays that the kernels use; empty but for ``state`` unless the model has a memory.

    Attributes
    ----------
    vectors : int8 array, shape (places, d)
    lengths : float64 array, shape (places,)
        Their lengths.
    class_ids : int32 array, shape (places, MOST_LABELS)
        True labels in the order of the instance, then -1.
    offsets : int64 array, shape (places, 3)
        The two numbers of the log entry, and the position in it.
    state : int64 array, shape (2,)
        The number of the next instance, and the capacity of the ring; the arrays are smaller until they have grown.
    dirty : uint8 array, shape (pages,)
        1 for a page of places that changed since its last digest.
    """

    vectors: npt.NDArray[np.int8]
    lengths: npt.NDArray[np.float64]
    class_ids: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    state: npt.NDArray[np.int64]
    dirty: npt.NDArray[np.uint8]


class InstanceMemory:
    """The memory of instances; changed only by the apply kernel.

    Parameters
    ----------
    most : int
        Number of instances to keep; 0: the model has no memory.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.arrays = InstanceMemoryArrays(
            np.zeros((0, 0), np.int8),
            np.zeros(0, np.float64),
            np.zeros((0, MOST_LABELS), np.int32),
            np.zeros((0, 3), np.int64),
            np.array([0, most], np.int64),
            np.zeros(0, np.uint8),
        )
        self._hashes: dict[int, bytes] = {}

    def __len__(self) -> int:
        return min(int(self.arrays.state[WRITTEN]), self.most)

    @property
    def n_bytes(self) -> int:
        """Bytes of memory, including the reserve for growth."""
        return sum(array.nbytes for array in self.arrays[:4])

    @property
    def growth_bytes(self) -> int:
        """Bytes that the arrays need when they grow next: the old arrays may stay until they are copied."""
        n, d = self.arrays.vectors.shape
        return self._roomy(n + 1) * (d + 8 + 4 * MOST_LABELS + 24) if n < self.most else 0

    def make_room(self, d: int) -> None:
        """Grow to one more instance, of vectors of ``d`` numbers (0: not known yet); arrays may move."""
        if self.most == 0 or d == 0:
            return
        if d != self.arrays.vectors.shape[1]:
            self.arrays = self.arrays._replace(vectors=np.zeros((len(self.arrays.lengths), d), np.int8))
        vectors, lengths, class_ids, offsets, _, dirty = self.arrays
        needed = min(len(self) + 1, self.most)
        if needed > len(lengths):
            n = self._roomy(needed)
            for array, shape in ((vectors, (n, d)), (lengths, (n,)), (class_ids, (n, MOST_LABELS)), (offsets, (n, 3))):
                array.resize(shape, refcheck=False)
            dirty.resize(-(-n // PAGE), refcheck=False)

    def _roomy(self, n: int) -> int:
        """Return a number of places with a reserve of an eighth, in whole pages, or all places."""
        return min(self.most, -(-(n + n // 8) // PAGE) * PAGE)

    def resized(self, most: int) -> InstanceMemory:
        """Return a memory of another size with the newest of these instances, numbered from 0."""
        other, written, n = InstanceMemory(most), int(self.arrays.state[WRITTEN]), min(len(self), most)
        if n:
            other._load(n, *(array[np.arange(written - n, written) % self.most] for array in self.arrays[:4]))
        return other

    def offset(self, place: int) -> Offset:
        """Return the offset of the instance in a place."""
        return Offset(*self.arrays.offsets[place].tolist())

    def class_ids(self, place: int) -> list[int]:
        """Return the labels of the instance in a place."""
        return [class_id for class_id in self.arrays.class_ids[place].tolist() if class_id >= 0]

    # --- as arrays

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the state as named arrays, copies, none unless the model has a memory."""
        if self.most == 0:
            return {}
        n = len(self)
        vectors, _, class_ids, offsets, state, _ = self.arrays
        return {
            "memory/vectors": vectors[:n].copy(),
            "memory/class_ids": class_ids[:n].copy(),
            "memory/offsets": offsets[:n].copy(),
            "memory/written": state[:1].copy(),
        }

    @classmethod
    def from_arrays(cls, most: int, arrays: Mapping[str, npt.NDArray[Any]], n_classes: int, d: int) -> InstanceMemory:
        """Load the memory of a model with so many classes from the output of ``to_arrays``; vectors have ``d`` numbers.

        Raises ValueError if it is invalid.
        """
        memory = cls(most)
        if set(arrays) != set(memory.to_arrays()):
            raise ValueError(f"a memory needs the arrays {sorted(memory.to_arrays())}, not {sorted(arrays)}")
        if most == 0:
            return memory
        vectors, class_ids, offsets, written = (
            arrays[f"memory/{name}"] for name in ("vectors", "class_ids", "offsets", "written")
        )
        if written.dtype != np.int64 or written.shape != (1,) or not 0 <= int(written[0]) < 2**62:
            raise ValueError("the number of remembered instances is invalid")
        n = min(int(written[0]), most)
        if vectors.dtype != np.int8 or vectors.shape != (n, d if n else vectors.shape[-1]):
            raise ValueError("the remembered vectors do not fit their number or the dimension of the model's vectors")
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.int32))
        if not np.all(lengths):
            raise ValueError("a remembered vector is zero")
        is_label = class_ids >= 0
        if (
            class_ids.dtype != np.int32
            or class_ids.shape != (n, MOST_LABELS)
            or np.any((class_ids < -1) | (class_ids >= n_classes))
            or not np.all(is_label[:, 0])
            or np.any(is_label[:, 1:] & ~is_label[:, :-1])
        ):
            raise ValueError("the labels of remembered instances do not fit the classes")
        if offsets.dtype != np.int64 or offsets.shape != (n, 3) or np.any(offsets < 0):
            raise ValueError("the offsets of remembered instances are invalid")
        memory._load(int(written[0]), vectors, lengths, class_ids, offsets)
        return memory

    def _load(self, written: int, *parts: npt.NDArray[Any]) -> None:
        """Load the number of the next instance, and the first arrays for the places that are used."""
        self.arrays.state[WRITTEN] = written
        self.make_room(parts[0].shape[1])
        n = len(parts[0])
        for place, part in enumerate(parts):
            self.arrays[place][:n] = part
        self.arrays.dirty[: -(-n // PAGE)] = 1

    def digest_pages(self, limit: int) -> bool:
        """Digest up to ``limit`` changed pages of ``PAGE`` places; return whether no changed page is left."""
        vectors, _, class_ids, offsets, _, dirty = self.arrays
        changed = np.flatnonzero(dirty)
        for page in changed[:limit].tolist():
            part = slice(page * PAGE, (page + 1) * PAGE)
            hashed = hashlib.blake2b(digest_size=16)
            for array in (vectors, class_ids, offsets):
                hashed.update(array[part].tobytes())
            self._hashes[page] = hashed.digest()
            dirty[page] = 0
        return len(changed) <= limit

    def digest_bytes(self) -> bytes:
        """Return the bytes that the digest of a model covers; empty unless the model has a memory."""
        if self.most == 0:
            return b""
        self.digest_pages(2**62)
        pages = [page.to_bytes(8, "little") + self._hashes[page] for page in sorted(self._hashes)]
        return b"".join([self.arrays.state.tobytes(), *pages])

"""Vocabularies: keys to dense ids in order of arrival, for features and for labels.

Keys are arbitrary bytes, 1 to 65,535 long, compared byte by byte. Ids start at 0. An id freed by ``remove`` goes to
the next new key, last freed first, so the same calls give the same ids everywhere. The hash table is keyed by a
secret that is local to the process and not part of the state.

Arrays grow by small steps, in place (``abound_core.growth``). Only the hash slots are doubled, in one sweep that
reads no keys. For a large table the sweep takes a while. To avoid the pause, a caller checks ``is_crowded``, builds
``enlarged_table`` in another thread, and passes the result to ``replace_table``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from abound_core.array_spec import ArraySpec, check_arrays
from abound_core.errors import Corrupted
from abound_core.growth import longer
from abound_core.instances import vocabulary_kernels as kernels
from abound_core.instances.vocabulary_kernels import KeyArrays

MAX_KEY_BYTES = 2**16 - 1
MAX_IDS = 2**31 - 1
PAGE = 1 << kernels.PAGE_BITS  # ids per page of the digest

LARGE_TABLE = 1 << 17  # slots from which a table can be ``is_crowded``; a smaller one is doubled in about a millisecond

ARRAYS = {
    "lengths": ArraySpec(np.uint16, ("ids",)),
    "bytes": ArraySpec(np.uint8, ("bytes",)),
    "free": ArraySpec(np.int32, ("free",), 0, "ids"),
}
"""The arrays of ``Vocabulary.to_arrays``: the length of the key of each id, 0 for an id without one; the keys in the
order of their ids; and the ids without a key in the order in which they will be assigned.
"""

_SMALLEST_STEP = 1024
_LARGEST_STEP = 1 << 22


def _grown(size: int, needed: int) -> int:
    """Return the next size of an array: an eighth more, by 1,024 to 4 million elements, or the size needed."""
    return max(needed, size + min(max(size >> 3, _SMALLEST_STEP), _LARGEST_STEP))


class Vocabulary:
    """Keys and their ids. ``secret``: two random 64-bit numbers, local to the process, that key the hash table."""

    def __init__(self, secret: tuple[int, int]) -> None:
        state = np.zeros(7, np.int64)
        state[[kernels.SECRET_0, kernels.SECRET_1]] = np.array(secret, np.uint64).view(np.int64)
        self._state = state
        self._spans = np.zeros(0, np.uint64)
        self._arena = np.zeros(0, np.uint8)
        self._dirty = np.zeros(0, np.uint8)
        self._pages = np.zeros(0, np.uint64)
        self._arrays = KeyArrays(np.zeros(16, np.uint64), self._spans, self._arena, state, self._dirty)
        self._next_page = 0

    @property
    def arrays(self) -> KeyArrays:
        """The arrays, for kernels. Fetch them again after ``make_room`` or ``add``, and never keep a view of one."""
        return self._arrays

    def __len__(self) -> int:
        return int(self._state[kernels.N_LIVE])

    @property
    def n_ids(self) -> int:
        """Number of ids ever assigned: every id is below this. Exceeds ``len`` only while there are freed ids."""
        return int(self._state[kernels.N_IDS])

    @property
    def n_bytes(self) -> int:
        return sum(array.nbytes for array in self._arrays) + self._pages.nbytes

    @property
    def n_key_bytes(self) -> int:
        return int(self._state[kernels.USED] - self._state[kernels.GARBAGE])

    @property
    def growth_bytes(self) -> int:
        """Bytes that growth may need soon: a step of each array and, from 45 % full on, a table of twice the size."""
        slots = self._arrays.slots
        table = 2 * slots.nbytes if len(self) * 20 > slots.size * 9 else 0
        return table + (self._spans.nbytes + self._arena.nbytes) // 8

    def key(self, key_id: int) -> bytes:
        """Return the key of an id. Raises IndexError if the id has none."""
        if not 0 <= key_id < self.n_ids:
            raise IndexError(f"no key has the id {key_id}")
        span = int(self._spans[key_id])
        start, length = span >> 16, span & 0xFFFF
        if length == 0:
            raise IndexError(f"no key has the id {key_id}")
        return self._arena[start : start + length].tobytes()

    def find(self, key: bytes) -> int:
        """Return the id of a key, or -1 if it has none."""
        return int(kernels.find_key(self._arrays, key, 0, len(key))) if key else -1

    def count_longer(self, prefix: bytes) -> int:
        """Return the number of keys that begin with ``prefix`` and are longer."""
        spans = self._spans[: self.n_ids]
        starts = (spans[(spans & np.uint64(0xFFFF)) > len(prefix)] >> np.uint64(16)).astype(np.int64)
        for at, byte in enumerate(prefix):
            starts = starts[self._arena[starts + at] == byte]
        return len(starts)

    def add(self, key: bytes) -> int:
        """Return the id of a key, assigning one if needed. Raises ValueError unless it has 1 to 65,535 bytes."""
        if not 0 < len(key) <= MAX_KEY_BYTES:
            raise ValueError(f"a key has 1 to {MAX_KEY_BYTES} bytes, not {len(key)}")
        self.make_room(1, len(key))
        return int(kernels.add_key(self._arrays, key, 0, len(key)))

    def remove(self, key_id: int) -> None:
        """Free an id, which is then the next to be assigned. Raises IndexError if the id has no key."""
        self.key(key_id)
        kernels.remove_key(self._arrays, key_id)

    def make_room(self, n_keys: int, n_bytes: int) -> None:
        """Grow the arrays so that a kernel can add ``n_keys`` more keys of ``n_bytes`` bytes in total.

        Raises MemoryError if there would be more than 2**31 - 1 ids.
        """
        n_ids, n_used = self.n_ids + n_keys, int(self._state[kernels.USED]) + n_bytes
        if n_ids > MAX_IDS:
            raise MemoryError("a vocabulary holds no more than 2**31 - 1 ids")
        if n_ids > self._spans.size:
            self._spans = longer(self._spans, _grown(self._spans.size, n_ids))
            self._dirty.resize(-(-self._spans.size // PAGE), refcheck=False)
            self._pages.resize(self._dirty.size, refcheck=False)
            self._arrays = self._arrays._replace(spans=self._spans)
        if n_used > self._arena.size:
            self._grow_arena(n_bytes)
        n_slots = self._arrays.slots.size
        while (len(self) + n_keys) * 5 > n_slots * 3:
            n_slots *= 2
        if n_slots > self._arrays.slots.size:
            larger = np.empty(n_slots, np.uint64)  # not zeros: numpy asks for huge pages for empty arrays only
            larger.fill(0)
            kernels.rehash(self._arrays.slots, larger)
            self._arrays = self._arrays._replace(slots=larger)

    @property
    def is_crowded(self) -> bool:
        """Whether the table is large and must be doubled soon: it is over 54 % full, of at most 60 %."""
        n_slots = self._arrays.slots.size
        return n_slots >= LARGE_TABLE and len(self) * 50 > n_slots * 27

    def enlarged_table(self) -> npt.NDArray[np.uint64]:
        """Return a table of twice the slots, for ``replace_table``.

        Only reads, and does not hold the GIL for long. It may run while other threads read the vocabulary, but
        nothing may change the vocabulary meanwhile.
        """
        larger = np.empty(2 * self._arrays.slots.size, np.uint64)
        kernels.copy_rehashed(self._arrays.slots, larger)
        return larger

    def replace_table(self, slots: npt.NDArray[np.uint64]) -> None:
        """Switch to a table from ``enlarged_table``. No key may have been added or removed since."""
        self._arrays = self._arrays._replace(slots=slots)

    def _grow_arena(self, n_bytes: int) -> None:
        """Make space for more bytes: compact the arena if removed keys take over a quarter, else enlarge it."""
        used, garbage = int(self._state[kernels.USED]), int(self._state[kernels.GARBAGE])
        if garbage * 4 > used:
            self._arena = np.zeros(_grown(used - garbage, used - garbage + n_bytes), np.uint8)
            kernels.compact(self._arrays, self._arena)
            self._arrays = self._arrays._replace(arena=self._arena)
        else:
            self._arena = longer(self._arena, _grown(self._arena.size, used + n_bytes))
            self._arrays = self._arrays._replace(arena=self._arena)

    def digest_pages(self, limit: int) -> bool:
        """Hash at most ``limit`` of the changed pages; return whether none is left. Pages may change between calls."""
        page = int(kernels.digest_pages(self._arrays, self._pages, self._next_page, limit))
        done = page * PAGE >= self.n_ids
        self._next_page = 0 if done else page
        return done

    def digest(self) -> bytes:
        """Return 16 bytes over keys, ids and the order of free ids, independent of the layout.

        Only changed pages of 256 ids are hashed again, plus 8 bytes per page.
        """
        self._next_page = 0
        self.digest_pages(MAX_IDS)
        counts = np.array([self.n_ids, len(self), self._state[kernels.FREE]], "<i8")
        hashed = hashlib.blake2b(counts.tobytes(), digest_size=16)
        hashed.update(self._pages[: -(-self.n_ids // PAGE)].tobytes())
        return hashed.digest()

    def is_text(self) -> bool:
        """Return whether all keys are UTF-8: their concatenation is, and no key begins inside a character."""
        parts = self.to_arrays()
        starts = (np.cumsum(parts["lengths"], dtype=np.int64) - parts["lengths"])[parts["lengths"] > 0]
        try:
            parts["bytes"].tobytes().decode()
        except UnicodeDecodeError:
            return False
        return bool(np.all(parts["bytes"][starts] & 0xC0 != 0x80))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        n_bytes = int(self._state[kernels.USED] - self._state[kernels.GARBAGE])
        arrays: dict[str, npt.NDArray[Any]] = {
            "lengths": np.zeros(self.n_ids, np.uint16),
            "bytes": np.zeros(n_bytes, np.uint8),
            "free": np.zeros(self.n_ids - len(self), np.int32),
        }
        kernels.export_keys(self._arrays, arrays["lengths"], arrays["bytes"], arrays["free"])
        return arrays

    @classmethod
    def from_arrays(cls, secret: tuple[int, int], arrays: Mapping[str, npt.NDArray[Any]]) -> Vocabulary:
        """Load the vocabulary from the output of ``to_arrays``. Raises Corrupted if the arrays do not fit together."""
        lengths, data, free = map(np.ascontiguousarray, check_arrays("a vocabulary", arrays, ARRAYS).values())
        if lengths.size > MAX_IDS or int(lengths.sum(dtype=np.int64)) != data.size:
            raise Corrupted("the key lengths of a vocabulary do not fit its bytes")
        vocabulary = cls(secret)
        vocabulary.make_room(lengths.size, data.size)
        if not kernels.import_keys(vocabulary.arrays, lengths, data, free):
            raise Corrupted("a vocabulary has a key twice, or free ids that are not those without a key")
        return vocabulary


def warmup() -> None:
    vocabulary = Vocabulary((1, 2))
    first = vocabulary.add(b"wheat")
    vocabulary.add(b"grain")
    vocabulary.find(b"grain")
    vocabulary.remove(first)
    vocabulary.make_room(100, 100)
    vocabulary.replace_table(vocabulary.enlarged_table())
    vector = bytes(4)
    ids = np.zeros(1, np.int32)
    kernels.find_vector(vocabulary.arrays, vector, ids)
    kernels.intern_vector(vocabulary.arrays, vector, 0, ids)
    kernels.room_for(vocabulary.arrays, 1, 1)
    kernels.compact(vocabulary.arrays, np.zeros(100, np.uint8))
    vocabulary.digest()
    Vocabulary.from_arrays((1, 2), vocabulary.to_arrays())

"""A vocabulary: keys to dense ids in order of arrival, for features and for labels.

Keys are bytes of any content, 1 to 65,535 long, compared byte by byte. Ids start at 0; an id freed by ``remove`` is
given to the next new key, last one first, so the same calls give the same ids everywhere. The table is keyed by a
secret that is local to the process and is no part of the state.

Arrays grow in place by small steps (``ndarray.resize``: realloc, for large ones a remapping of pages); only the hash
slots are doubled, in one sweep that reads no key. For a large table that sweep takes a while. Who cannot stand still
so long looks for ``crowded`` in time, has ``enlarged`` done elsewhere, and ``take``s what comes of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from abound.core.errors import Damaged
from abound.core.kernels.names import table as kernels
from abound.core.kernels.names import table as upkeep
from abound.core.kernels.names.table import KeyArrays

MAX_KEY_BYTES = 2**16 - 1
MAX_IDS = 2**31 - 1
PAGE = 1 << kernels.PAGE_BITS
"""Ids in a page of the digest."""

LARGE_TABLE = 1 << 17
"""Slots from which on a table can be ``crowded``; a smaller one is doubled in less than a millisecond or so."""

_SMALLEST_STEP = 1024
_LARGEST_STEP = 1 << 22


def _grown(size: int, needed: int) -> int:
    """The next size of an array: an eighth more, between a thousand and 4 million elements, or what is needed."""
    return max(needed, size + min(max(size >> 3, _SMALLEST_STEP), _LARGEST_STEP))


class Vocabulary:
    """Keys and their ids.

    Parameters
    ----------
    secret : (int, int)
        Two numbers of 64 bits that key the hash table: random, local to the process.
    """

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
        """The arrays, for kernels. Take them anew after ``make_room`` or ``add``; never keep a view of one."""
        return self._arrays

    def __len__(self) -> int:
        """Keys that have an id."""
        return int(self._state[kernels.N_LIVE])

    @property
    def n_ids(self) -> int:
        """Ids ever given: every id is below this. More than ``len`` only while there are freed ids."""
        return int(self._state[kernels.N_IDS])

    @property
    def n_bytes(self) -> int:
        """Bytes of memory of all arrays."""
        return sum(array.nbytes for array in self._arrays) + self._pages.nbytes

    @property
    def n_key_bytes(self) -> int:
        """Bytes of all keys together."""
        return int(self._state[kernels.USED] - self._state[kernels.GARBAGE])

    @property
    def n_bytes_ahead(self) -> int:
        """Bytes that growing may take soon: a step of each array and, from 45 % of a table on, its double beside it."""
        slots = self._arrays.slots
        table = 2 * slots.nbytes if len(self) * 20 > slots.size * 9 else 0
        return table + (self._spans.nbytes + self._arena.nbytes) // 8

    def key(self, key_id: int) -> bytes:
        """The key of an id; IndexError when the id has none."""
        if not 0 <= key_id < self.n_ids:
            raise IndexError(f"no key has the id {key_id}")
        span = int(self._spans[key_id])
        start, length = span >> 16, span & 0xFFFF
        if length == 0:
            raise IndexError(f"no key has the id {key_id}")
        return self._arena[start : start + length].tobytes()

    def find(self, key: bytes) -> int:
        """The id of a key, -1 when it has none."""
        return int(kernels.find_key(self._arrays, key, 0, len(key))) if key else -1

    def add(self, key: bytes) -> int:
        """The id of a key, given now if it has none yet; ValueError when the key is empty or over 65,535 bytes."""
        if not 0 < len(key) <= MAX_KEY_BYTES:
            raise ValueError(f"a key has 1 to {MAX_KEY_BYTES} bytes, not {len(key)}")
        self.make_room(1, len(key))
        return int(kernels.add_key(self._arrays, key, 0, len(key)))

    def remove(self, key_id: int) -> None:
        """Take the key off an id, which is then the next to be given; IndexError when the id has none."""
        self.key(key_id)
        kernels.remove_key(self._arrays, key_id)

    def make_room(self, n_keys: int, n_bytes: int) -> None:
        """Grow the arrays so that ``n_keys`` more keys of ``n_bytes`` bytes altogether can be added by a kernel.

        Raises
        ------
        MemoryError
            Past 2**31 - 1 ids, or the machine has no more memory.
        """
        n_ids, n_used = self.n_ids + n_keys, int(self._state[kernels.USED]) + n_bytes
        if n_ids > MAX_IDS:
            raise MemoryError("a vocabulary holds no more than 2**31 - 1 ids")
        if n_ids > self._spans.size:
            self._spans.resize(_grown(self._spans.size, n_ids), refcheck=False)
            self._dirty.resize(-(-self._spans.size // PAGE), refcheck=False)
            self._pages.resize(self._dirty.size, refcheck=False)
        if n_used > self._arena.size:
            self._grow_arena(n_bytes)
        n_slots = self._arrays.slots.size
        while (len(self) + n_keys) * 5 > n_slots * 3:
            n_slots *= 2
        if n_slots > self._arrays.slots.size:
            larger = np.empty(n_slots, np.uint64)  # not zeros: numpy asks for huge pages for empty arrays only
            larger.fill(0)
            upkeep.rehash(self._arrays.slots, larger)
            self._arrays = self._arrays._replace(slots=larger)

    @property
    def crowded(self) -> bool:
        """Whether the table is large and will have to be doubled soon: it is over 54 % full, of at most 60 %."""
        n_slots = self._arrays.slots.size
        return n_slots >= LARGE_TABLE and len(self) * 50 > n_slots * 27

    def enlarged(self) -> npt.NDArray[np.uint64]:
        """A table of twice the slots, for ``take``.

        Only reads, and holds no lock of the interpreter for long: it may run beside anything that only reads too, and
        beside nothing that changes the vocabulary.
        """
        larger = np.empty(2 * self._arrays.slots.size, np.uint64)
        upkeep.spread(self._arrays.slots, larger)
        return larger

    def take(self, slots: npt.NDArray[np.uint64]) -> None:
        """Go on with a table from ``enlarged``; nothing was added or removed since."""
        self._arrays = self._arrays._replace(slots=slots)

    def _grow_arena(self, n_bytes: int) -> None:
        """Room for more bytes: take back those of removed keys when they are over a quarter, else enlarge."""
        used, garbage = int(self._state[kernels.USED]), int(self._state[kernels.GARBAGE])
        if garbage * 4 > used:
            self._arena = np.zeros(_grown(used - garbage, used - garbage + n_bytes), np.uint8)
            upkeep.compact(self._arrays, self._arena)
            self._arrays = self._arrays._replace(arena=self._arena)
        else:
            self._arena.resize(_grown(self._arena.size, used + n_bytes), refcheck=False)

    def digest_pages(self, limit: int) -> bool:
        """Hash at most ``limit`` of the changed pages; True when none is left. Pages may change again in between."""
        page = int(upkeep.digest_pages(self._arrays, self._pages, self._next_page, limit))
        done = page * PAGE >= self.n_ids
        self._next_page = 0 if done else page
        return done

    def digest(self) -> bytes:
        """16 bytes over keys, ids and the order of free ids; the same for the same state, whatever its layout.

        Costs what changed since the last digest, by pages of 256 ids, and 8 bytes a page.
        """
        self._next_page = 0
        self.digest_pages(MAX_IDS)
        counts = np.array([self.n_ids, len(self), self._state[kernels.FREE]], "<i8")
        hashed = hashlib.blake2b(counts.tobytes(), digest_size=16)
        hashed.update(self._pages[: -(-self.n_ids // PAGE)].tobytes())
        return hashed.digest()

    def is_text(self) -> bool:
        """Whether all keys are UTF-8: their bytes together are, and none begins inside a character."""
        parts = self.to_arrays()
        starts = (np.cumsum(parts["lengths"], dtype=np.int64) - parts["lengths"])[parts["lengths"] > 0]
        try:
            parts["bytes"].tobytes().decode()
        except UnicodeDecodeError:
            return False
        return bool(np.all(parts["bytes"][starts] & 0xC0 != 0x80))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of the logical state.

        Returns
        -------
        arrays : dict
            ``lengths`` uint16 an id, 0 for one without a key; ``bytes`` uint8, the keys in id order; ``free`` int32,
            the ids without a key in the order in which they will be given.
        """
        n_bytes = int(self._state[kernels.USED] - self._state[kernels.GARBAGE])
        arrays: dict[str, npt.NDArray[Any]] = {
            "lengths": np.zeros(self.n_ids, np.uint16),
            "bytes": np.zeros(n_bytes, np.uint8),
            "free": np.zeros(self.n_ids - len(self), np.int32),
        }
        upkeep.export_keys(self._arrays, arrays["lengths"], arrays["bytes"], arrays["free"])
        return arrays

    @classmethod
    def from_arrays(cls, secret: tuple[int, int], arrays: Mapping[str, npt.NDArray[Any]]) -> Vocabulary:
        """The vocabulary that ``to_arrays`` described; Damaged when the arrays do not fit together."""
        parts = {}
        for name, kind in (("lengths", np.uint16), ("bytes", np.uint8), ("free", np.int32)):
            part = arrays.get(name)
            if part is None or part.ndim != 1 or part.dtype != kind:
                raise Damaged(f"a vocabulary has no array {name} of one dimension and type {np.dtype(kind).name}")
            parts[name] = np.ascontiguousarray(part)
        lengths, data = parts["lengths"], parts["bytes"]
        if lengths.size > MAX_IDS or int(lengths.sum(dtype=np.int64)) != data.size:
            raise Damaged("the key lengths of a vocabulary do not fit its bytes")
        vocabulary = cls(secret)
        vocabulary.make_room(lengths.size, data.size)
        if not upkeep.import_keys(vocabulary.arrays, lengths, data, parts["free"]):
            raise Damaged("a vocabulary has a key twice, or free ids that are not those without a key")
        return vocabulary


def warmup() -> None:
    """Compile every kernel of this module once, for the types that are used."""
    vocabulary = Vocabulary((1, 2))
    first = vocabulary.add(b"wheat")
    vocabulary.add(b"grain")
    vocabulary.find(b"grain")
    vocabulary.remove(first)
    vocabulary.make_room(100, 100)
    vocabulary.take(vocabulary.enlarged())
    vector = bytes(4)
    ids = np.zeros(1, np.int32)
    kernels.find_vector(vocabulary.arrays, vector, ids)
    kernels.intern_vector(vocabulary.arrays, vector, 0, ids)
    kernels.room_for(vocabulary.arrays, 1, 1)
    upkeep.compact(vocabulary.arrays, np.zeros(100, np.uint8))
    vocabulary.digest()
    Vocabulary.from_arrays((1, 2), vocabulary.to_arrays())

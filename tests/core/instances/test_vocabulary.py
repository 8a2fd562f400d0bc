"""The vocabulary against a dict and a list of free ids."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from abound_core.errors import Corrupted
from abound_core.instances import vocabulary_kernels as kernels
from abound_core.instances.record import pack_vector
from abound_core.instances.vocabulary import Vocabulary
from tests.randomness import examples

SECRET = (0x0706050403020100, 0xFFEEDDCCBBAA9988)
OTHER_SECRET = (1, 2**64 - 1)


def vector_of(keys: list[bytes]) -> bytes:
    return pack_vector(keys, np.ones(len(keys), np.float32))


class AgainstDict(RuleBasedStateMachine):
    keys = st.one_of(
        st.binary(min_size=1, max_size=3),
        st.text(min_size=1, max_size=30).map(str.encode),
        st.integers(0, 99).map(lambda n: b"feature-%d" % n),
    )

    def __init__(self):
        super().__init__()
        self.vocabulary = Vocabulary(SECRET)
        self.ids: dict[bytes, int] = {}
        self.free: list[int] = []
        self.n_ids = 0

    def give(self, key: bytes) -> int:
        if key not in self.ids:
            if self.free:
                self.ids[key] = self.free.pop()
            else:
                self.ids[key] = self.n_ids
                self.n_ids += 1
        return self.ids[key]

    @rule(key=keys)
    def add(self, key):
        assert self.vocabulary.add(key) == self.give(key)

    @rule()
    def enlarge(self):
        n_slots = self.vocabulary.arrays.slots.size
        if n_slots <= 1024:
            self.vocabulary.replace_table(self.vocabulary.enlarged_table())
            assert self.vocabulary.arrays.slots.size == 2 * n_slots

    @rule(key=keys)
    def find(self, key):
        assert self.vocabulary.find(key) == self.ids.get(key, -1)

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def remove(self, data):
        key = data.draw(st.sampled_from(sorted(self.ids)))
        key_id = self.ids.pop(key)
        self.free.append(key_id)
        self.vocabulary.remove(key_id)
        with pytest.raises(IndexError):
            self.vocabulary.key(key_id)

    @rule(keys=st.lists(keys, unique=True, max_size=150))
    def intern(self, keys):
        vector = vector_of(keys)
        ids = np.full(len(keys), -7, np.int32)
        self.vocabulary.make_room(len(keys), len(vector))
        assert kernels.room_for(self.vocabulary.arrays, len(keys), len(vector))
        assert kernels.intern_vector(self.vocabulary.arrays, b"????" + vector, 4, ids) == len(keys)
        assert ids.tolist() == [self.give(key) for key in keys]

    @rule(keys=st.lists(keys, unique=True, max_size=150))
    def find_all(self, keys):
        ids = np.full(len(keys), -7, np.int32)
        assert kernels.find_vector(self.vocabulary.arrays, vector_of(keys), ids) == len(keys)
        assert ids.tolist() == [self.ids.get(key, -1) for key in keys]

    @rule(secret=st.sampled_from([SECRET, OTHER_SECRET]))
    def save_and_load(self, secret):
        digest = self.vocabulary.digest()
        self.vocabulary = Vocabulary.from_arrays(secret, self.vocabulary.to_arrays())
        assert self.vocabulary.digest() == digest

    @invariant()
    def same(self):
        assert len(self.vocabulary) == len(self.ids)
        assert self.vocabulary.n_ids == self.n_ids
        assert {self.vocabulary.key(key_id): key_id for key_id in self.ids.values()} == self.ids
        assert self.vocabulary.to_arrays()["free"].tolist() == self.free[::-1]


TestAgainstDict = AgainstDict.TestCase
TestAgainstDict.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)


def test_a_large_vocabulary_with_hashes_that_meet():
    """Among 400,000 keys some twenty pairs have the same 32 bits of their hash."""
    keys = [b"feature %d" % n for n in range(400_000)]
    vocabulary = Vocabulary(SECRET)
    ids = np.zeros(len(keys), np.int32)
    for first in range(0, len(keys), 50_000):
        part = vector_of(keys[first : first + 50_000])
        vocabulary.make_room(50_000, len(part))
        kernels.intern_vector(vocabulary.arrays, part, 0, ids[first:])
    assert (ids == np.arange(len(keys))).all()
    slots = vocabulary.arrays.slots
    halves = slots[slots > 0] >> np.uint64(32)
    assert len(np.unique(halves)) < len(keys)
    ids[:] = 0
    kernels.find_vector(vocabulary.arrays, vector_of(keys), ids)
    assert (ids == np.arange(len(keys))).all()
    assert vocabulary.find(b"feature 400000") == -1
    assert vocabulary.n_bytes < 50 * len(keys)


def test_memory_stays_bounded_under_churn():
    """Keys come and go; ids are used again and the bytes of the gone are taken back."""
    vocabulary = Vocabulary(SECRET)
    for n in range(30_000):
        vocabulary.add(b"a key of some length %d" % n)
        if n >= 1000:
            vocabulary.remove(vocabulary.find(b"a key of some length %d" % (n - 1000)))
    assert len(vocabulary) == 1000
    assert vocabulary.n_ids == 1001
    assert vocabulary.n_bytes < 200_000
    assert vocabulary.key(vocabulary.find(b"a key of some length 29500")) == b"a key of some length 29500"


def test_lengths_of_keys():
    vocabulary = Vocabulary(SECRET)
    for key in (b"", b"x" * 65_536):
        assert vocabulary.find(key) == -1
        with pytest.raises(ValueError, match="1 to 65535 bytes"):
            vocabulary.add(key)
    keys = [bytes([65 + n]) * length for n, length in enumerate((65_535, 65_534, 4096, 1))]
    assert [vocabulary.add(key) for key in keys] == [0, 1, 2, 3]
    assert [vocabulary.key(key_id) for key_id in range(4)] == keys
    for key_id in (-1, 4, 2**40):
        for call in (vocabulary.key, vocabulary.remove):
            with pytest.raises(IndexError):
                call(key_id)


def saved() -> dict[str, np.ndarray]:
    vocabulary = Vocabulary(SECRET)
    for key in (b"wheat", b"gone", b"grain", b"gone too"):
        vocabulary.add(key)
    vocabulary.remove(1)
    vocabulary.remove(3)
    return vocabulary.to_arrays()


@pytest.mark.parametrize(
    ("name", "damaged"),
    [
        ("lengths", None),
        ("lengths", np.array([5, 0, 5, 0], np.int64)),
        ("lengths", np.array([5, 0, 6, 0], np.uint16)),
        ("lengths", np.array([[5, 0, 5, 0]], np.uint16)),
        ("bytes", np.frombuffer(b"wheatwheat", np.uint8)),
        ("bytes", np.frombuffer(b"wheatgrains", np.uint8)),
        ("free", np.array([3, 3], np.int32)),
        ("free", np.array([1], np.int32)),
        ("free", np.array([3, 1, 1], np.int32)),
        ("free", np.array([3, 0], np.int32)),
        ("free", np.array([3, -1], np.int32)),
        ("free", np.array([3, 4], np.int32)),
    ],
)
def test_damaged_arrays(name, damaged):
    arrays = saved()
    assert Vocabulary.from_arrays(SECRET, arrays).add(b"new") == 3
    with pytest.raises(Corrupted):
        Vocabulary.from_arrays(SECRET, {**arrays, name: damaged})

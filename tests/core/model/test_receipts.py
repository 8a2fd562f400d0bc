"""Receipts: a table in pages against a plain account of the newest keys, its digest, and what it is kept as."""

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abound_core.model.receipts import PAGE, Receipt, Receipts, Row
from abound_core.types import Offset
from tests.randomness import examples

CAPACITY = 2 * PAGE + 40

keys = st.integers(0, CAPACITY + 2 * PAGE)
stretches = st.lists(st.tuples(keys, st.integers(1, PAGE + 60)), min_size=1, max_size=12)
"""Keys that follow each other, by the first and by how many: some come again, some after they were forgotten."""


def row(number: int) -> Row:
    return f"k{number}", b"body %d" % number, (number, 0, 1), [number % 3, 1], [True, False]


def put(table: Receipts, numbers: range) -> None:
    rows = [row(number) for number in numbers]
    while rows:
        n = table.n_new([key for key, *_ in rows])
        table.put(rows[:n])
        rows = rows[n:] if n else rows[1:]


@settings(max_examples=examples(25))
@given(stretches)
def test_the_newest_keys_are_known_and_no_other(shapes):
    table, newest = Receipts(CAPACITY), {}
    for first, n in shapes:
        put(table, range(first, first + n))
        for number in range(first, first + n):
            newest.setdefault(f"k{number}", row(number))
            if len(newest) > CAPACITY:
                newest.pop(next(iter(newest)))
    assert len(table) == len(newest)
    for number in range(CAPACITY + 4 * PAGE):
        expected = newest.get(f"k{number}")
        receipt = table.get(f"k{number}")
        assert (f"k{number}" in table) == (expected is not None)
        assert receipt == (None if expected is None else Receipt(expected[1], Offset(*expected[2]), *expected[3:]))


@settings(max_examples=examples(25))
@given(stretches, stretches)
def test_a_table_that_was_kept_goes_on_as_one_that_never_stopped(before, after):
    table = Receipts(CAPACITY)
    for first, n in before:
        put(table, range(first, first + n))
    loaded = Receipts.from_arrays(table.to_arrays(), CAPACITY)
    assert loaded.digest_bytes() == table.digest_bytes()
    for first, n in after:
        put(table, range(first, first + n))
        for number in range(first, first + n):
            put(loaded, range(number, number + 1))
    assert loaded.digest_bytes() == table.digest_bytes()
    assert len(loaded) == len(table)
    assert loaded.to_arrays()["receipts"].tobytes() == table.to_arrays()["receipts"].tobytes()


def test_memory_is_bounded():
    table = Receipts(CAPACITY)
    sizes = []
    for first in range(0, 20 * PAGE, PAGE):
        put(table, range(first, first + PAGE))
        sizes.append(table.n_bytes)
    assert max(b - a for a, b in pairwise(sizes[5:])) < sizes[5] / 10


def test_every_field_and_the_order_are_in_the_digest():
    """In the page that is open and in one that is full."""
    base = row(1)
    others: list[Row] = [
        ("k2", *base[1:]),
        (base[0], b"other", *base[2:]),
        (*base[:2], (1, 0, 2), *base[3:]),
        (*base[:3], [2, 1], base[4]),
        (*base[:4], [True, True]),
    ]
    for behind in (10, PAGE + 10):
        digests = set()
        for first in ([base, row(0)], [row(0), base], *([row(0), other] for other in others)):
            table = Receipts()
            table.put(first)
            put(table, range(100, 100 + behind))
            digests.add(table.digest_bytes())
        assert len(digests) == 2 + len(others)


def kept(n_gone: object, *rows: Row) -> dict[str, np.ndarray]:
    return {"receipts": np.frombuffer(msgspec.msgpack.encode((n_gone, rows)), np.uint8)}


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        (kept(0, row(1), row(1)), "one key"),
        (kept(0, *[row(number) for number in range(PAGE)], row(3)), "one key"),
        (kept(-1), "negative"),
        (kept("x"), "int"),
        (kept(2**64 - 1), "too large"),
        (kept(0, row(1)[:-1]), "length"),
        (kept(0, (*row(1)[:4], [True] * 3)), "invalid ranks or a negative offset"),
        (kept(0, (*row(1)[:3], [-1], [True])), "invalid ranks or a negative offset"),
        (kept(0, (*row(1)[:2], (1, -1, 0), *row(1)[3:])), "invalid ranks or a negative offset"),
        ({"receipts": np.frombuffer(b"\x92\x00", np.uint8)}, "truncated"),
    ],
)
def test_what_can_be_no_table_is_refused(arrays, what):
    with pytest.raises((ValueError, msgspec.MsgspecError), match=what):
        Receipts.from_arrays(arrays)

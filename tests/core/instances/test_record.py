"""Records: round trips, what is refused, and that no bytes whatever lead outside of their buffer."""

import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from abound_core.errors import Corrupted, InvalidInstance
from abound_core.instances.record import (
    EMPTY_VECTOR,
    add_details,
    check_records,
    iterate,
    pack_labels,
    pack_vector,
    record_ends,
    unpack,
    unpack_labels,
)
from abound_core.instances.record_kernels import record_shape, vector_end
from abound_core.limits import Limits

LIMITS = Limits()
keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
features = st.dictionaries(keys, st.floats(2.0**-149, 1.0, width=32), max_size=12)
names = keys.filter(lambda one: not one.isspace())
records = st.tuples(features, st.lists(names, min_size=1, max_size=5, unique=True))
weights = st.floats(2.0**-126, 100.0, width=32)


def packed(instance: dict[str, float], labels: list[str]) -> bytes:
    values = np.array(list(instance.values()), np.float32)
    return pack_vector([key.encode() for key in instance], values) + pack_labels(labels, LIMITS)


@given(st.lists(records, max_size=5))
def test_records_come_back(given_records):
    payload = b"".join(packed(*record) for record in given_records)
    read = list(iterate(payload, len(given_records)))
    assert [dict(zip(r.keys, r.values.tolist(), strict=True)) for r in read] == [r[0] for r in given_records]
    assert [r.labels for r in read] == [r[1] for r in given_records]
    ends = record_ends(payload, len(given_records)).tolist()
    for record, start, end in zip(given_records, ends, ends[1:], strict=False):
        assert payload[start:end] == packed(*record)
        assert unpack(payload[start:end]).labels == record[1]
        assert start % 4 == 0


@given(features, st.lists(names, min_size=1, max_size=9, unique=True), st.data(), weights, st.booleans())
def test_feedback_comes_back(instance, labels, data, weight, partial):
    n_known = data.draw(st.integers(1, len(labels)))
    n_true = data.draw(st.integers(0, n_known))
    true, rejected, ignored = labels[:n_true], labels[n_true:n_known], labels[n_known:]
    partial = partial and n_true > 0
    vector = packed(instance, ["x"])[: vector_end(packed(instance, ["x"]), 0)]
    payload = b"--" * 2 + vector + pack_labels(true, LIMITS, rejected, ignored, weight, partial=partial)
    assert unpack(payload[4:])[2:] == (true, rejected, ignored, weight, partial, None)
    assert unpack_labels(payload, 4 + len(vector)) == true
    shape = record_shape(payload, 4)
    assert (shape.n_labels, shape.n_true, shape.n_rejected) == (len(labels), n_true, n_known - n_true)
    assert (shape.weight, shape.end, shape.partial) == (weight, len(payload), partial)
    for cut in range(len(payload) - 4):
        assert verdict(payload[4 : 4 + cut], 1) != "good"
    has_feedback = weight != 1.0 or n_true < len(labels) or partial
    assert (payload[4:] == vector + pack_labels(labels, LIMITS)) != has_feedback


X = pack_labels(["x"], LIMITS)


def feedback(weight: float, n_rejected: int, n_ignored: int, labels: tuple[str, ...] = ("a", "b")) -> bytes:
    part = bytearray(pack_labels([*labels], LIMITS))
    part[3] |= 0x80
    return EMPTY_VECTOR + bytes(part) + struct.pack("<f2H", weight, n_rejected, n_ignored)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (feedback(0.0, 1, 0), "has a weight"),
        (feedback(100.5, 1, 0), "has a weight"),
        (feedback(float("nan"), 1, 0), "has a weight"),
        (feedback(1.0, 3, 0), "runs past the end"),
        (feedback(1.0, 1, 2), "runs past the end"),
        (EMPTY_VECTOR + struct.pack("<I", 0), "has no label"),
        (
            EMPTY_VECTOR + pack_labels([], LIMITS, ["a"])[:3] + b"\xa0" + pack_labels([], LIMITS, ["a"])[4:],
            "is partial",
        ),
        (add_details(EMPTY_VECTOR + X, b"")[:7] + b"\x60" + add_details(EMPTY_VECTOR + X, b"")[8:], "is partial"),
        (pack_vector([b"a"], np.array([np.nan], np.float32)) + X, ".* finite and above 0"),
        (pack_vector([b"a"], np.array([np.inf], np.float32)) + X, ".* finite and above 0"),
        (pack_vector([b"a"], np.array([0], np.float32)) + X, ".* finite and above 0"),
        (pack_vector([b"a"], np.array([-1], np.float32)) + X, ".* finite and above 0"),
        (pack_vector([b""], np.ones(1, np.float32)) + X, ".* empty"),
        (pack_vector([b"\xff"], np.ones(1, np.float32)) + X, ".* UTF-8"),
        (pack_vector([b"\xed\xa0\x80"], np.ones(1, np.float32)) + X, ".* UTF-8"),
        (pack_vector(["ż".encode()[:1], "ż".encode()[1:]], np.ones(2, np.float32)) + X, ".* UTF-8"),
        (EMPTY_VECTOR + X[:-1] + b"\1", ".* padding"),
    ],
)
def test_what_no_record_may_have(record, problem):
    good = feedback(0.5, 1, 0)
    check_records(good, 1)
    with pytest.raises(Corrupted, match=f"record 1 of 3 {problem}"):
        check_records(good + record + good, 3)


def verdict(payload: bytes, n: int) -> str:
    """What is said of a payload; taken apart as a whole when it is good."""
    try:
        check_records(payload, n)
    except Corrupted as error:
        return str(error)
    for record in iterate(payload, n):
        assert all(record.keys)
        assert (record.values > 0).all()
        assert np.isfinite(record.values).all()
        assert record.labels or record.rejected
        assert 0 < record.weight <= 100
    return "good"


@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_damaged_records_are_found_out_or_harmless(given_records, data):
    payload = bytearray(b"".join(packed(*record) for record in given_records))
    payload += EMPTY_VECTOR + pack_labels(["a"], LIMITS, ["b", "d"], ["c"], 0.5)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, payload[at] ^ 1]))
    cut = data.draw(st.integers(0, len(payload)))
    for damaged in (bytes(payload), bytes(payload[:cut]), bytes(payload[cut:])):
        for n in (len(given_records), len(given_records) + 1):
            verdict(damaged, n)


@given(st.binary(max_size=60), st.integers(0, 4))
@example(b"\xff" * 60, 1)
@example(struct.pack("<IfHH", 1, 1.0, 0xFFFF, 0), 1)
def test_any_bytes_at_all(payload, n):
    verdict(payload, n)


@given(st.binary(max_size=40), st.integers(-8, 48))
def test_a_shape_depends_on_nothing_outside_of_the_buffer(payload, start):
    """The same bytes with different ones behind them."""
    shapes, ends = set(), set()
    for poison in (b"\x00" * 64, b"\xff" * 64, b"\x01\x00" * 32):
        view = np.frombuffer(payload + poison, np.uint8)[: len(payload)]
        shapes.add(record_shape(view, start))
        ends.add(vector_end(view, start))
    assert len(shapes) == len(ends) == 1
    shape = shapes.pop()
    assert shape.n_features == -1 or shape.end <= len(payload)


@given(records)
def test_every_cut_and_every_surplus_is_damaged(record):
    payload = packed(*record)
    for damaged in (*(payload[:cut] for cut in range(len(payload))), payload + b"\x00", payload + b"\x00" * 4):
        assert verdict(damaged, 1) != "good"
    assert verdict(payload, 0) != "good"
    assert verdict(payload, 2) != "good"
    assert verdict(payload, -1) != "good"


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=40, unique=True), st.data())
def test_a_key_must_not_come_twice(texts, data):
    keys = [text.hex().encode() for text in texts]
    check_records(pack_vector(keys, np.ones(len(keys), np.float32)) + pack_labels(["x"], LIMITS), 1)
    again = data.draw(st.permutations([*keys, data.draw(st.sampled_from(keys))]))
    vector = pack_vector(again, np.ones(len(again), np.float32))
    with pytest.raises(Corrupted, match="record 0 of 1 has the same key twice"):
        check_records(vector + pack_labels(["x"], LIMITS), 1)


@given(st.binary(min_size=1, max_size=24))
@example(b"\xf4\x8f\xbf\xbf")
@example(b"\xf4\x90\x80\x80")
@example(b"\xe0\x9f\xbf")
@example(b"\xf0\x8f\xbf\xbf")
@example(b"\xc1\xbf")
@example(b"eight by\xc5")
@example(b"\xed\xa0\x80")
def test_utf8_is_what_python_takes_for_it(key):
    record = pack_vector([key], np.ones(1, np.float32)) + pack_labels(["x"], LIMITS)
    try:
        key.decode()
    except UnicodeDecodeError:
        assert "UTF-8" in verdict(record, 1)
    else:
        assert verdict(record, 1) == "good"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"labels": []}, "labels"),
        ({"labels": [""]}, "labels[0]"),
        ({"labels": ["a", "ż" * 257]}, "labels[1]"),
        ({"labels": ["a", "\ud800"]}, "labels[1]"),
        ({"labels": ["a"] * 101}, "labels"),
        ({"labels": [], "ignored": []}, "labels"),
        ({"rejected": ["b", ""]}, "rejected[1]"),
        ({"rejected": ["b", "a"]}, "rejected[1]"),
        ({"ignored": ["a"]}, "ignored[0]"),
        ({"rejected": ["b"], "ignored": ["c", "b"]}, "ignored[1]"),
        ({"rejected": ["b"] * 101}, "rejected"),
        ({"ignored": [f"{n}" for n in range(101)]}, "ignored"),
        ({"labels": [], "rejected": ["b"], "partial": True}, "partial"),
        ({"weight": 0.0}, "weight"),
        ({"weight": 100.1}, "weight"),
        ({"weight": float("nan")}, "weight"),
    ],
)
def test_refused_labels_and_feedback(given, field):
    with pytest.raises(InvalidInstance) as refusal:
        pack_labels(**{"labels": ["a"], "limits": LIMITS} | given)
    assert refusal.value.field == field


def test_labels_are_kept_once_in_order_and_the_least_weight_is_above_zero():
    part = pack_labels(["b", "a", "b", "ż"], LIMITS, weight=1e-300)
    assert len(part) % 4 == 0
    record = unpack(EMPTY_VECTOR + part)
    assert (record.labels, record.weight) == (["b", "a", "ż"], 2.0**-126)


def test_as_many_labels_as_can_be_counted():
    limits, many = Limits(max_labels=65_535), [f"{n}" for n in range(70_000)]
    for kind in ("rejected", "ignored"):
        with pytest.raises(InvalidInstance, match=f"{kind} must be at most 65535, not 70000"):
            pack_labels([], limits, **{kind: many})
        found = unpack(EMPTY_VECTOR + pack_labels([], limits, **{kind: many[:65_535]}))
        assert getattr(found, kind) == many[:65_535]

"""Vectors: their numbers, their codes, and models that learn from them."""

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from abound_core.config import ModelConfig
from abound_core.errors import Corrupted, InvalidInstance
from abound_core.instances import codes_kernels as kernels
from abound_core.instances.dense_vector import quantize, to_int8
from abound_core.instances.encoded_vector import EncodedVector
from abound_core.instances.record import (
    add_dense,
    check_records,
    dense_of,
    pack_labels,
    pack_vector,
    unpack,
    unpack_vector,
    without_dense,
)
from abound_core.limits import MAX_DIMENSION, Limits
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from tests.core.oracles.codes import codes_of

LIMITS = Limits()
dense_numbers = st.integers(1, 40).flatmap(
    lambda d: arrays.arrays(np.int8, d, elements=st.integers(-128, 127)).filter(np.any)
)


def fast_codes(q: np.ndarray, n_codes: int) -> list[int]:
    vector = add_dense(pack_vector([], np.zeros(0, np.float32)), q.tobytes(), 1.0)
    target = np.zeros(len(vector) + kernels.EXPANSION, np.uint8)
    size = kernels.expand_vector(vector, n_codes, len(q), target)
    keys = unpack_vector(target[:size].tobytes())[0]
    return [int(key.removeprefix(kernels.PREFIX.decode())) for key in keys]


@given(dense_numbers, st.sampled_from([4096, 16384]))
def test_codes_are_those_of_the_formulas(q, n_codes):
    assert fast_codes(q, n_codes) == codes_of(q, n_codes)


@pytest.mark.parametrize("d", [1, 2, 3, 255, 256, 257, 1024, 1025, 2048])
def test_codes_of_every_size(d):
    rng = np.random.default_rng(d)
    for q in (rng.integers(-128, 128, d, dtype=np.int8), np.full(d, -128, np.int8), np.full(d, 127, np.int8)):
        q[0] = 1 if not q.any() else q[0]
        assert fast_codes(q, 4096) == codes_of(q, 4096)


def encoded(data: bytes, dtype: str) -> EncodedVector:
    return EncodedVector(base64=base64.b64encode(data).decode(), dtype=dtype)


@pytest.mark.parametrize(
    ("given_vector", "want"),
    [
        ([0.5, -1.0, 0.25], [64, -127, 32]),  # 63.5 and 31.75
        ([1e308, -1e308, 0.0], [127, -127, 0]),
        ([5e-324, 0.0], [127, 0]),
        (encoded(np.array([1, -2], "<f4").tobytes(), "float32"), [64, -127]),
        (encoded(bytes([1, 255, 128]), "int8"), [1, -1, -128]),
    ],
)
def test_numbers_become_int8(given_vector, want):
    assert np.frombuffer(to_int8(given_vector), np.int8).tolist() == want


@pytest.mark.parametrize(
    ("given_vector", "field", "message"),
    [
        ([0.0, 0.0], "vector", "all zeros"),
        ([], "vector", "1 to 2048 numbers, not 0"),
        ([1.0] * 2049, "vector", "1 to 2048 numbers, not 2049"),
        ([1.0, float("nan")], "vector", r"vector\[1\] is nan"),
        (encoded(np.array([1, np.inf], "<f4").tobytes(), "float32"), "vector.base64", r"vector\[1\] is inf"),
        (encoded(b"123", "float32"), "vector.base64", "3 bytes"),
        (encoded(bytes(5), "int8"), "vector.base64", "all zeros"),
        (encoded(b"", "int8"), "vector.base64", "not 0"),
        (encoded(bytes([1]) * 2049, "int8"), "vector.base64", "not 2049"),
        (EncodedVector(base64="not base64!", dtype="int8"), "vector.base64", "not valid base64"),
        (EncodedVector(base64="AAE", dtype="int8"), "vector.base64", "not valid base64"),
        (EncodedVector(base64="ä", dtype="int8"), "vector.base64", "not valid base64"),
    ],
)
def test_what_a_vector_must_not_be(given_vector, field, message):
    with pytest.raises(InvalidInstance, match=message) as refused:
        to_int8(given_vector)
    assert refused.value.field == field


WORDS = pack_vector([b"wheat", b"dry"], np.array([0.6, 0.8], np.float32))
LABELS = pack_labels(["grain"], LIMITS)


@given(dense_numbers, st.booleans())
def test_a_record_keeps_the_numbers(q, has_words):
    words = WORDS if has_words else bytes(4)
    vector = add_dense(words, q.tobytes(), 0.1)
    record = vector + LABELS
    check_records(record, 1)
    read = unpack(record)
    assert (read.keys, read.labels) == (["wheat", "dry"] if has_words else [], ["grain"])
    assert read.dense.tolist() == q.tolist() == dense_of(vector).tolist()
    assert without_dense(vector) == words
    assert without_dense(words) is words


@given(dense_numbers, st.data())
def test_damaged_vectors_are_refused_or_harmless(q, data):
    record = bytearray(add_dense(WORDS, q.tobytes(), 0.1) + LABELS)
    record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    cut = bytes(record[: data.draw(st.integers(0, len(record)))])
    for damaged in (bytes(record), cut):
        try:
            check_records(damaged, 1)
        except Corrupted:
            continue
        model = LiveModel(ModelConfig(update="sls"), (1, 2))
        learn(model, damaged)
        assert unpack(damaged).labels


def with_head(d: int, value: float, rest: bytes) -> bytes:
    head = np.array([d], "<u4").tobytes() + np.array([value], "<f4").tobytes()
    return WORDS[:3] + b"\x80" + WORDS[4:] + head + rest + LABELS


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (with_head(0, 0.1, b""), "invalid dense"),
        (with_head(4, 0.1, bytes(4)), "invalid dense"),
        (with_head(4, 0.0, b"\1\0\0\0"), "invalid dense"),
        (with_head(4, np.nan, b"\1\0\0\0"), "invalid dense"),
        (with_head(4, np.inf, b"\1\0\0\0"), "invalid dense"),
        (with_head(3, 0.1, b"\1\0\0\1"), "padding"),
        (with_head(MAX_DIMENSION + 1, 0.1, b"\1" * 2052), "past the end"),
        (with_head(2**32 - 1, 0.1, b"\1\0\0\0"), "past the end"),
        (add_dense(pack_vector([b"\0m12"], np.ones(1, np.float32)), b"\1", 0.1) + LABELS, "zero byte"),
    ],
)
def test_what_the_dense_part_must_not_hold(record, problem):
    with pytest.raises(Corrupted, match=f"record 0 of 1 .*{problem}"):
        check_records(record, 1)


@given(
    arrays.arrays(np.int8, st.integers(1, 30), elements=st.integers(-128, 127)).filter(np.any),
    st.sampled_from([0, 4096, 16384]),
    st.booleans(),
)
def test_codes_take_the_place_of_the_numbers(q, n_codes, known):
    vector = add_dense(WORDS, q.tobytes(), 0.25)
    target = np.full(len(vector) + kernels.EXPANSION + 8, 0xAA, np.uint8)
    size = kernels.expand_vector(vector, n_codes, len(q) if known else len(q) + 1, target)
    keys, values = unpack_vector(target[:size].tobytes())
    codes = codes_of(q, n_codes) if n_codes and known else []
    assert keys == ["wheat", "dry"] + [f"\0m{code}" for code in codes]
    assert values.tolist() == pytest.approx([0.6, 0.8] + [0.25] * len(codes))
    assert (target[size:] == 0xAA).all()


def test_the_norm_covers_words_and_codes():
    vectorizer = LiveModel(ModelConfig(numbers="raw"), (1, 2)).vectorizer
    q = bytes([1, 2, 3])
    record = unpack(vectorizer.vectorize(b'{"price": 3}', "wheat wheat", q) + LABELS)
    norm = np.sqrt((1 + np.log(2)) ** 2 + 9 + 4)
    assert record.values.tolist() == pytest.approx([(1 + np.log(2)) / norm, 3 / norm])
    assert vectorizer.vectorize(None, None, q) == add_dense(bytes(4), q, 0.125)
    assert vectorizer.vectorize(None, "wheat") == vectorizer.vectorize(None, "wheat")  # nothing of the vector is left


@pytest.mark.parametrize("boolean", [False, True])
@pytest.mark.parametrize(
    ("features", "text"), [(b'{"a": 3, "b": 0.1}', "some words"), (b"{}", None), (b'{"a": 1e99}', None), (None, "a")]
)
def test_kernel_and_plain_python_give_the_same_bytes(boolean, features, text, monkeypatch):
    vectorizer = LiveModel(ModelConfig(boolean=boolean), (1, 2)).vectorizer
    fast = vectorizer.vectorize(features, text, bytes([7, 1]))
    monkeypatch.setattr("abound_core.instances.vectorizer.use_kernel", False)
    assert vectorizer.vectorize(features, text, bytes([7, 1])) == fast


@pytest.mark.parametrize("use_kernel", [True, False])
def test_no_name_or_term_begins_like_a_code(use_kernel, monkeypatch):
    monkeypatch.setattr("abound_core.instances.vectorizer.use_kernel", use_kernel)
    vectorizer = LiveModel(ModelConfig.from_dict({"analyzer": {"kind": "char", "ngrams": [3, 3]}}), (1, 2)).vectorizer
    assert unpack_vector(vectorizer.vectorize(None, "\0m12"))[0] == ["m12"]
    with pytest.raises(InvalidInstance, match="zero character") as refused:
        vectorizer.vectorize(rb'{"\u0000m12": 1}', None)
    assert refused.value.field.startswith("features.")


def learn(model: LiveModel, *records: bytes) -> None:
    model.begin(b"".join(records), len(records), [Unit(1)] * len(records)).finish()


def stream(model: LiveModel, n: int, d: int = 24, seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng(seed)
    records = []
    for i in range(n):
        numbers = rng.normal(0, 0.3, d)
        numbers[i % 3] += 1
        text = f"word{i % 17} more{i % 5}" if i % 4 else None
        vector = model.vectorizer.vectorize(None, text, quantize(numbers) if i % 5 or text is None else None)
        records.append(vector + pack_labels([f"class {i % 3}"], LIMITS))
    return records


@pytest.mark.parametrize("config", [{}, {"codes": 16384}, {"rows": False, "max_features": 10}, {"calibrate": False}])
def test_a_model_learns_what_vectors_mean(config):
    model = LiveModel(ModelConfig.from_dict({"update": "sls"} | config), (1, 2))
    learn(model, *stream(model, 240))
    right = 0
    for i, record in enumerate(stream(model, 60, seed=1)):
        read = unpack(record)
        if read.dense is None:
            continue
        ranking = model.rank(model.vectorizer.vectorize(None, None, read.dense.tobytes()), 1)
        right += model.label(int(ranking.class_ids[0])) == f"class {i % 3}"
    assert right >= 45
    assert model.dimension == 24


def test_a_vector_of_another_dimension_is_left_out():
    """Two requests in flight may bring different first vectors; the log decides."""
    model, other = (LiveModel(ModelConfig(update="sls"), (i, i)) for i in (1, 2))
    first = stream(model, 30)
    wrong = model.vectorizer.vectorize(None, "wheat", bytes([1, 2])) + LABELS
    alone = model.vectorizer.vectorize(None, None, bytes([1, 2])) + LABELS
    learn(model, first[1], wrong, alone, *first)
    for record in (first[1], wrong, alone, *first):
        learn(other, record)
    assert model.dimension == 24
    assert model.features.find(b"wheat") >= 0
    assert model.digest() == other.digest()
    with pytest.raises(InvalidInstance, match="vector has 2 numbers; those of this model have 24") as refused:
        model.check_dimension(2)
    assert refused.value.field == "vector"
    model.check_dimension(24)


def test_max_features_never_evicts_codes():
    model = LiveModel(ModelConfig(update="sls", max_features=5), (1, 2))
    n_codes = 0
    for record in stream(model, 60):
        learn(model, record)
        now = model.features.count_longer(kernels.PREFIX)
        assert now >= n_codes
        assert len(model.features) - now <= 5
        n_codes = now
    assert n_codes > 300

"""Matrices: built in a stream, in an order that the data decide, and refused where they are wrong."""

import numpy as np
import pytest
from scipy import sparse

from abound_core.config import ModelConfig
from abound_core.errors import InvalidInstance
from abound_core.instances.data_formats import DatasetInstance, vectorize_all
from abound_core.instances.record import dense_of, pack_labels, unpack_labels, unpack_vector
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import DATASET_LIMITS
from abound_core.methods.training import idf
from abound_core.methods.training.gather import gather, to_dataset
from abound_core.methods.training.matrices import (
    VALUES_AT_ONCE,
    Hierarchy,
    Matrices,
    hide_labels,
    l2_normalise,
    vector_rows,
)
from tests.core.methods.toy import SECRET, fit, from_log, made

ROWS = [
    DatasetInstance(text="wheat and wheat", labels=("grain", "10"), line=1),
    DatasetInstance(features=b'{"10": 3, "9": 4}', labels=("9",), line=2),
    DatasetInstance(features=b"{}", line=3),
]


def vectorizer() -> Vectorizer:
    return Vectorizer(ModelConfig(), DATASET_LIMITS)


def read(rows: list[DatasetInstance], like: Matrices | None = None) -> Matrices:
    return gather(rows, vectorizer(), DATASET_LIMITS, SECRET, like)


def test_columns_stand_in_the_order_of_numbers_and_letters():
    data = read(ROWS)
    assert data.keys == [b"9", b"10", b"and", b"wheat"]
    assert data.labels == ["9", "10", "grain"]
    assert data.text
    log = 1 + np.log(2)
    expected = [[0, 0, 1 / np.hypot(1, log), log / np.hypot(1, log)], [0.8, 0.6, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(data.X.toarray(), expected, rtol=1e-6)
    assert data.Y.toarray().tolist() == [[0, 1, 1], [1, 0, 0], [0, 0, 0]]
    assert data.learnable.tolist() == [0, 1]
    assert data.label_counts.tolist() == [1, 1, 1]
    assert data.X.nnz == 4


def test_other_instances_in_the_same_columns():
    data = read(ROWS)
    rows = [
        DatasetInstance(text="wheat or corn", labels=("corn", "9")),
        DatasetInstance(text="oats", labels=("grain",)),
    ]
    test = read(rows, like=data)
    assert test.keys == data.keys
    assert test.labels == [*data.labels, "corn"]
    np.testing.assert_allclose(test.X.toarray(), [[0, 0, 0, 1], [0, 0, 0, 0]])  # of length 1 without the unknown
    assert test.Y.toarray().tolist() == [[1, 0, 0, 1], [0, 0, 1, 0]]
    vectors = [vectorizer().vectorize(row.features, row.text) for row in rows]
    np.testing.assert_array_equal(vector_rows(vectors, data.features).toarray(), test.X.toarray())


def test_from_the_records_of_a_log():
    rows = [row for row in ROWS if row.labels]
    records = [vectorizer().vectorize(row.features, row.text) + pack_labels(row.labels, DATASET_LIMITS) for row in rows]
    data, same = read(rows), from_log(records)
    assert (data.keys, data.labels) == (same.keys, same.labels)
    np.testing.assert_array_equal(data.X.toarray(), same.X.toarray())
    np.testing.assert_array_equal(data.Y.toarray(), same.Y.toarray())


def test_rows_get_the_length_1_whatever_their_place():
    rng = np.random.default_rng(0)
    sizes = [0, 3, VALUES_AT_ONCE + 5, 0, 0, VALUES_AT_ONCE - 1, 1, 0, *rng.integers(0, 50, 5000).tolist(), 0]
    starts = np.concatenate(([0], np.cumsum(sizes)))
    values = rng.random(starts[-1]).astype(np.float32) + 0.1
    indices = np.concatenate([np.arange(size) for size in sizes]).astype(np.int32)
    X = sparse.csr_matrix((values.copy(), indices, starts), shape=(len(sizes), VALUES_AT_ONCE + 5))
    l2_normalise(X)
    for row, size in enumerate(sizes):
        own = slice(starts[row], starts[row + 1])
        expected = values[own] / np.sqrt(np.sum(values[own].astype(np.float64) ** 2)).astype(np.float32)
        np.testing.assert_allclose(X.data[own], expected, rtol=1e-6)
        assert len(X.data[own]) == size


def matrices(X: object, Y: object) -> Matrices:
    data = read(ROWS)
    return Matrices(X=X, Y=Y, features=data.features, labels=data.labels)  # type: ignore[arg-type]


def of(values: list[float], columns: list[int], ends: list[int], width: int) -> sparse.csr_matrix:
    matrix = sparse.csr_matrix((len(ends), width), dtype=np.float32)
    matrix.data, matrix.indices = np.array(values, np.float32), np.array(columns, np.int32)
    matrix.indptr = np.array([0, *ends], np.int32)
    return matrix


@pytest.mark.parametrize(
    ("X", "Y", "message"),
    [
        (of([1], [4], [1], 4), of([1], [0], [1], 3), "X has a column out of range: it has 4"),
        (of([1], [0], [1], 4), of([1], [3], [1], 3), "Y has a column out of range: it has 3"),
        (of([np.nan], [0], [1], 4), of([1], [0], [1], 3), "X has a value that is not finite"),
        (of([-1], [0], [1], 4), of([1], [0], [1], 3), "X has a value that is not above 0"),
        (of([1, 1], [2, 1], [2], 4), of([1], [0], [1], 3), "X has a row whose columns do not ascend"),
        (of([1], [0], [1], 4), of([1, 1], [0, 0], [1, 2], 3), "X has 1 rows and Y 2"),
        (of([1], [0], [1], 5), of([1], [0], [1], 3), "a column for each feature"),
    ],
)
def test_wrong_matrices_are_refused(X, Y, message):
    with pytest.raises(ValueError, match=message):
        matrices(X, Y)


def test_a_hierarchy_and_cooccurrence_have_a_place_for_each_label():
    data = read(ROWS)
    with pytest.raises(ValueError, match="hierarchy must be a square"):
        Hierarchy(parents=sparse.csr_matrix((3, 4)))
    small = sparse.csr_matrix((2, 2), dtype=np.float32)
    for wrong in ({"hierarchy": Hierarchy(parents=small)}, {"cooccurrence": small}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must have a"):
            Matrices(X=data.X, Y=data.Y, features=data.features, labels=data.labels, **wrong)  # type: ignore[arg-type]


def test_hidden_labels():
    data = made(200, seed=0)
    hidden = hide_labels(data, 0.8, np.random.default_rng(1))
    assert hidden.Y.nnz == round(0.2 * data.Y.nnz)
    assert (hidden.Y.toarray() <= data.Y.toarray()).all()
    assert hidden.labels == data.labels
    full = data.Y.toarray().astype(int)
    np.testing.assert_array_equal(hidden.cooccurrence.toarray(), full.T @ full)
    again = hide_labels(data, 0.8, np.random.default_rng(1))
    np.testing.assert_array_equal(hidden.Y.toarray(), again.Y.toarray())
    assert hide_labels(data, 1.0, np.random.default_rng(1)).Y.nnz == 0


def test_idf_weights():
    X = read([DatasetInstance(text="a b"), DatasetInstance(text="a"), DatasetInstance(text="a c")]).X
    factors = idf.weights(X)
    np.testing.assert_allclose(factors, np.log([4 / 3.5, 4 / 1.5, 4 / 1.5]), rtol=1e-6)
    rows = idf.weighted(X, factors).toarray()
    np.testing.assert_allclose(rows[0], [*factors[:2] / np.hypot(*factors[:2]), 0], rtol=1e-6)
    everywhere = idf.weights(read([DatasetInstance(text="a")] * 400).X)
    assert everywhere.tolist() == [np.float32(idf.LEAST)]
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)


def test_a_value_next_to_0_stays_above_it_when_weighted():
    rows = [DatasetInstance(features=b'{"p": 1}', labels=(f"{i % 2}",)) for i in range(100)]
    data = read([*rows, DatasetInstance(features=b'{"p": 1e-44, "q": 1}', labels=("2",))])
    before = data.X.copy()
    model = fit("swnn", data, use_idf=True, S=1)
    vector = vectorizer().vectorize(b'{"p": 1e-44, "q": 1}', None)
    assert model.labels[model.rank_vectors([vector], 1).ids[0]] == "2"
    assert (before != data.X).nnz == 0


@pytest.mark.parametrize(
    ("rows", "use_idf", "expected"),
    [(ROWS, None, True), (ROWS[1:], None, False), (ROWS, False, False), (ROWS[1:], True, True)],
)
def test_idf_is_on_for_text_unless_told(rows, use_idf, expected):
    with pytest.raises(InvalidInstance, match="ff takes no idf"):
        fit("ff", read(ROWS), use_idf=True)
    model = fit("swnn", read(rows), use_idf=use_idf, S=1)
    assert (model.idf is not None) is expected
    assert ("idf" in model.to_arrays()) is expected


@pytest.mark.parametrize("boolean", [False, True])
def test_matrices_are_a_data_set_again_with_its_dense_vectors(boolean):
    rows = [*ROWS, DatasetInstance(text="wheat prices", vector=[3.0, -4.0, 0.5], labels=("grain",), line=4)]
    made_by = Vectorizer(ModelConfig(boolean=boolean), DATASET_LIMITS)
    expected = vectorize_all(rows, made_by, DATASET_LIMITS)
    found = to_dataset(gather(rows, made_by, DATASET_LIMITS, SECRET, dense_bytes=1000), boolean)
    assert found.learnable.tolist() == expected.learnable.tolist()
    for row in range(len(rows)):
        given, made = unpack_vector(expected.vectors[row]), unpack_vector(found.vectors[row])
        assert dict(zip(*made, strict=True)) == pytest.approx(dict(zip(*given, strict=True)))
        numbers, same = dense_of(expected.vectors[row]), dense_of(found.vectors[row])
        assert (None if same is None else same.tolist()) == (None if numbers is None else numbers.tolist())
        parts = [one.label_parts[row] and sorted(unpack_labels(one.label_parts[row], 0)) for one in (expected, found)]
        assert parts[0] == parts[1]
    assert gather(rows, made_by, DATASET_LIMITS, SECRET, dense_bytes=9).dense is None

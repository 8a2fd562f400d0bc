"""Units of an entry: what has come already, refused batches and emptied units, against a plain account."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abound_core.config import ModelConfig
from abound_core.model.entry_application import EntryApplication, Unit
from abound_core.model.live_model import LiveModel
from abound_core.model.receipts import BodyMismatch, Receipt, Receipts
from abound_core.types import Offset
from tests.core.model.test_live_model import Instance, records_of

CAPACITY = 3

keyed = st.lists(
    st.tuples(st.integers(1, 3), st.none() | st.sampled_from("abcde"), st.sampled_from([b"1", b"2"])),
    min_size=1,
    max_size=20,
)
emptied_or_not = st.lists(
    st.tuples(st.integers(1, 4), st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=12
)


def applied(model: LiveModel, records: bytes, units: list[Unit], slices: int = 3, entry: int = 1) -> EntryApplication:
    applying = model.begin(records, sum(unit.n for unit in units), units, Offset(entry, 0, 0))
    while not applying.done:
        applying.step(slices)
    return applying


def instance(number: int) -> Instance:
    return [f"f{number % 7}", f"g{number % 5}"], [f"c{number % 3}"]


def model_of(shapes: list[tuple[int, str | None, bytes]], slices: int) -> tuple[LiveModel, EntryApplication]:
    model = LiveModel(ModelConfig(), (1, 2))
    model.receipts = Receipts(CAPACITY)
    made = [Unit(n, key, body if key else b"") for n, key, body in shapes]
    records = records_of([instance(i) for i in range(sum(unit.n for unit in made))])
    return model, applied(model, records, made, slices)


@given(keyed, st.integers(2, 40))
def test_units_with_keys_are_learned_once_each_whatever_is_applied_together(shapes, slices):
    model, applying = model_of(shapes, slices)
    one_by_one, expected = model_of(shapes, 1)
    assert applying.ranks.tolist() == expected.ranks.tolist()
    assert applying.updated.tolist() == expected.updated.tolist()
    assert applying.outcomes == expected.outcomes
    assert model.digest() == one_by_one.digest()

    known: dict[str, tuple[bytes, int]] = {}
    n_learned = at = 0
    for (n, key, body), outcome in zip(shapes, applying.outcomes, strict=True):
        if key in known:
            first_body, first = known[key]
            if first_body == body:
                assert isinstance(outcome, Receipt)
                assert outcome.offset.position == first
            else:
                assert outcome == BodyMismatch(key)
        else:
            assert outcome is None
            n_learned += n
            if key is not None:
                known[key] = (body, at)
                if len(known) > CAPACITY:
                    known.pop(next(iter(known)))
        at += n
    assert model.n_learned == n_learned
    for key, (body, first) in known.items():
        receipt = model.receipts.get(key)
        assert (receipt.body, receipt.offset.position) == (body, first)
    assert len(model.receipts) == len(known)


K, L, OTHER = Unit(1, "k", b"body"), Unit(1, "l", b"l"), Unit(1, "k", b"other")
AGAIN, WRONG = Receipt(b"body", Offset(1, 0, 0), [0], [True]), BodyMismatch("k")


@pytest.mark.parametrize(
    ("units", "outcomes", "learned"),
    [
        ([K, K, OTHER, Unit(1)], [None, AGAIN, WRONG, None], "0 3"),
        ([K, Unit(1, batch=2), OTHER, Unit(1)], [None, WRONG, WRONG, None], "0 3"),
        ([K, Unit(1, batch=3), K, L], [None, None, AGAIN, None], "0 1 3"),
        ([Unit(1, "k", b"body", batch=2), OTHER], [WRONG, WRONG], ""),
        (
            [Unit(2, "k", b"body"), Unit(2, "k", b"body")],
            [None, Receipt(b"body", Offset(1, 0, 0), [0, 0], [True, True])],
            "0 1",
        ),
    ],
    ids=["repeated", "batch with another body", "batch with a repetition", "batch that disagrees", "whole batch"],
)
def test_batches_are_learned_once_or_refused_whole(units, outcomes, learned):
    model = LiveModel(ModelConfig(), (1, 2))
    n = sum(unit.n for unit in units)
    applying = applied(model, records_of([([f"f{i}"], [str(i)]) for i in range(n)]), units, slices=2)
    assert applying.outcomes == outcomes
    assert " ".join(str(i) for i in range(n) if model.labels.find(str(i).encode()) >= 0) == learned


@given(emptied_or_not, st.integers(1, 7))
def test_an_entry_with_emptied_units_applies_as_if_they_had_never_been(shapes, slices):
    without, emptied, records = [], [], b""
    positions = []
    at = 0
    for number, (n, gone, keyed, in_batch) in enumerate(shapes):
        batch = 2 if in_batch and number + 1 < len(shapes) else 1
        unit = Unit(n, f"k{number}" if keyed else None, b"body", None, batch)
        if gone:
            emptied.append(Unit(n, batch=batch, emptied=True))
        else:
            own = records_of([instance(at + i) for i in range(n)])
            records += own
            emptied.append(unit)
            without.append((own, Unit(n, unit.key, unit.body)))
            positions += range(at, at + n)
        at += n
    model, plain = LiveModel(ModelConfig(), (1, 2)), LiveModel(ModelConfig(), (3, 4))
    applying = applied(model, records, emptied, slices)
    ranks = [rank for own, unit in without for rank in applied(plain, own, [unit]).ranks.tolist()]
    assert applying.n_done == at == len(applying.ranks)
    assert [applying.ranks[position] for position in positions] == ranks
    for one in (model, plain):  # offsets stay, so those of the receipts are other ones
        one.receipts = type(one.receipts)()
    assert model.digest() == plain.digest()


def test_a_batch_that_is_refused_is_passed_over_with_its_emptied_units():
    model = LiveModel(ModelConfig(), (1, 2))
    units = [K, Unit(2, batch=3, emptied=True), OTHER, Unit(1), L]
    applying = applied(model, records_of([instance(i) for i in range(4)]), units, entry=9)
    assert applying.outcomes == [None, *[WRONG] * 3, None]
    assert applying.n_done == 6
    assert model.n_learned == 2
    assert model.receipts.get("l").offset == Offset(9, 0, 5)

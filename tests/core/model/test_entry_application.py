"""Units with idempotency keys, applied together: against a plain account of what comes twice."""

from hypothesis import given
from hypothesis import strategies as st

from abound_core.config import ModelConfig
from abound_core.model.entry_application import EntryApplication, Unit
from abound_core.model.live_model import LiveModel
from abound_core.model.receipts import BodyMismatch, Receipt, Receipts
from tests.core.model.test_emptied_units import applied, instance
from tests.core.model.test_live_model import records_of

CAPACITY = 3

units = st.lists(
    st.tuples(st.integers(1, 3), st.none() | st.sampled_from("abcde"), st.sampled_from([b"1", b"2"])),
    min_size=1,
    max_size=20,
)


def model_of(shapes: list[tuple[int, str | None, bytes]], slices: int) -> tuple[LiveModel, EntryApplication]:
    model = LiveModel(ModelConfig(), (1, 2))
    model.receipts = Receipts(CAPACITY)
    made = [Unit(n, key, body if key else b"") for n, key, body in shapes]
    records = records_of([instance(i) for i in range(sum(unit.n for unit in made))])
    return model, applied(model, records, made, slices)


@given(units, st.integers(2, 40))
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
        assert receipt is not None
        assert (receipt.body, receipt.offset.position) == (body, first)
    assert len(model.receipts) == len(known)

"""Emptied units: an entry without some of its events applies as one that never had them, and offsets stay."""

from hypothesis import given
from hypothesis import strategies as st

from abound_core.config import ModelConfig
from abound_core.model.entry_application import EntryApplication, Unit
from abound_core.model.live_model import LiveModel
from abound_core.model.receipts import BodyMismatch, Receipt
from abound_core.types import Offset
from tests.core.model.test_live_model import Instance, records_of


def applied(model: LiveModel, records: bytes, units: list[Unit], slices: int = 3, entry: int = 1) -> EntryApplication:
    applying = model.begin(records, sum(unit.n for unit in units), units, Offset(entry, 0, 0))
    while not applying.done:
        applying.step(slices)
    return applying


def instance(number: int) -> Instance:
    return [f"f{number % 7}", f"g{number % 5}"], [f"c{number % 3}"]


units = st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=12)


@given(units, st.integers(1, 7))
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


def test_receipts_name_the_positions_that_were():
    model = LiveModel(ModelConfig(), (1, 2))
    applying = applied(model, records_of([instance(1)]), [Unit(4, emptied=True), Unit(1, "k", b"body")], entry=9)
    assert applying.outcomes == [None, None]
    assert model.receipts.get("k") == Receipt(b"body", Offset(9, 0, 4), [0], [True])


def test_a_batch_that_is_refused_is_passed_over_with_its_emptied_units():
    model = LiveModel(ModelConfig(), (1, 2))
    units = [
        Unit(1, "k", b"first"),
        Unit(2, batch=3, emptied=True),
        Unit(1, "k", b"other"),
        Unit(1),
        Unit(1, "last", b"body"),
    ]
    applying = applied(model, records_of([instance(i) for i in range(4)]), units)
    assert applying.outcomes == [None, *[BodyMismatch("k")] * 3, None]
    assert applying.n_done == 6
    assert model.n_learned == 2
    receipt = model.receipts.get("last")
    assert receipt is not None
    assert receipt.offset == Offset(1, 0, 5)


def test_an_entry_of_which_nothing_is_left_does_nothing():
    model = LiveModel(ModelConfig(), (1, 2))
    before = model.digest()
    assert applied(model, b"", [Unit(3, emptied=True)]).ranks.tolist() == [0, 0, 0]
    assert model.digest() == before

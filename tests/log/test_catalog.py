"""The catalog of models: entries one after the other, whatever they say, and a stream that is made shorter."""

from typing import Any

import pytest

from abound.log import stream
from abound.log.catalog import CATALOG_KEY, Catalog, compact_catalog, read_catalog
from abound.log.events import (
    APPLY_VERSION,
    CatalogEntry,
    IncarnationDropped,
    KnownModel,
    KnownModels,
    ModelCreated,
    ModelDeleted,
    ModelReplaced,
    ReplacementBegun,
    ReplacementPrepared,
    encode,
)
from abound.log.stream import Element
from abound.store.client import Store
from abound.store.raw_connection import StoreConnection
from abound_core.config import ModelConfig
from abound_core.errors import Corrupted, StoreUnavailable
from abound_core.types import START, Offset
from tests.support.replicas import until
from tests.support.streams import fields_of


def element(entry_id: str, event: Any) -> Element:
    payload, checksum = encode(CatalogEntry(APPLY_VERSION, event))
    return entry_id.encode(), [b"e", payload, b"c", checksum]


def test_an_entry_that_cannot_be_read_changes_nothing() -> None:
    catalog = Catalog()
    with pytest.raises(Corrupted, match="configuration of the model news"):
        catalog.apply(element("5-0", ModelCreated("news", {"d_max": -3})))
    with pytest.raises(Corrupted, match="checksum"):
        catalog.apply((b"5-0", [b"e", b"x", b"c", b"y"]))
    assert (len(catalog), catalog.offset) == (0, START)


@pytest.mark.parametrize(
    "model",
    [
        KnownModel("news", "x", {}, "4-0"),
        KnownModel("mail", "4-0", {"d_max": -3}, "4-0"),
        KnownModel("mail", "4-0", {}, "4-0", coming=("5-0", {"d_max": -3})),
        KnownModel("mail", "4-0", {}, "4-0", former=("x", {}, 1)),
    ],
    ids=["incarnation", "configuration", "coming", "former"],
)
def test_an_entry_that_says_what_can_be_no_model_changes_nothing(model: KnownModel) -> None:
    catalog = Catalog()
    catalog.apply(element("5-0", ModelCreated("news", {})))
    with pytest.raises(Corrupted):
        catalog.apply(element("6-0", KnownModels([model])))
    assert ([one.keys.name for one in catalog], catalog.offset, catalog.n_since) == (["news"], Offset(5, 0, 0), 1)


def applied(*said: Any) -> Catalog:
    """The catalog after events, whose entries are 1-0, 2-0 and so on."""
    catalog = Catalog()
    for number, event in enumerate(said, 1):
        catalog.apply(element(f"{number}-0", event))
    return catalog


BEGUN = [ModelCreated("m", {}), ReplacementBegun("m", "1-0")]
PREPARED = [*BEGUN, ReplacementPrepared("m", "2-0", {"d_max": 3})]
REPLACED = [*PREPARED, ModelReplaced("m", "1-0", "2-0", True)]


def seen(catalog: Catalog) -> dict[str, Any]:
    """The incarnations of the model: which is served, which is coming, and which is kept for an undo."""
    living, coming, former = catalog.get("m"), catalog.coming.get("m"), catalog.former.get("m")
    return {
        "served": living and living.keys.incarnation,
        "coming": coming and coming.keys.incarnation,
        "former": former and former.keys.incarnation,
    }


def test_a_model_is_replaced_by_what_was_prepared() -> None:
    assert seen(applied(*BEGUN)) == {"served": "1-0", "coming": "2-0", "former": None}
    assert applied(*BEGUN).coming["m"].config is None
    catalog = applied(*PREPARED)
    assert catalog.coming["m"].config == ModelConfig.from_stored({"d_max": 3})
    catalog = applied(*REPLACED)
    assert seen(catalog) == {"served": "2-0", "coming": None, "former": "1-0"}
    living = catalog.get("m")
    assert (living.origin, living.config.d_max, catalog.former["m"].replaced) == ("1-0", 3, 4)
    again = [ReplacementBegun("m", "2-0"), ReplacementPrepared("m", "5-0", {})]
    catalog = applied(*REPLACED, *again, ModelReplaced("m", "2-0", "5-0", False))
    assert seen(catalog) == {"served": "5-0", "coming": None, "former": None}  # only the last one can be undone
    assert [keys.incarnation for keys in catalog.incarnations()] == ["5-0"]


MISFITS = {
    "not prepared": (BEGUN, ModelReplaced("m", "1-0", "2-0", True)),
    "another replacement": (PREPARED, ModelReplaced("m", "1-0", "3-0", True)),
    "another model": (PREPARED, ModelReplaced("m", "2-0", "2-0", True)),
    "prepared twice": (PREPARED, ReplacementPrepared("m", "1-0", {})),
    "dropping the served one": (PREPARED, IncarnationDropped("m", "1-0")),
    "replaced twice": (REPLACED, ModelReplaced("m", "1-0", "2-0", True)),
    "late beginning": (REPLACED, ReplacementBegun("m", "1-0")),
    "dropping the new one": (REPLACED, IncarnationDropped("m", "2-0")),
    "unknown name": (REPLACED, ReplacementBegun("other", "2-0")),
}


@pytest.mark.parametrize("case", MISFITS)
def test_an_event_of_a_replacement_that_does_not_fit_is_nothing(case: str) -> None:
    before, event = MISFITS[case]
    assert seen(applied(*before, event)) == seen(applied(*before))


def test_a_replacement_ends_with_a_newer_one_or_by_itself() -> None:
    assert seen(applied(*PREPARED, ReplacementBegun("m", "1-0")))["coming"] == "4-0"
    assert seen(applied(*PREPARED, IncarnationDropped("m", "2-0")))["coming"] is None
    only = {"served": "2-0", "coming": None, "former": None}
    assert seen(applied(*REPLACED, IncarnationDropped("m", "1-0"))) == only


@pytest.mark.parametrize(("before", "incarnation"), [(PREPARED, "1-0"), (REPLACED, "1-0"), (REPLACED, "2-0")])
def test_a_deleted_model_leaves_nothing_of_its_replacements(before: list[Any], incarnation: str) -> None:
    """Also if the process that deletes it does not know yet that it was replaced."""
    catalog = applied(*before, ModelDeleted("m", incarnation))
    assert seen(catalog) == {"served": None, "coming": None, "former": None}
    assert list(catalog.incarnations()) == []


@pytest.mark.parametrize("before", [BEGUN, PREPARED, REPLACED], ids=["begun", "prepared", "replaced"])
def test_an_entry_that_says_all_has_the_replacements_too(before: list[Any]) -> None:
    whole, late = applied(*before), Catalog()
    late.apply(element("9-0", whole.known_models()))
    assert (list(late), late.coming, late.former) == (list(whole), whole.coming, whole.former)


async def append(store: Store, *events: Any) -> None:
    for event in events:
        await store.client.xadd(CATALOG_KEY, fields_of(CatalogEntry(APPLY_VERSION, event)))


async def test_the_stream_is_made_shorter_by_one_who_has_read_all_of_it(store: Store) -> None:
    for n in range(4):
        await append(store, *[ModelCreated(f"model{n}-{i}", {"d_max": 5 + i}) for i in range(9)])
        late = await read_catalog(store)
        await append(store, ModelCreated(f"model{n}", {}))
        whole = await read_catalog(store)
        assert not await compact_catalog(store, late)
        assert await compact_catalog(store, whole)
        assert not await compact_catalog(store, whole)
        assert list(await read_catalog(store)) == list(whole)
        assert len(whole) == 10 * (n + 1)
        assert await store.client.xlen(CATALOG_KEY) == (11 if n == 0 else 12)


async def test_half_of_a_catalog_counts_for_nothing(server, start_replica, monkeypatch):
    """A replica reads it again because the store has lost its end, and the connection is lost on the way."""
    replica = await start_replica(server)
    for name in ("news", "sport"):
        await replica.models.create(name, ModelConfig())
    read, is_cut = stream.read, False

    async def lose(connection: StoreConnection, key: bytes, *given: Any, **options: Any) -> Any:
        nonlocal is_cut
        async for elements in read(connection, key, *given, **options):
            yield elements
            if key == CATALOG_KEY and not is_cut:
                is_cut = True
                raise StoreUnavailable("the connection is lost")

    monkeypatch.setattr(stream, "read", lose)
    with server.client() as client:
        [(last, _)] = client.xrevrange(CATALOG_KEY, count=1)
        client.xdel(CATALOG_KEY, last)
        client.client_kill_filter(_type="normal", skipme=True)
    await until(lambda: is_cut)
    await append(replica.store, ModelCreated("late", {}))
    await until(lambda: "late" in replica.models.names())
    assert set(replica.models.names()) == {"default", "news", "late"}

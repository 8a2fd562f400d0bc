from __future__ import annotations

from typing import Any

import pytest

from core.config import ModelConfig
from core.errors import Damaged
from core.types import START, Offset
from service.catalog import Catalog, ModelKeys, read_catalog
from service.events import APPLY_VERSION, CatalogEntry, Created, Deleted, encode
from service.log import Element
from service.store import Store


def element(entry_id: str, event: Any) -> Element:
    payload, checksum = encode(CatalogEntry(APPLY_VERSION, event))
    return entry_id.encode(), [b"e", payload, b"c", checksum]


def test_a_name_that_is_used_again_is_another_incarnation() -> None:
    catalog = Catalog()
    catalog.apply(element("5-0", Created("news", {"d_max": 3})))
    first = catalog.get("news")
    catalog.apply(element("6-0", Deleted("news", "5-0")))
    assert catalog.get("news") is None
    catalog.apply(element("7-2", Created("news", {})))
    second = catalog.get("news")
    assert first is not None
    assert second is not None
    assert first.config.d_max == 3
    assert second.config == ModelConfig()
    assert first.keys.log == b"abound:{news:5-0}:log"
    assert second.keys.log == b"abound:{news:7-2}:log"
    assert catalog.offset == Offset(7, 2, 0)


def test_creating_a_living_model_is_nothing() -> None:
    catalog = Catalog()
    catalog.apply(element("5-0", Created("default", {"d_max": 3})))
    catalog.apply(element("6-0", Created("default", {"d_max": 8})))
    assert [(living.keys.incarnation, living.config.d_max) for living in catalog] == [("5-0", 3)]


def test_deleting_another_incarnation_is_nothing() -> None:
    catalog = Catalog()
    catalog.apply(element("5-0", Created("news", {})))
    catalog.apply(element("6-0", Deleted("news", "4-0")))
    catalog.apply(element("7-0", Deleted("other", "5-0")))
    assert len(catalog) == 1


def test_an_entry_that_cannot_be_read_changes_nothing() -> None:
    catalog = Catalog()
    with pytest.raises(Damaged, match="configuration of the model news"):
        catalog.apply(element("5-0", Created("news", {"d_max": -3})))
    with pytest.raises(Damaged, match="checksum"):
        catalog.apply((b"5-0", [b"e", b"x", b"c", b"y"]))
    assert (len(catalog), catalog.offset) == (0, START)


def test_the_pattern_of_a_model_means_its_name_and_no_other() -> None:
    assert ModelKeys("a.b-c_d", "1-0").pattern == b"abound:{a.b\\-c_d:1-0}:*"


async def test_the_catalog_is_read_from_the_store(store: Store) -> None:
    for event in (Created("one", {}), Created("two", {"d_max": 2}), Created("three", {})):
        payload, checksum = encode(CatalogEntry(APPLY_VERSION, event))
        await store.client.xadd("abound:catalog", {"e": payload, "c": checksum})
    catalog = await read_catalog(store)
    assert [living.keys.name for living in catalog] == ["one", "two", "three"]

from __future__ import annotations

import asyncio
import errno
from typing import Any

import msgspec
import pytest

from abound.log.events import ActivateEvent, PrepareVersionEvent
from abound.replica.loaded_versions import ServingParams
from abound.replica.replica import Replica
from abound.state.replicated_model import ReplicatedModel
from abound.versions import activation
from abound.versions import versions as versions
from abound.versions.activation import activate
from abound.versions.card import Card
from abound_core.errors import ArtifactsUnavailable, Conflict, Corrupted, NotReady, UnknownVersion
from abound_core.model.active_version import LIVE
from abound_core.types import Offset
from tests.support.lab import Lab, digest_at, model_of, refitted
from tests.support.replicas import until
from tests.support.small_versions import fitted, place, write
from tests.support.streams import drafts


async def version(lab: Lab, name: str = "first", **fields: Any) -> Card:
    return await write(lab.artifacts, (await lab.living()).keys, fitted(name, **fields))


async def here(lab: Lab, **fields: Any) -> activation.ActivationContext:
    return place(lab.store, lab.artifacts, (await lab.living()).keys, **fields)


def model(replica: Replica) -> ReplicatedModel:
    return replica.model("default")


def observe(replica: Replica) -> tuple[Offset, str] | None:
    """What this replica would answer with now, and from where; None when it answers nothing."""
    one = model(replica)
    if not one.ready:
        return None
    one.check_serving()  # an answer by what is active can be given
    return one.offset, one.live.serving.version


async def truth(lab: Lab) -> list[tuple[Offset, str]]:
    """From which offset on which version is active, by the log alone."""
    return [(at, event.version) for at, event in await lab.elements() if isinstance(event, ActivateEvent)]


@pytest.mark.parametrize("error", [OSError(errno.ESTALE, "stale"), MemoryError()], ids=["OSError", "MemoryError"])
async def test_a_replica_that_cannot_map_the_active_version_tries_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    one = await lab.replica()
    await one.learn("default", drafts(40))
    card = await version(lab)
    await activate(await here(lab), card.id, "a test")

    def fail(*given: Any) -> Any:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(versions, "map_array", fail)
        late = await asyncio.wait_for(lab.replica(), 60)
        await until(lambda: "cannot be loaded" in str(model(late).halted))
        assert not late.status().ready
    await until(lambda: late.status().ready)
    assert observe(late) == (model(late).offset, card.id)


async def test_a_replica_without_the_artifact_store_answers_nothing_until_the_index_is_active_again(
    lab: Lab,
) -> None:
    one, blind = await lab.replica(), await lab.replica(artifacts=False)
    await one.learn("default", drafts(40))
    card = await version(lab)
    await activate(await here(lab, prepare_seconds=2), card.id, "a test")
    await until(lambda: "ABOUND_ARTIFACTS_URL" in str(model(blind).halted))
    await one.learn("default", drafts(5, 77))
    assert observe(blind) is None
    late = await lab.replica(artifacts=False)  # it starts, and says why it is not ready
    assert not late.status().ready
    assert "ABOUND_ARTIFACTS_URL" in str(late.status().reason)
    assert card.id in str(late.status().reason)
    await activate(await here(lab), LIVE, "back")
    await until(lambda: blind.status().ready and late.status().ready)
    last = model(one).offset
    assert {await digest_at(replica, last) for replica in (one, blind, late)} == {await lab.expected()}


async def test_a_replaced_model_keeps_its_active_version_and_the_others(lab: Lab) -> None:
    one = await lab.replica()
    await one.learn("default", drafts(40))
    first, second = await version(lab), await version(lab, "second")
    for card in (first, second):
        await activate(await here(lab), card.id, "a test")
    base = await refitted(lab, model_of(30, 9))
    await until(lambda: model(one).live.n_learned == 30)
    assert model(one).live.n_learned == 30
    serving = (await activation.read_active(lab.store, model(one).keys)).version
    assert (serving, observe(one)[1]) == (second.id, second.id)
    assert {card.id for card in await versions.cards(lab.artifacts, model(one).keys)} == {first.id, second.id}
    await activate(await here(lab), first.id, "a test")
    last = (await lab.elements())[-1][0]
    assert await digest_at(one, last) == await digest_at(await lab.replica(), last)
    assert model(one).offset > base.position.offset


async def test_only_while_another_one_is_active(lab: Lab) -> None:
    await lab.replica()
    first, second = await version(lab), await version(lab, "second")
    with pytest.raises(Conflict, match="is live and not"):
        await activate(await here(lab), first.id, "a test", if_active=second.id)
    at = await activate(await here(lab), first.id, "a test", if_active=LIVE)
    assert await activate(await here(lab), first.id, "again", if_active=first.id) == at
    with pytest.raises(Conflict, match=f"is {first.id} and not"):
        await activate(await here(lab), second.id, "a test", if_active=LIVE)
    assert await truth(lab) == [(at, first.id)]


async def test_what_cannot_be_activated_is_refused_before_anything_is_appended(lab: Lab) -> None:
    one = await lab.replica()
    card = await version(lab)
    before = model(one).offset
    with pytest.raises(UnknownVersion):
        await activate(await here(lab), "0123456789abcdef", "a test")
    with pytest.raises(ArtifactsUnavailable, match="ABOUND_ARTIFACTS_URL"):
        await activate((await here(lab))._replace(artifacts=None), card.id, "a test")
    folder = lab.artifacts.path(versions.folder(model(one).keys, card.id))
    assert folder is not None
    broken = next(path for path in folder.iterdir() if path.suffix == ".npy")
    broken.write_bytes(broken.read_bytes()[:-1] + b"\xff")
    with pytest.raises(Corrupted):
        await activate(await here(lab), card.id, "a test")
    assert not await lab.elements()
    assert model(one).offset == before
    assert await lab.store.client.exists(model(one).keys.key("activation-lease")) == 0


async def test_what_no_replica_could_load_is_not_activated(lab: Lab) -> None:
    blind = await lab.replica(artifacts=False)
    card = await version(lab)
    with pytest.raises(NotReady, match="no replica could load"):
        await activate(await here(lab, prepare_seconds=2), card.id, "a test")
    assert blind.status().ready
    assert [type(event) for _, event in await lab.elements()] == [PrepareVersionEvent]


async def test_replicas_let_go_of_a_version_that_was_not_activated_after_all(lab: Lab) -> None:
    one = await lab.replica(serving=ServingParams(loaded=1))
    first, second = await version(lab), await version(lab, "second")
    keys = (await lab.living()).keys
    async with activation.fence(lab.store, keys) as lease:
        prepare = PrepareVersionEvent("a", first.id, first.digest)
        await lease.renew(msgspec.json.encode(prepare))
        await lab.append(prepare)
        await until(lambda: first.id in (model(one).versions or {}))
        await one.loaded_versions.get(model(one), second.id)  # there is room for one besides what is to be active
        assert set(model(one).versions or {}) == {first.id, second.id}
    await until(lambda: set(model(one).versions or {}) == {second.id})
    assert await truth(lab) == []

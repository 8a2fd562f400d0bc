import asyncio
import errno
import json
import random
import time
from typing import Any

import msgspec
import pytest

from abound.api.classify import Classify
from abound.log.events import ActivateEvent, PrepareVersionEvent
from abound.processes.remote_encoder import RemoteEncoder
from abound.replica import rankers as ranking_pool
from abound.replica.loaded_versions import ServingParams
from abound.replica.predictions import RememberParams
from abound.replica.replica import Replica
from abound.security.rate_limits import RateLimiter, RateParams
from abound.settings import Settings
from abound.state.replicated_model import ReplicatedModel
from abound.tasks import TimeSlice
from abound.versions import activation
from abound.versions import versions as versions
from abound.versions.activation import activate
from abound.versions.card import Card
from abound.versions.ranking import rank_all
from abound_core.errors import ArtifactsUnavailable, Conflict, Corrupted, NotReady, UnknownVersion
from abound_core.model.active_version import LIVE
from abound_core.types import Offset
from tests.support.lab import Lab, digest_at, learning, model_of, refitted
from tests.support.replicas import until
from tests.support.small_versions import FEATURES, fitted, place, write
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
async def test_a_replica_that_cannot_map_the_active_version_tries_again(lab, monkeypatch, error):
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


async def test_a_replica_without_the_artifact_store_answers_nothing_until_the_index_is_active_again(lab):
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


def active_at(switches: list[tuple[Offset, str]], offset: Offset) -> str:
    return ([LIVE] + [version for at, version in switches if at[:2] <= offset[:2]])[-1]


class RouteCaller:
    """What a replica answers over HTTP, without HTTP."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.rankers = ranking_pool.Rankers(replica.loaded_versions, replica.params.serving)
        rates = RateLimiter(replica.store, RateParams())
        self.work = Classify(replica, Settings(), RememberParams(), rates, self.rankers, RemoteEncoder(Settings()))

    async def ask(self, **request: Any) -> dict[str, Any] | None:
        """An answer; None when there is none for now."""
        body = json.dumps(request).encode()
        try:
            answer = self.work.answer(self.replica.models.trusted("default"), body, {}, None)
            if not isinstance(answer, bytes):
                _, answer = await answer
        except NotReady:
            return None
        return json.loads(answer)


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_answer_is_by_another_version_than_was_active_at_its_offset(lab, seed, monkeypatch):
    rng = random.Random(seed)

    def rank_slowly(asked: Any) -> Any:
        time.sleep(rng.random() * 0.01)  # an activation may come meanwhile
        return rank_all(asked)

    monkeypatch.setattr(ranking_pool, "rank_all", rank_slowly)
    monkeypatch.setattr(TimeSlice, "due", lambda self: rng.random() < 0.2)
    replicas = [await lab.replica() for _ in range(3)]
    callers = [RouteCaller(replica) for replica in replicas]
    await replicas[0].learn("default", drafts(50))
    keys = (await lab.living()).keys
    made = {(await write(lab.artifacts, keys, one)).id: one for one in (fitted("one"), fitted("two", 7))}
    told: list[tuple[str, str, list[str]]] = []
    stop = False

    def note(answer: dict[str, Any]) -> None:
        told.append((answer["offset"], answer["version"], [one["label"] for one in answer.get("labels", [])]))

    async def classify(caller: RouteCaller) -> None:
        while not stop:
            features = rng.choice(FEATURES)
            alone = await caller.ask(features=features, k=3)
            if alone is not None:
                note(alone)
            batch = await caller.ask(instances=[{"features": rng.choice(FEATURES)} for _ in range(8)])
            if batch is not None:
                for result in [*batch["results"], {**batch, "labels": []}]:
                    note(result)
            await asyncio.sleep(0)

    asking = [asyncio.create_task(classify(caller)) for caller in callers]
    async with learning(replicas[0]), learning(replicas[1], 5000):
        for name in rng.choices([*made, LIVE], k=5):
            at = await activate(place(lab.store, lab.artifacts, keys), name, "a test")
            await until(lambda at=at: all(replica.model("default").offset > at for replica in replicas))
            first = len(told)
            await until(lambda name=name, first=first: name in {version for _, version, _ in told[first:]})
    stop = True
    await asyncio.gather(*asking)
    switches = await truth(lab)
    assert {version for _, version, _ in told} >= {version for _, version in switches}
    known = {version: set(one.labels) for version, one in made.items()}
    for offset, version, labels in told:
        assert version == active_at(switches, Offset.parse(offset)), offset
        if version != LIVE:
            assert set(labels) <= known[version]
    for caller in callers:
        caller.rankers.close()

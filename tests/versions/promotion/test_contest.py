"""Contests: scored as if by hand, decided by the gate, gone on with after a crash without counting anything twice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from abound.api.routes.challengers import contest_of
from abound.log.append_group import LearnDraft
from abound.log.catalog import DEFAULT_MODEL
from abound.log.events import ActivateEvent, LearnEvent
from abound.replica.replica import Replica
from abound.settings import Settings
from abound.store.lease import LeaseLost, acquire
from abound.versions import activation
from abound.versions.card import Card
from abound.versions.promotion import challengers, runner, standings
from abound.versions.promotion.contest import ContestFollower
from abound.versions.promotion.gate import GATE as BY_GATE
from abound.versions.promotion.gate import Gate
from abound.versions.promotion.params import ChallengerParams
from abound.versions.promotion.runner import PromotionRunner
from abound.versions.promotion.scoring import DEPTH
from abound.versions.promotion.standings import PURPOSE, Standings
from abound_core.config import ModelConfig
from abound_core.errors import Conflict
from abound_core.instances.record import pack_labels
from abound_core.limits import Limits
from abound_core.methods.fitted import FittedMethod
from abound_core.methods.training.gather import MatrixBuilder
from abound_core.model.active_version import LIVE, ServingState
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.promotion_rule import Contest, GateParams
from abound_core.rank_sums import rank_in
from abound_core.types import START
from tests.core.methods.toy import fit
from tests.support.lab import Lab, apply
from tests.support.small_versions import place, vector, write

KNOWN = 3000
LABELS = 7
GATE = GateParams(alpha=0.05, min_events=40)
PARAMS = ChallengerParams(keep_seconds=60.0)  # each call follows the log to its end

Pair = tuple[str, str]
"""Features, and a label."""


def familiar(n: int, first: int = 0) -> list[Pair]:
    """Features that come once each, so that only a version which knows them all beforehand has their labels."""
    return [(f"f{i}", f"l{i % LABELS}") for i in range(first, first + n)]


def changed(n: int, first: int = 0) -> list[Pair]:
    """A few features again and again, with other labels than before: the index learns them, a version does not."""
    return [(f"f{i % LABELS}", f"l{(i + 1) % LABELS}") for i in range(first, first + n)]


def wise() -> FittedMethod:
    """A version that knows all features as they are at first."""
    gathering = MatrixBuilder((1, 2))
    for feature, label in familiar(KNOWN):
        gathering.add(vector({feature: 1}), [label])
    return fit("ind", gathering.matrices())


def draft(pair: Pair) -> LearnDraft:
    features, label = pair
    return LearnDraft(vector(dict.fromkeys(features.split(), 1)) + pack_labels([label], Limits()), 1)


async def teach(replica: Replica, pairs: Iterable[Pair]) -> None:
    drafts = [draft(pair) for pair in pairs]
    for first in range(0, len(drafts), 20):
        await replica.learn(DEFAULT_MODEL, drafts[first : first + 20])


@contextlib.asynccontextmanager
async def contest(lab: Lab, params: ChallengerParams = PARAMS, **fields: Any) -> AsyncIterator[ContestFollower]:
    """A contest whose steps the test calls, and the lease that it holds."""
    living = await lab.living()
    async with acquire(lab.store, living.keys, purpose=PURPOSE) as lease:
        follower = ContestFollower(
            lab.store, lab.artifacts, living, lease, params, **{"gate": GATE, "prepare_seconds": 10.0} | fields
        )
        await follower.open()
        yield follower


def n_scored(standing: Standings | None, name: str = "live") -> int:
    if standing is None or name not in standing.contest.scores:
        return 0
    return standing.contest.scores[name].all.n


NEVER = GateParams(min_events=10**6)


async def version(lab: Lab, **fields: object) -> Card:
    return await write(lab.artifacts, (await lab.living()).keys, wise(), **fields)


async def entered(lab: Lab, **fields: object) -> Card:
    card = await version(lab, **fields)
    await challengers.enter(lab.store, (await lab.living()).keys, card.id, "a test")
    return card


async def go_on_until(follower: ContestFollower, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await follower.follow_log()
            await asyncio.sleep(0.01)


async def test_scores_are_those_of_a_plain_loop(lab: Lab) -> None:
    replica = await lab.replica()
    card = await entered(lab)
    async with contest(lab) as follower:
        await teach(replica, [*familiar(30), *changed(50), *familiar(15, 20)])
        await follower.follow_log()
        found = follower.standing
    live, made = LiveModel(ModelConfig(), (3, 4)), wise()
    expected = Contest(served=LIVE, alpha=GATE.alpha)
    for pair in [*familiar(30), *changed(50), *familiar(15, 20)]:
        vector = live.vectorizer.vectorize(f'{{"{pair[0]}": 1}}'.encode(), None)
        index = [live.label(i) for i in live.rank(vector, DEPTH).class_ids.tolist()]
        batch = [made.labels[i] for i in made.rank_vectors([vector], DEPTH).ids.tolist()]
        expected.add({LIVE: rank_in(index, {pair[1]}), card.id: rank_in(batch, {pair[1]})})
        apply(live, START, LearnEvent(draft(pair).records, 1, [Unit(1)]))
    assert found.contest == expected
    assert found.contest.scores[LIVE].all.measures()["R@1"] == pytest.approx(live.prequential.scores()["all"]["R@1"])


async def test_promotes_what_is_better_and_rolls_it_back_when_the_concept_changes(lab: Lab) -> None:
    replica = await lab.replica()
    card = await entered(lab)
    model = replica.model("default")
    async with contest(lab) as follower:
        await teach(replica, familiar(60))
        await go_on_until(follower, lambda: model.live.serving.version == card.id)
        await go_on_until(follower, lambda: follower.standing.contest.served == card.id)
        assert follower.standing.promotions == 1
        await teach(replica, changed(40 * LABELS))
        await go_on_until(follower, lambda: model.live.serving.version == LIVE)
        await go_on_until(follower, lambda: follower.standing.contest.served == LIVE)
        found = follower.standing
    activations = [event for _, event in await lab.elements() if isinstance(event, ActivateEvent)]
    assert [event.version for event in activations] == [card.id, LIVE]
    assert all(event.reason.startswith(BY_GATE) for event in activations)
    assert (found.promotions, found.rollbacks) == (1, 1)
    assert [(one.decision.kind, one.outcome.split()[0]) for one in found.decisions] == [
        ("promote", "done"),
        ("roll back", "done"),
    ]
    assert all(one.decision.evidence >= GATE.needed and one.decision.n >= GATE.min_events for one in found.decisions)
    told = standings.to_public(found, GATE)
    assert {one["version"] for one in told["versions"]} == {LIVE, card.id}
    assert next(one for one in told["versions"] if one["version"] == card.id)["decision"] == "waits"


async def test_goes_on_from_what_was_written_and_counts_nothing_twice(lab: Lab) -> None:
    replica = await lab.replica()
    card = await entered(lab)
    keys = (await lab.living()).keys
    async with contest(lab, gate=NEVER) as follower:
        await teach(replica, familiar(30))
        await follower.follow_log()
        await follower.save()
        await teach(replica, familiar(30, 30))
        await follower.follow_log()  # and dies before it writes
    kept = await standings.read(lab.store, keys)
    assert n_scored(kept) == n_scored(kept, card.id) == 30
    await teach(replica, familiar(30, 60))
    async with contest(lab, gate=NEVER) as follower:
        await follower.follow_log()
        again = follower.standing
    assert n_scored(again) == n_scored(again, card.id) == 90
    assert again.contest.scores[card.id].all.hits_1 == 90
    assert again.gaps == 0


async def test_what_somebody_took_out_of_service_is_no_challenger_any_more(lab: Lab) -> None:
    replica = await lab.replica()
    card = await entered(lab)
    keys = (await lab.living()).keys
    async with contest(lab) as follower:
        await teach(replica, familiar(60))
        await go_on_until(follower, lambda: follower.standing.contest.served == card.id)
        await activation.activate(place(lab.store, lab.artifacts, keys), LIVE, "the customer wants it so")
        await follower.follow_log()
        assert await challengers.list_challengers(lab.store, keys) == []
        await teach(replica, familiar(100, 60))
        await follower.follow_log()
        assert follower.standing.contest.served == LIVE
        assert follower.standing.promotions == 1


@pytest.mark.parametrize("is_challenger", [True, False])
async def test_a_version_that_is_entered_after_its_deactivation_is_a_challenger(lab: Lab, is_challenger: bool) -> None:
    """The contest reads the deactivation when the version has been entered already."""
    card = await (entered if is_challenger else version)(lab)
    keys = (await lab.living()).keys
    at = place(lab.store, lab.artifacts, keys)
    async with contest(lab, gate=NEVER) as follower:
        await activation.activate(at, card.id, "by hand")
        await follower.follow_log()
        assert follower.standing.contest.served == card.id
        await activation.activate(at, LIVE, "by hand")
        await challengers.enter(lab.store, keys, card.id, "score it again")
        await follower.follow_log()
        assert follower.standing.contest.served == LIVE
        (found,) = await challengers.list_challengers(lab.store, keys)
        assert (found.version, found.reason) == (card.id, "score it again")


async def test_a_version_is_not_asked_about_what_it_was_fitted_on(lab: Lab) -> None:
    replica = await lab.replica()
    await teach(replica, familiar(20))
    async with contest(lab, gate=NEVER) as follower:
        await teach(replica, familiar(20, 20))
        offset = replica.model("default").offset
        card = await entered(lab, data_range={"after": None, "until": str(offset)})
        await follower.reload_challengers()
        await teach(replica, familiar(10, 40))
        await follower.follow_log()
        assert n_scored(follower.standing, card.id) == 10
        assert n_scored(follower.standing) == 30


async def test_a_version_that_cannot_be_loaded_is_told_and_the_others_go_on(lab: Lab) -> None:
    replica = await lab.replica()
    card = await entered(lab)
    await challengers.enter(lab.store, (await lab.living()).keys, "0123456789abcdef", "a mistake")
    async with contest(lab, gate=NEVER) as follower:
        await teach(replica, familiar(20))
        await follower.follow_log()
        assert "0123456789abcdef" in follower.standing.trouble
        assert not follower.is_store_away, "it does not come back by itself"
        assert n_scored(follower.standing, card.id) == 20


async def test_nothing_is_forgotten_of_a_version_that_is_out_of_reach_for_a_while(lab: Lab) -> None:
    replica = await lab.replica()
    card = await entered(lab)
    other = await entered(lab)
    async with contest(lab, gate=NEVER) as follower:
        await teach(replica, familiar(40))
        await follower.follow_log()
        await follower.save()
    away = lab.folder.rename(lab.folder.with_name("away"))
    async with contest(lab, gate=NEVER) as follower:
        assert follower.standing.trouble.keys() == {card.id, other.id}
        assert follower.is_store_away
        await teach(replica, familiar(5, 40))
        await follower.follow_log()
        await follower.save()
        away.rename(lab.folder)
        await follower.reload_challengers()
        assert not follower.standing.trouble
        assert not follower.is_store_away
        await teach(replica, familiar(20, 45))
        await follower.follow_log()
        found = follower.standing
    for name in (card.id, other.id):
        assert (n_scored(found, name), found.contest.comparisons[name].n) == (60, 60)


async def test_there_are_no_more_than_four_challengers(lab: Lab) -> None:
    keys = (await lab.living()).keys
    for name in ("a" * 16, "b" * 16, "c" * 16, "d" * 16, "a" * 16):
        await challengers.enter(lab.store, keys, name, "one of four")
    with pytest.raises(Conflict, match="4 versions"):
        await challengers.enter(lab.store, keys, "e" * 16, "one too many")
    assert await challengers.withdraw(lab.store, keys, "b" * 16)
    assert not await challengers.withdraw(lab.store, keys, "b" * 16)
    await challengers.enter(lab.store, keys, "e" * 16, "now it fits")
    assert [one.version[0] for one in await challengers.list_challengers(lab.store, keys)] == ["c", "d", "a", "e"]


async def test_what_is_out_of_reach_does_not_come_back_in_place_of_what_is_served() -> None:
    """The index takes over, which can be had."""
    allowed = []
    contest: Any = SimpleNamespace(decide=lambda params, promotable, fallback: allowed.append(fallback))
    gate = Gate(*cast(Any, (None, None)), GateParams())
    serving = ServingState("b" * 8, former="c" * 8, activation="own")
    for promoted, trouble in (("own", {}), ("own", {"c" * 8: "it is lost"}), ("", {})):
        standing = Standings(contest=contest, offset="10-0.0", promoted=promoted, trouble=trouble)
        await gate.decide(standing, serving, [])
    assert allowed == [["c" * 8, LIVE], [LIVE], []]


async def test_a_late_process_writes_nothing(lab: Lab) -> None:
    replica = await lab.replica()
    await entered(lab)
    keys = (await lab.living()).keys
    async with contest(lab) as late:
        await teach(replica, familiar(20))
        await late.follow_log()
        await lab.store.client.delete(keys.key("challengers-lease"))  # it has expired
        async with acquire(lab.store, keys, purpose=PURPOSE):
            with pytest.raises(LeaseLost):
                await late.save()
            assert await standings.read(lab.store, keys) is None
            with pytest.raises(Conflict):
                async with acquire(lab.store, keys, purpose=PURPOSE):
                    pass
        async with acquire(lab.store, keys):  # that of snapshots is another one
            pass


async def test_what_somebody_activated_in_words_of_the_gate_is_left_alone(lab: Lab) -> None:
    """Anybody can give any reason, also one that the gate gave before."""
    replica = await lab.replica()
    card = await entered(lab)
    model, keys = replica.model("default"), (await lab.living()).keys
    async with contest(lab) as follower:
        await teach(replica, familiar(60))
        await go_on_until(follower, lambda: follower.standing.contest.served == card.id)
        *_, promoted = (event for _, event in await lab.elements() if isinstance(event, ActivateEvent))
        for reason in (f"{BY_GATE}that of our own deployments", promoted.reason):
            for version in (LIVE, card.id):
                await activation.activate(place(lab.store, lab.artifacts, keys), version, reason)
                await challengers.enter(lab.store, keys, card.id, "a test")
            await go_on_until(follower, lambda: model.live.serving.version == card.id)
            await teach(replica, changed(40 * LABELS))
            await follower.follow_log()
            assert follower.standing.contest.comparisons[LIVE].evidence > GATE.needed
        assert (follower.standing.promotions, follower.standing.rollbacks) == (1, 0)


@pytest.fixture(autouse=True)
def _run_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0.05)


@contextlib.asynccontextmanager
async def running(lab: Lab) -> AsyncIterator[PromotionRunner]:
    """A runner at work; it ends when it is stopped."""
    stopping = asyncio.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABOUND_GATE_MIN_EVENTS", str(GATE.min_events))
        keeper = PromotionRunner(Settings(prepare_seconds=10.0), lab.store, lab.artifacts, stopping)
        task = asyncio.create_task(keeper.run())
        try:
            yield keeper
        finally:
            stopping.set()
            await asyncio.wait_for(task, 60)


async def until_written(lab: Lab, condition: Callable[[Standings | None], object]) -> Standings | None:
    keys = (await lab.living()).keys
    async with asyncio.timeout(60):
        while not condition(found := await standings.read(lab.store, keys)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


async def test_a_version_is_tried_again_until_it_can_be_had(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "AWAY_SECONDS", 0.1)
    replica = await lab.replica()
    await teach(replica, familiar(20))
    version = (await entered(lab)).id
    away = lab.folder.rename(lab.folder.with_name("away"))
    async with running(lab):
        found = await until_written(lab, lambda found: found is not None and version in found.trouble)
        assert found is not None
        told = contest_of(found, Settings())
        assert told is not None, "nobody is scored, and why is told"
        assert told.trouble.keys() == {version}
        away.rename(lab.folder)
        await until_written(lab, lambda found: found is not None and not found.trouble)
        await teach(replica, familiar(20, 20))
        offset = str(replica.model("default").offset)
        found = await until_written(lab, lambda found: found is not None and found.offset == offset)
        assert n_scored(found, version) == 20
        assert await challengers.withdraw(lab.store, (await lab.living()).keys, version)
        await until_written(lab, lambda found: found is None)

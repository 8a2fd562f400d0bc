"""Forgetting while requests under a few keys come again and again, with one body or another: against a plain oracle."""

from __future__ import annotations

import contextlib
import random
from typing import Any, cast

import pytest

from abound.history.replay import replay
from abound.jobs.replace import RestoreParams, forget, refit, restore
from abound.log.events import LearnEvent
from abound.replace.redaction import ForgetParams
from abound.replace.refit import RefitParams
from abound_core.errors import NotReady
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.types import START
from tests.support.lab import Lab, apply, digest_at
from tests.support.replace_context import Context, archived, learned_units, of_history, run, same, teach
from tests.support.streams import drafts

SEEDS = [*range(10), 29]

LEARNED, REPEAT, REFUSED = "learned", "repeat", "refused"

Keys = dict[str, bytes]
"""By key, the body that came first."""


def some(rng: random.Random, n: int) -> list[LearnEvent]:
    """Requests of two keys and three bodies, or without a key, of one who is forgotten or not."""
    units = []
    for _ in range(n):
        key = rng.choice((None, "k", "k", "l", "l"))
        source = "bad" if rng.random() < 0.25 else None
        units.append(Unit(1, key, rng.choice((b"a", b"b", b"c")) if key else b"", source))
    plain = drafts(n, rng.randrange(2**30))
    return [LearnEvent(draft.records, 1, [unit]) for draft, unit in zip(plain, units, strict=True)]


class Busy(Context):
    """An attempt of a forget job during which requests arrive: before its commit, and after it has failed.

    Attributes
    ----------
    looked, adopted : int
        How many requests there were up to where the last attempt looked, and up to its adoption.
    """

    def __init__(self, lab: Lab, living: Any, rng: random.Random, quiet_after: int) -> None:
        super().__init__(lab, living)
        self.lab = lab
        self.rng = rng
        self.left = quiet_after
        self.looked = self.adopted = 0

    async def come(self) -> None:
        if self.left > 0:
            await teach(self.lab, *some(self.rng, self.rng.randrange(4)))

    async def will_write(self, prefix: str) -> None:
        await super().will_write(prefix)
        self.looked = len(self.lab.past)
        await self.come()
        self.left -= 1
        self.adopted = len(self.lab.past)


def came(keys: Keys, unit: Unit) -> str:
    """What a model that knows these keys makes of a request."""
    if unit.key is None:
        return LEARNED
    is_new = unit.key not in keys
    known = keys.setdefault(unit.key, unit.body)
    return LEARNED if is_new else REPEAT if known == unit.body else REFUSED


def kept(units: list[Unit], told: list[str]) -> tuple[set[int], Keys]:
    """Which requests stay: those that were acknowledged, once each, without the forgotten ones and their repeats."""
    stay: set[int] = set()
    keys: Keys = {}
    forgotten: set[tuple[str | None, bytes]] = set()
    for i, unit in enumerate(units):
        named = (unit.key, unit.body)
        if unit.source == "bad":
            forgotten.add(named)
        elif told[i] == REFUSED or (told[i] == REPEAT and named in forgotten):
            continue
        elif unit.key is None or unit.key not in keys:
            stay.add(i)
            if unit.key is not None:
                keys[unit.key] = unit.body
    return stay, keys


def expected(units: list[Unit], looked: int, adopted: int) -> set[int]:
    """Which requests are learned in the end."""
    live: Keys = {}
    told = [came(live, unit) for unit in units[:adopted]]
    stay, known = kept(units[:looked], told)
    for i in range(looked, len(units)):
        if came(known, units[i]) == LEARNED:
            assert i >= adopted or told[i] == LEARNED
            stay.add(i)
    return stay


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_was_acknowledged_stays_and_what_was_refused_does_not_come(lab: Lab, seed: int) -> None:
    rng = random.Random(seed)
    one = await lab.replica()
    await teach(lab, *some(rng, 12))
    context = Busy(lab, await lab.living(), rng, rng.randrange(1, 4))
    outcome = None
    while outcome is None:
        try:
            outcome = await forget(cast("Any", context), ForgetParams(source="bad", reason="r"), context.progress)
        except NotReady:
            await context.come()
    assert "sent_again" not in outcome
    await teach(lab, *some(rng, 4))
    units = [event.units[0] for _, event in lab.past]
    stay = expected(units, context.looked, context.adopted)
    live = LiveModel((await lab.living()).config, (8, 8))
    for i, (at, event) in enumerate(lab.past):
        left = event if i in stay else LearnEvent(b"", 1, [Unit(1, emptied=True)])
        apply(live, at, left)
    await same(lab, one, live)


class Died(Exception):
    """As if the process had died at this stage."""


STAGES = ("replaying", "making snapshots", "rewriting", "making the store")


@pytest.mark.parametrize("seed", range(5))
async def test_after_any_rebuilds_every_way_to_the_end_gives_one_state(lab: Lab, seed: int) -> None:
    """Forgetting among restores and refits, some of it begun and gone on with by itself or by the next."""
    rng = random.Random(seed)
    one, params = await lab.replica(), ForgetParams(source="bad", reason="r")
    await teach(lab, *some(rng, 15))
    for number in range(6):
        step = rng.choice(("restore", "refit", "forget", "die", "archive"))
        if step == "restore":
            to = str(rng.choice(lab.past)[0])
            await run(lab, restore, RestoreParams(to=to, reason="r"), job=f"restore{number}")
        elif step == "refit":
            await run(lab, refit, RefitParams(search={}, passes=2), job=f"refit{number}")
        elif step == "archive":
            await archived(lab)
        else:
            if step == "die":
                context = Context(lab, await lab.living(), f"died{number}")

                def die(now: str, done: float, stage: str = rng.choice(STAGES)) -> None:
                    if now.startswith(stage):
                        raise Died

                with contextlib.suppress(Died):
                    await forget(cast("Any", context), params, die)
                await teach(lab, *some(rng, 3))
                if "commit" in context.stages and rng.random() < 0.5:
                    job: dict[str, Any] = {"job": context.job.id, "outcome": context.job.outcome}
                    await run(lab, forget, params, committed=True, **job)
            await run(lab, forget, params, job=f"forget{number}")
            left = learned_units([(START, event) for event in await of_history(lab)])
            assert "bad" not in {unit.source for unit in left}
        await teach(lab, *some(rng, 5))
        digest = await digest_at(one, (await lab.elements())[-1][0])
        for from_start in (True, False):
            made = await replay(lab.store, await lab.living(), from_start=from_start, artifacts=lab.artifacts)
            assert await made.compute_digest() == digest, (number, step)

"""Random histories of replacements against a plain list of what the model has learned."""

from __future__ import annotations

import random
from typing import Any

import pytest

from abound.jobs.replace import RestoreParams, UndoParams, forget, refit, restore, undo
from abound.log.events import LearnEvent
from abound.replace.forget import ForgetParams
from abound.replace.refit import RefitParams
from abound.replica.replica import Replica
from abound_core.errors import Conflict, UnknownOffset
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.types import START, Offset
from tests.support.lab import Lab, apply, digest_at, digest_of, model_of, replace_by
from tests.support.streams import drafts

SOURCES = ("good", "bad", "worse")


class Told:
    """What the model has learned: a state that an import brought, and events in order, as a plain list.

    Without events that were discarded or forgotten. Nothing before its start can be restored or forgotten.
    """

    def __init__(self, base: LiveModel | None = None, start: Offset = START) -> None:
        self.base = base
        self.start = start
        self.end = START  # where it was replaced
        self.events: list[tuple[Offset, LearnEvent]] = []

    def copy(self) -> Told:
        told = Told(self.base, self.start)
        told.events = list(self.events)
        return told

    def learn(self, at: Offset, event: LearnEvent) -> None:
        self.events.append((at, event))

    def without(self, source: str) -> Told:
        """Requests of the source leave, and so do later ones that are repeats of them or were refused for them."""
        told = self.copy()
        first: dict[str, bool] = {}
        told.events = []
        for at, event in self.events:
            [unit] = event.units
            is_gone = unit.source == source
            if unit.key is not None:
                is_gone = first.setdefault(unit.key, is_gone) or is_gone
            if not is_gone:
                told.events.append((at, event))
        return told

    async def digest(self, lab: Lab) -> str:
        if self.base is None:
            live = LiveModel((await lab.living()).config, (8, 8))
        else:
            live = LiveModel.from_arrays(self.base.meta(), self.base.to_arrays(), (8, 8), self.base.limits)
        for at, event in self.events:
            apply(live, at, event)
        return await digest_of(live)


def some(rng: random.Random, n: int) -> list[LearnEvent]:
    units = [
        Unit(1, key := rng.choice((None, None, f"k{rng.randrange(8)}")), b"body" if key else b"", rng.choice(SOURCES))
        for _ in range(n)
    ]
    plain = drafts(n, rng.randrange(2**30))
    return [LearnEvent(draft.records, 1, [unit]) for draft, unit in zip(plain, units, strict=True)]


async def live_through(lab: Lab, one: Replica, rng: random.Random, n_steps: int) -> None:
    told, former = Told(), None
    if rng.random() < 0.25:  # an import
        live = model_of(15, rng.randrange(9))
        await replace_by(lab, live, "import")
        told = Told(live, await lab.start())
    for number in range(n_steps):
        for at, event in zip(offsets := await lab.teach(*(new := some(rng, rng.randrange(6)))), new, strict=True):
            told.learn(at, event)
        assert len(offsets) == len(new)
        before = told.copy()
        step = rng.choice(("restore", "refit", "forget", "undo", "archive"))
        job = f"{step}{number}"
        if step == "restore":
            to = rng.choice([at for at, _ in lab.past] or [START])
            params = RestoreParams(to=str(to), reason="r")
            if to < told.start:
                with pytest.raises(UnknownOffset):
                    await lab.run(restore, params, job=job)
                continue
            await lab.run(restore, params, job=job)
            told.events = [(at, event) for at, event in told.events if at <= to]
            former = before
        elif step == "refit":
            await lab.run(refit, RefitParams(search={}, passes=1), job=job)
            former = before
        elif step == "undo" and former is None:
            with pytest.raises(Conflict):
                await lab.run(undo, UndoParams(), job=job)
        elif step == "undo":
            since = [one for one in told.events if one[0] > former.end]
            await lab.run(undo, UndoParams(), job=job)
            told = former.copy()
            told.events += since
            former = before
        elif step == "forget":
            source = rng.choice(SOURCES)
            params = ForgetParams(source=source, since=(told.start.milliseconds + 1) / 1000, reason="r")
            done = await lab.run(forget, params, job=job)
            if "replaced" in done:
                told, former = told.without(source), None
            left = [unit for event in await lab.events_of_history() for unit in getattr(event, "units", ())]
            assert source not in {unit.source for unit in left}
        else:
            await lab.archived()
        if former is before:
            former.end = await lab.end()
        await check(lab, one, told, (number, step))


async def check(lab: Lab, one: Replica, told: Told, what: Any) -> None:
    digest = await told.digest(lab)
    assert await digest_at(one, await lab.end()) == digest, what
    for from_start in (True, False):
        made = await lab.replayed(from_start=from_start)
        assert await made.compute_digest() == digest, (what, from_start)
    told.start = await lab.start()


@pytest.mark.parametrize("seed", range(4))
async def test_a_model_has_learned_what_a_plain_list_says(lab: Lab, seed: int) -> None:
    await live_through(lab, await lab.replica(), random.Random(seed), 8)


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_a_hundred_random_histories(lab: Lab) -> None:
    one = await lab.replica()
    for seed in range(100):
        await one.models.delete("default")
        lab.past.clear()
        await live_through(lab, one, random.Random(1000 + seed), 8)

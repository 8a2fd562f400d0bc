"""Replacements in a history: again and again somebody restores, refits, imports, forgets, or undoes that.

What each one is to do is kept as a ``Plan``, by which ``truth`` tells what the model must be afterwards.
"""

import asyncio
import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from abound.history.history import HistoryParams
from abound.jobs import replace as jobs
from abound.jobs.replace import RestoreParams, UndoParams
from abound.log.catalog import DEFAULT_MODEL, CatalogModel, read_catalog
from abound.log.events import Entry, LearnEvent, decode_entry
from abound.log.stream import LogParams
from abound.replace.copying import Copy, Past
from abound.replace.forget import ForgetParams
from abound.replace.replace import Replacement, end_abandoned
from abound.state.position import AT_START
from abound.state.replicated_model import ReplicatedModel
from abound.state.snapshots import SnapshotParams
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound_core.errors import AboundError, Cancelled, Conflict, OutcomeUnknown
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.types import START, Offset
from tests.simulation.hosts import HISTORY, LOG, QUICK, SNAPSHOTS, URL, Host
from tests.simulation.requests import record_of

PARAMS = {LogParams: LOG, SnapshotParams: SNAPSHOTS, HistoryParams: HISTORY}
PAUSE_SECONDS = 0.05
KINDS = "restore", "refit", "import", "forget", "undo"
WEIGHTS = 25, 15, 15, 15, 30
WEIGHTS_BEFORE = 30, 25, 20, 23, 2
EXTRA = 900_000
"""From this number on, multiples of 9: events that only a state of one's own has learned."""


@dataclass
class Plan:
    """What a replacement is to do."""

    kind: str
    name: str
    origin: str
    number: int
    to: Offset | None = None
    key: str | None = None
    refuses: bool = False
    steps: int | None = None  # checkpoints until it is cancelled
    seconds: float | None = None  # until its task is cancelled
    undo_bytes: int = 10**9
    prepare_seconds: float = 0.5
    committed: bool = False

    @property
    def extra(self) -> int:
        return EXTRA + 9 * self.number


class ReplacingHost(Host):
    """Where jobs run that replace a model."""

    def __init__(self, *given: Any, rng: random.Random, plans: dict[ModelKeys, Plan]) -> None:
        super().__init__(*given)
        self.rng = rng
        self.plans = plans  # what each incarnation was to be, served or not; all hosts share it
        self.only_ends = False  # it begins no replacement, and only ends those that were left unfinished
        self.is_idle = True  # it has no replacement under way
        self.done: list[Plan] = []  # those that are said to be made
        self.n_replaced = dict.fromkeys(KINDS, 0)
        self.why = "it was not begun"  # what ended the one before
        self._number = rng.randrange(1, 100) * 100
        self._plan: Plan | None = None

    @property
    def n_all(self) -> int:
        return sum(self.n_replaced.values())

    async def serve(self) -> None:
        store = Store(URL, QUICK)
        while True:
            self.is_idle = True
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                if self.only_ends:
                    catalog = await read_catalog(store)
                    for name in catalog.coming:
                        await end_abandoned(store, catalog, name)
                else:
                    self.is_idle = False
                    await self._replace(store)
            except (AboundError, OutcomeUnknown, TimeoutError) as error:
                self.why = f"{type(error).__name__}: {error}"
                self._network.note("replacement failed", self.name, self.why)
                if self.rng.random() < 0.7:  # else it is tried once more, as a job whose process died is
                    self._plan = None

    async def _replace(self, store: Store) -> None:
        artifacts = self.artifacts
        assert artifacts is not None
        await artifacts.join(store)
        plan = self._plan
        if plan is None:
            plan = self._plan = await self._choose(store)
        if plan is None:
            return
        self._network.note("replacement", self.name, str(plan))
        context: Any = SimpleNamespace(
            store=store,
            artifacts=artifacts,
            living=SimpleNamespace(keys=SimpleNamespace(name=plan.name), origin=plan.origin),
            job=SimpleNamespace(id=f"{self.name}-{plan.number}", committed=plan.committed, outcome={}),
            settings=SimpleNamespace(
                prepare_seconds=plan.prepare_seconds, undo_bytes=plan.undo_bytes, group=PARAMS.__getitem__
            ),
            check=self._check,
            range=_nothing,
            so_far=_nothing,
            commit=self._commit,
        )
        async with asyncio.timeout(plan.seconds):
            outcome = await self._run(context, plan)
        if "replaced" in outcome or "replaced_at" in outcome or plan.committed:
            self.n_replaced[plan.kind] += 1
            self.done.append(plan)
            self._network.note("replaced", self.name, plan.kind)
        self._plan = None

    async def _run(self, context: Any, plan: Plan) -> dict[str, Any]:
        if plan.kind == "restore":
            return await jobs.restore(context, RestoreParams(to=str(plan.to), reason="simulated"), _no_progress)
        if plan.kind == "undo":
            return await jobs.undo(context, UndoParams(), _no_progress)
        if plan.kind == "forget":
            return await jobs.forget(context, ForgetParams(key=plan.key, reason="simulated"), _no_progress)

        async def make(replacement: Replacement, outcome: dict[str, Any]) -> Past:
            after, living = replacement.after, replacement.living
            model = await jobs.replay_to(replacement, after)
            if plan.kind == "refit":
                learn_extra(model.live, plan.extra, after)
                return Past(model=model, source=living, tail_after=after, is_refitted=True)
            live = LiveModel(model.live.config, (3, 4))
            learn_extra(live, plan.extra, START)
            live.serving = model.live.serving
            imported = ReplicatedModel(living.keys, live.config)
            imported.restore(live, AT_START)
            refuses = _refuse_learned if plan.refuses else _refuse_nothing
            return Past(model=imported, source=None, tail_after=after, keep=False, refuses=refuses)

        return await jobs._replace(context, "simulated", _no_progress, make)

    async def _choose(self, store: Store) -> Plan | None:
        """What the next replacement is to do; None while there is nothing to do it with."""
        rng = self.rng
        catalog = await read_catalog(store)
        others = [living.keys.name for living in catalog if living.keys.name != DEFAULT_MODEL]
        name = rng.choice(others) if others and rng.random() < 0.3 else DEFAULT_MODEL
        living = catalog.get(name)
        if living is None:
            return None
        self._number += 1
        weights = WEIGHTS if name in catalog.former else WEIGHTS_BEFORE
        plan = Plan(rng.choices(KINDS, weights)[0], name, living.origin, self._number)
        plan.refuses = rng.random() < 0.5
        plan.prepare_seconds = rng.choice((0.1, 0.5))
        plan.undo_bytes = rng.choice((10**9, 10**9, 0))
        if rng.random() < 0.15:
            plan.steps = rng.randint(1, 12)
        if rng.random() < 0.1:
            plan.seconds = rng.random() * 1.5
        with store_errors():
            found = await store.client.xrevrange(living.keys.log, count=12)
        if plan.kind == "restore" and found:
            at = Offset.of_entry(rng.choice(found)[0])
            plan.to = at._replace(position=rng.choice((0, 1, 3, 100)))
        if plan.kind == "forget":
            entries = [decode_entry([part for field in fields.items() for part in field]) for _, fields in found]
            keys = sorted({unit.key for entry in entries for unit in _units(entry) if unit.key is not None})
            plan.key = rng.choice(keys) if keys else None
        return None if (plan.kind, plan.to, plan.key) in (("restore", None, None), ("forget", None, None)) else plan

    def _check(self) -> None:
        plan = self._plan
        if plan is not None and plan.steps is not None:
            plan.steps -= 1
            if plan.steps <= 0:
                self._plan = None
                raise Cancelled("the job was told to stop")

    async def _commit(self, *prefixes: str) -> None:
        if self._plan is not None:
            self._plan.committed, self._plan.steps = True, None


def learn_extra(live: LiveModel, event: int, at: Offset) -> None:
    live.begin(record_of(event), 1, [Unit(1)], at).step(1)


def recorded(hosts: list[ReplacingHost]) -> type[Copy]:
    """A ``Copy`` that notes the plan by which each incarnation is made."""
    by_name = {host.name: host for host in hosts}

    class RecordedCopy(Copy):
        def __init__(self, context: Any, living: CatalogModel, new: ModelKeys, past: Past) -> None:
            super().__init__(context, living, new, past)
            host = by_name[context.record.rpartition("-")[0]]
            assert host._plan is not None
            host.plans[new] = host._plan

    return RecordedCopy


def _units(entry: Entry) -> list[Unit]:
    return list(entry.event.units) if isinstance(entry.event, LearnEvent) else []


def _refuse_learned(entry: Entry) -> None:
    if isinstance(entry.event, LearnEvent):
        raise Conflict("the model learned during the import")


def _refuse_nothing(entry: Entry) -> None:
    """Whatever was learned meanwhile follows on the state."""


def _no_progress(stage: str, done: float) -> None:
    """Nobody looks."""


async def _nothing(*given: Any) -> None:
    """Nobody keeps records of these jobs."""

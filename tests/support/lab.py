"""A model in a store with an artifact store, replicas of it, and a plain oracle."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Self, cast

from abound.artifacts.artifact_store import ArtifactStore
from abound.history import full_log
from abound.history.archive import ArchiveContext, archive
from abound.history.history import Base, History, HistoryManifest, HistoryParams
from abound.history.replay import compact, replay
from abound.history.retention import enforce_retention
from abound.log import stream
from abound.log.catalog import DEFAULT_MODEL, CatalogModel, read_catalog
from abound.log.events import ActivateEvent, ConfigureEvent, LearnEvent, decode_entry
from abound.log.stream import Element
from abound.replace.context import ReplaceContext
from abound.replace.copying import Past
from abound.replace.replace import Replacement, replace_model
from abound.replica.replica import Replica, ReplicaParams
from abound.state.position import AT_START
from abound.state.replicated_model import ReplicatedModel
from abound.state.snapshots import SnapshotParams
from abound.state.state_image import StateManifest
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.store.lease import acquire
from abound_core.config import ModelConfig
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel, warmup
from abound_core.types import START, Offset
from tests.support.streams import create, drafts, logged
from tests.support.valkey import Server

SMALL = SnapshotParams(part_bytes=16_384)
SEGMENTS = HistoryParams(segment_bytes=4096)
SHORT = HistoryParams(segment_bytes=2000)


class Lab:
    """A store and an artifact store, and replicas over them."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.store = Store(server.url, server.store_params)
        self.artifacts = ArtifactStore(str(folder))
        self.replicas: list[Replica] = []
        self.past: list[tuple[Offset, Any]] = []

    async def open(self) -> None:
        warmup()
        await self.artifacts.join(self.store)

    async def close(self) -> None:
        for replica in self.replicas:
            await replica.stop()
        await self.store.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def replica(self, artifacts: bool = True, **params: Any) -> Replica:
        """One more replica, ready."""
        replica = Replica(
            Store(self.server.url, self.server.store_params),
            ReplicaParams(**params),
            ArtifactStore(str(self.folder)) if artifacts else None,
        )
        await replica.start()
        self.replicas.append(replica)
        return replica

    async def stop(self, replica: Replica) -> None:
        self.replicas.remove(replica)
        await replica.stop()

    async def living(self, name: str = DEFAULT_MODEL) -> CatalogModel:
        """The model, made if there is none."""
        return (await read_catalog(self.store)).get(name) or await create(self.store, name)

    async def snapshot(self) -> StateManifest:
        return await compact(self.store, await self.living(), SMALL, artifacts=self.artifacts)

    async def archive(self, params: HistoryParams = SEGMENTS) -> HistoryManifest | None:
        """Move to history what two snapshots do not need, and delete what is beyond the bounds of history.

        None: there is nothing that they do not need, and no history.
        """
        living = await self.living()
        async with acquire(self.store, living.keys) as lease:
            context = ArchiveContext(self.store, self.artifacts, living, lease, params)
            contents = await archive(context)
            return contents and await enforce_retention(context, contents)

    async def archived(self, params: HistoryParams = SEGMENTS) -> HistoryManifest | None:
        for _ in range(2):
            await self.snapshot()
        return await self.archive(params)

    async def contents(self) -> HistoryManifest | None:
        return await History(self.store, self.artifacts, (await self.living()).keys).manifest()

    async def replayed(self, until: Offset | None = None, from_start: bool = False) -> ReplicatedModel:
        return await replay(self.store, await self.living(), until, from_start=from_start, artifacts=self.artifacts)

    async def context(self, record: str = "job", **fields: Any) -> ReplaceContext:
        living = await self.living()
        given: dict[str, Any] = {"store": self.store, "artifacts": self.artifacts, "snapshots": SMALL}
        given |= {"name": living.keys.name, "origin": living.origin, "record": record, "undo_bytes": 2**30}
        return ReplaceContext(**given | fields)

    async def append(self, *events: Any) -> list[Offset]:
        log = (await self.living()).keys.log
        return [Offset.of_entry(await self.store.client.xadd(log, logged(event))) for event in events]

    async def elements(self) -> list[tuple[Offset, Any]]:
        """All events that are in the log."""
        found = await self.store.client.xrange((await self.living()).keys.log)
        return [
            (Offset.of_entry(name), decode_entry([part for field in fields.items() for part in field]).event)
            for name, fields in found
        ]

    async def teach(self, *learned: Any) -> list[Offset]:
        """Append events, and keep what they were."""
        offsets = await self.append(*learned)
        self.past += list(zip(offsets, learned, strict=True))
        return offsets

    async def end(self) -> Offset:
        return (await stream.tail(self.store, (await self.living()).keys.log)).last

    async def start(self) -> Offset:
        contents = await self.contents()
        return START if contents is None else contents.start

    async def events_of_history(self) -> list[Any]:
        keys = (await self.living()).keys
        reading = full_log.read_entries(self.store, self.artifacts, keys, await self.start())
        return [decode_entry(fields).event async for elements in reading for _, fields in elements]

    async def run(self, method: Any, params: Any, **given: Any) -> dict[str, Any]:
        """Do what a job of this method does; its outcome."""
        context = Context(self, await self.living(), **given)
        async with asyncio.timeout(60):
            return cast("dict[str, Any]", await method(context, params, context.progress))

    async def without(self, gone: Callable[[Unit, Offset], bool]) -> LiveModel:
        """A model that never saw what ``gone`` says of a unit and its offset, told as plainly as can be."""
        live = LiveModel((await self.living()).config, (8, 8))
        for at, event in self.past:
            if isinstance(event, LearnEvent) and gone(event.units[0], at):
                [unit] = event.units
                event = LearnEvent(b"", event.n, [Unit(unit.n, batch=unit.batch, emptied=True)])
            apply(live, at, event)
        return live

    async def replayed_digest(self) -> str:
        """The digest of what both stores give, from a snapshot and from the start."""
        [digest] = {await (await self.replayed(from_start=from_start)).compute_digest() for from_start in (True, False)}
        return digest

    async def same(self, replica: Replica, expected: LiveModel) -> None:
        """Check that the replica, and all that can be made of what is kept, is the expected model."""
        digest = await digest_of(expected)
        assert await digest_at(replica, await self.end()) == digest
        assert await self.replayed_digest() == digest

    async def expected(self, until: Offset | None = None) -> str:
        """The digest that the log gives, told as plainly as can be."""
        live = LiveModel((await self.living()).config, (7, 7))
        for at, event in await self.elements():
            if until is None or at <= until:
                apply(live, at, event)
        return await digest_of(live)


class Context:
    """What a job is given, without jobs."""

    def __init__(
        self, lab: Lab, living: Any, job: str = "job", committed: bool = False, outcome: Any = None, **fields: Any
    ) -> None:
        self.store, self.artifacts, self.living, self.threads = lab.store, lab.artifacts, living, 1
        given = {"kept": [], "config": {}, "data": "history", "upload": None, "activate": "never"} | fields
        self.job = SimpleNamespace(id=job, committed=committed, outcome=outcome or {}, **given)
        self.settings = SimpleNamespace(
            prepare_seconds=10.0,
            undo_bytes=2**30,
            cluster=None,
            group=lambda kind: SMALL if kind is type(SMALL) else kind(),
        )
        self.stages: list[str] = []

    def check(self) -> None:
        """Nobody tells the job to stop."""

    async def pin(self, offset: Offset) -> None:
        """Nothing is deleted meanwhile."""

    async def range(self, after: Offset | None, until: Offset | None) -> None:
        """Nobody asks which events it reads."""

    async def so_far(self, outcome: dict[str, Any]) -> None:
        self.job.outcome = outcome

    async def commit(self, *prefixes: str) -> None:
        self.stages.append("commit")

    async def will_write(self, prefix: str) -> None:
        """Nothing of it is deleted."""

    async def serving_keys(self) -> ModelKeys:
        return self.living.keys

    def progress(self, stage: str, fraction: float) -> None:
        assert 0 <= fraction <= 1
        self.stages.append(stage)


class Archived(NamedTuple):
    """A model whose log is archived, its artifact store, and every entry that was ever appended."""

    store: Store
    artifacts: ArtifactStore
    living: CatalogModel
    every: list[Element]

    async def grow(self, n: int, seed: int) -> None:
        """Append entries and make a snapshot."""
        for event in events(n, seed):
            await self.store.client.xadd(self.living.keys.log, logged(event, seed))
        last = Offset.of_entry(self.every[-1][0]) if self.every else START
        self.every.extend(await self.past(last))
        await compact(self.store, self.living, SMALL, artifacts=self.artifacts)

    @contextlib.asynccontextmanager
    async def archiving(self, params: HistoryParams = SHORT) -> AsyncIterator[ArchiveContext]:
        async with acquire(self.store, self.living.keys) as lease:
            yield ArchiveContext(self.store, self.artifacts, self.living, lease, params)

    async def archive(self, params: HistoryParams = SHORT) -> HistoryManifest:
        async with self.archiving(params) as to:
            contents = await archive(to)
        assert contents is not None
        return contents

    async def contents(self) -> HistoryManifest:
        contents = await History(self.store, self.artifacts, self.living.keys).manifest()
        assert contents is not None
        return contents

    async def past(self, after: Offset = START, until: Offset | None = None) -> list[Element]:
        reading = full_log.read_entries(self.store, self.artifacts, self.living.keys, after, until)
        return [element async for elements in reading for element in elements]

    def offset(self, i: int) -> Offset:
        return Offset.of_entry(self.every[i][0])


def apply(live: LiveModel, at: Offset, event: Any) -> None:
    if isinstance(event, LearnEvent):
        live.begin(event.records, event.n, event.units, at).finish()
    elif isinstance(event, ConfigureEvent):
        live.configure(event.changes)
    elif isinstance(event, ActivateEvent):
        live.serving = live.serving.after_activation(event.activation, event.version, event.digest, at)


def events(n: int, seed: int = 1, source: str | None = None) -> list[LearnEvent]:
    return [LearnEvent(one.records, 1, [Unit(1, source=source)]) for one in drafts(n, seed)]


def keyed(n: int, seed: int, prefix: str, source: str | None = None) -> list[LearnEvent]:
    """Events of an instance each, whose keys are the prefix and their number."""
    return [
        LearnEvent(one.records, 1, [Unit(1, f"{prefix}{i}", b"body", source)]) for i, one in enumerate(drafts(n, seed))
    ]


def model_of(n: int, seed: int, **config: Any) -> LiveModel:
    live = LiveModel(ModelConfig.from_dict(config), (5, 6))
    for event in events(n, seed):
        apply(live, START, event)
    return live


async def digest_of(live: LiveModel) -> str:
    for _ in live.digest_steps():
        pass
    return live.digest()


async def digest_at(replica: Replica | ReplicatedModel, offset: Offset, name: str = DEFAULT_MODEL) -> str | None:
    """The digest of a replica that has come to an offset, and not further, of what the catalog serves."""
    if isinstance(replica, Replica):
        living = (await read_catalog(replica.store)).get(name)
        async with asyncio.timeout(60):  # offsets are equal before and after a switch
            while living is not None and living.keys not in [one.keys for one in replica.models.all()]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await replica.wait_for(name, offset, 60)
        replica = replica.model(name)
    assert replica.offset[:2] == offset[:2]
    return await replica.compute_digest()


@contextlib.asynccontextmanager
async def learning(replica: Replica, seed: int = 50) -> AsyncIterator[None]:
    """Learning that goes on as fast as it can, through one replica."""
    stop = False

    async def learn() -> None:
        number = seed
        while not stop:
            await replica.learn(DEFAULT_MODEL, drafts(7, number))
            number += 1

    task = asyncio.create_task(learn())
    try:
        yield
    finally:
        stop = True
        await task


async def replace_by(lab: Lab, live: LiveModel, record: str = "job", keep: bool = False, **fields: Any) -> Offset:
    """Replace the model by another state, without history, as an import does; where."""

    async def make(replacement: Replacement) -> Past:
        model = ReplicatedModel(replacement.living.keys, live.config)
        model.restore(live, AT_START)
        return Past(model=model, source=None, tail_after=replacement.after, keep=keep)

    at = await replace_model(await lab.context(record, **fields), make, "a test")
    assert at is not None
    return at


async def refitted(lab: Lab, live: LiveModel, record: str = "refit") -> Base:
    """Replace the model as a refit does that made ``live`` of its events; return the state in the new history."""

    async def make(replacement: Replacement) -> Past:
        model = await replay(lab.store, replacement.living, replacement.after, artifacts=lab.artifacts)
        live.serving = model.live.serving
        model.live = live
        return Past(model=model, source=replacement.living, tail_after=replacement.after, is_refitted=True)

    assert await replace_model(await lab.context(record), make, "a test") is not None
    contents = await lab.contents()
    assert contents is not None
    assert contents.refitted is not None
    return contents.refitted

"""One history: from a seed to what was broken in it.

1. a store, two or three replicas and a worker start; applications learn and read
2. things go wrong (``chaos``) for as long as they do, some seconds
3. they are put right, and everything must catch up alone
4. what was told is held against what the log says (``truth``, ``promises``)
"""

import asyncio
import contextlib
import gc
import os
import random
import secrets
import socket
import uuid
from collections.abc import Iterator, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import fsspec

from abound import worker as worker_module
from abound.history import full_log, garbage
from abound.history.history import History
from abound.history.replay import replay
from abound.log import catalog
from abound.log.catalog import CATALOG_KEY, read_catalog
from abound.log.events import Entry, IncarnationDropped, decode_catalog_entry, decode_entry
from abound.log.stream import Trim, entry_size, trimmed_key
from abound.processes import kernel_compiler
from abound.replace import replace as replacing
from abound.replica import incoming, memory_budget, storage_status
from abound.replica.replica import Replica
from abound.store import lease, replication
from abound.store.key_names import ModelKeys
from abound.versions import activation
from abound.versions import versions as versions
from abound_core.config import ModelConfig
from abound_core.errors import (
    AboundError,
    ArtifactsUnavailable,
    Corrupted,
    StoreUnavailable,
    UnknownArtifact,
    UnknownModel,
)
from abound_core.model.active_version import ServingState
from abound_core.model.live_model import LiveModel, warmup
from abound_core.types import START, Offset
from tests.simulation.activating import ActivatingHost
from tests.simulation.chaos import Chaos
from tests.simulation.client import lean
from tests.simulation.hosts import LOG, Gone, Host, ReplicaHost, WorkerHost
from tests.simulation.keyspace import Stream
from tests.simulation.loop import Endless, SimLoop, here
from tests.simulation.lua import collect
from tests.simulation.network import Network
from tests.simulation.promises import Lost, backwards, broken_activations, broken_by, broken_replacements, stale
from tests.simulation.replacing import KINDS, Plan, ReplacingHost, recorded
from tests.simulation.requests import DONE, UNKNOWN, Attempt, Author, registers
from tests.simulation.server import Store
from tests.simulation.truth import Truth, differences, ends_of, truths_of
from tests.simulation.users import Users

RAGE_SECONDS = 1.5, 2.0
"""The shortest and the longest time for which things go wrong."""
CATCH_UP_SECONDS = 20.0
NOTICE_SECONDS = 4.0
"""Within this a replica learns again after all is well, and has the default model if the store has lost it."""
MOST_REQUESTS = 20
"""So many are sent to a replica while the model is replaced after all is well."""
CUT_BEFORE = 8
"""After so long a connection that has died without a word is known to be dead."""


class Outcome(NamedTuple):
    """What came of a history: broken promises, and how often what happened, so that it is seen that something did.

    The checksum is that of the trace, which has all that the store was asked and all that users were told; the trace
    itself is empty unless it was asked for.
    """

    seed: int
    broken: list[str]
    checksum: int
    n_callbacks: int
    counts: dict[str, int]
    trace: list[str]


class World:
    """Everything there is in one history."""

    def __init__(self, seed: int, loop: SimLoop, faults: Sequence[str] | None) -> None:
        rng = random.Random(f"world {seed}")
        self.loop = loop
        self.network = Network(loop, seed)
        version = rng.choice(((8, 0), (8, 0), (7, 2), (6, 2)))
        Store(loop, self.network, rng.choice(("always", "everysec")), version, rng.choice((0, 1, 2)))
        self.artifacts_url = f"memory://simulation/{seed}" if rng.random() < 0.8 else None
        common = loop, self.network
        names = [f"replica{i}" for i in range(rng.choice((1, 2, 2, 3)))]
        self.replicas = [ReplicaHost(*common, name, self.artifacts_url) for name in names]
        levels = random.Random(f"durability {seed}")
        for host in self.replicas:
            host.durability = levels.choice(("log", "log", "fsync", "replica"))
        names = [f"worker{i}" for i in range(rng.choice((0, 1, 1, 2)))]
        self.workers = [WorkerHost(*common, name, self.artifacts_url) for name in names]
        hosts: list[Host] = [*self.replicas, *self.workers]
        self.plans: dict[ModelKeys, Plan] = {}
        self.replacing: list[ReplacingHost] = []
        drawing = random.Random(f"replacing {seed}")
        if self.artifacts_url is not None and drawing.random() < 0.75:
            for at in range(drawing.choice((1, 1, 2))):
                own = random.Random(f"replacing {seed} {at}")
                host = ReplacingHost(*common, f"replacing{at}", self.artifacts_url, rng=own, plans=self.plans)
                self.replacing.append(host)
                hosts.append(host)
        for worker in self.workers:
            worker.undo_seconds = drawing.choice((7 * 86_400.0, 7 * 86_400.0, 0.5))
        self.activating = None
        choosing = random.Random(f"activating {seed}")
        if self.artifacts_url is not None and choosing.random() < 0.3:
            self.activating = ActivatingHost(*common, "activating", self.artifacts_url)
            self.activating.rng = choosing
            hosts.append(self.activating)
        self.users = Users(Author(seed), self.replicas, self.network)
        self.chaos = Chaos(seed, self.network, hosts, faults)
        self._n_users, self._n_requests = rng.randint(3, 5), rng.randint(4, 9)
        self._hosts = hosts
        self.counts: dict[str, int] = {}

    @property
    def store(self) -> Store:
        assert self.network.store is not None
        return self.network.store

    def forget(self) -> None:
        if self.artifacts_url is not None:
            memory, root = fsspec.core.url_to_fs(self.artifacts_url)
            if memory.exists(root):
                memory.rm(root, recursive=True)

    async def live(self) -> list[str]:
        """The whole history; what was broken in it."""
        for host in self._hosts:
            host.start()
        working = [asyncio.ensure_future(self.users.work(self._n_requests)) for _ in range(self._n_users)]
        await self.chaos.rage(*RAGE_SECONDS, lambda: all(one.done() for one in working))
        self.chaos.heal()
        self.users.hurry()
        for host in self.replacing:
            host.rest()
            host.only_ends = True
            if not self.workers:  # somebody has to end what was begun
                host.go_on()
        if self.activating is not None:
            self.activating.rest()
        await asyncio.gather(*working)
        broken = await self._catch_up()
        if not broken:
            broken = await self._learn_once_more()
        if not broken and self.replacing:
            broken = await self._replace_once_more(self.replacing[0])
        if not broken and self.activating is not None:
            broken = await self._activate_once_more(self.activating)
        if not broken:
            await asyncio.sleep(max(0.0, self.network.quiet_at - self.loop.time()))
            broken = await self._catch_up()
        truths = truths_of(self.store.history, self.plans)
        replaced = [(one, one.before) for truth in truths.values() for one in truth.all if one.before is not None]
        self.counts["events discarded"] = sum(len(old.facts.keys() - new.facts.keys()) for new, old in replaced)
        for truth in truths.values():
            for what, n in (
                ("models in rows", truth.live.index.in_rows),
                ("labels registered", len(truth.live.details)),
                ("labels rejected", truth.live.stats()["feedback"]["rejected"]),
            ):
                self.counts[what] = self.counts.get(what, 0) + n
        lost = Lost(self.store.lost)
        broken += broken_by(self.users.requests, truths, lost)
        done = [plan for host in self.replacing for plan in host.done]
        broken += backwards(self.users.reads, lost)
        broken += broken_replacements(done, self.plans, truths, lost)
        broken += stale(self.users.reads, truths, lost, self.network.served)
        if self.activating is not None:
            broken += broken_activations(self.activating.said, truths.get("default", Truth(None)), lost)
        if not broken:
            broken = await self._compare(truths)
        return broken

    async def _catch_up(self) -> list[str]:
        """Wait until every replica is ready and at the end of the log; what is not in time."""
        until = self.loop.time() + CATCH_UP_SECONDS
        while True:
            behind = self._behind()
            if not behind or self.loop.time() > until:
                return behind
            await asyncio.sleep(0.2)

    def _behind(self) -> list[str]:
        behind = []
        ends = ends_of(self.store.history)
        for host in self.replicas:
            if not host.is_up or host.replica is None:
                behind.append(f"{host.name} is not there: {host.ends[-1:]}")
                continue
            status = host.replica.status()
            if not status.ready or status.log != "connected":
                behind.append(f"{host.name} does not catch up: {status}")
            if set(host.replica.models.names()) != set(ends):
                behind.append(f"{host.name} has the models {host.replica.models.names()} and not {list(ends)}")
            for name, (keys, end) in ends.items():
                model = host.replica.model(name) if name in host.replica.models.names() else None
                if model is None or model.offset[:2] != end[:2]:
                    behind.append(f"{host.name} is at {model and model.offset} of {name} and not at {end}")
                elif model.keys != keys:  # offsets are equal before and after a switch
                    behind.append(f"{host.name} serves {model.keys} and not {keys}")
            if not ends:
                behind.append("there is no model")
        return behind

    async def _learn_once_more(self) -> list[str]:
        """Now that all is well, every replica soon learns twice in a row."""
        until = self.loop.time() + NOTICE_SECONDS
        broken = await asyncio.gather(*(self._learn_soon(host, until) for host in self.replicas))
        return [why for why in broken if why is not None]

    async def _learn_soon(self, host: ReplicaHost, until: float) -> str | None:
        while True:
            is_late = self.loop.time() > until  # by then a connection that died without a word is known to be dead
            for _ in range(2):
                attempt = await self._learn_at(host)
                if attempt.outcome != DONE:
                    break
            else:
                return None
            if is_late and "ABOUND_DURABILITY" in attempt.why:
                return None  # after a failover, or with another policy, the store cannot confirm its level any more
            if is_late:
                return f"{host.name} does not learn after all is well: {attempt.outcome}: {attempt.why}"
            await asyncio.sleep(0.05)

    async def _learn_at(self, host: ReplicaHost) -> Attempt:
        return await self.users.attempt(self.users.author.request("default"), host)

    async def _replace_once_more(self, host: ReplacingHost) -> list[str]:
        """Now that all is well, the model is replaced, or twice in a row, and every request to learn is answered."""
        wanted, until = host.n_all + host.rng.choice((1, 1, 2)), self.loop.time() + CATCH_UP_SECONDS
        host.only_ends = False
        host.go_on()
        learning = [asyncio.ensure_future(self._learn_until(one, host, wanted)) for one in self.replicas]
        while host.n_all < wanted or not host.is_idle:
            host.only_ends = host.n_all >= wanted
            if self.loop.time() > until and self.chaos.n_set_back:
                break  # the lease of one that died ends by the store's clock, so it lasts
            if self.loop.time() > until:
                return [f"no model is replaced after all is well: {host.why}"]
            await asyncio.sleep(0.1)
        host.rest()
        return [why for why in await asyncio.gather(*learning) if why is not None]

    async def _learn_until(self, replica: ReplicaHost, replacing: ReplacingHost, wanted: int) -> str | None:
        for _ in range(MOST_REQUESTS):
            if not replacing.wanted or replacing.n_all >= wanted:
                return None
            attempt = await self._learn_at(replica)
            if attempt.outcome == UNKNOWN:
                return f"{replica.name} leaves a request without an answer while the model is replaced: {attempt.why}"
            await asyncio.sleep(self.users.author.rng.random() * 0.05)
        return None

    async def _activate_once_more(self, activating: ActivatingHost) -> list[str]:
        """Now that all is well, a version is activated."""
        before, until = len(activating.said), self.loop.time() + CATCH_UP_SECONDS
        activating.go_on()
        while len(activating.said) == before:
            if self.loop.time() > until and self.chaos.n_set_back:
                break  # as above
            if self.loop.time() > until:
                return [f"no version is activated after all is well: {activating.why}"]
            await asyncio.sleep(0.1)
        activating.rest()
        return []

    async def _compare(self, truths: dict[str, Truth]) -> list[str]:
        """Hold every replica against the plain model, and against each other."""
        broken = []
        for name, truth in truths.items():
            digests = {}
            for host in self.replicas:

                async def state(replica: Replica, name: str = name) -> tuple[str | None, int, bytes, ServingState]:
                    model = replica.model(name)
                    digest = await model.compute_digest()
                    model.check_serving()
                    return digest, model.live.n_learned, _learned_state(model.live), model.live.serving

                try:
                    digest, n_learned, learned, serving = await host.ask(state)
                except Gone:
                    broken.append(f"{host.name} died after all was well")
                    continue
                except UnknownModel:
                    if name in ends_of(self.store.history):
                        broken.append(f"{host.name} has no model {name}")
                    continue
                digests[host.name] = digest
                n_told = truth.n_extra + sum(not registers(event) for event in truth.facts)
                if n_learned != n_told:
                    broken.append(f"{host.name} learned {n_learned} times, and the log has {n_told} events")
                elif learned != _learned_state(truth.live):
                    broken.append(f"{host.name} has another state than the plain model of {name}")
                if serving != truth.live.serving:
                    broken.append(f"{host.name} answers by {serving}, and by the log it is {truth.live.serving}")
            history = await self.replicas[0].ask(lambda replica, name=name: _from_history(replica, name))
            if name not in ends_of(self.store.history):
                continue  # somebody who has given up waiting had asked for its end
            digests["history"] = history
            if len(set(digests.values())) > 1:
                broken.append(f"digests differ: {digests}")
            broken += self._miscounted(name)
            if self.artifacts_url is not None and not broken:
                broken += await self.replicas[0].ask(lambda replica, truth=truth: _from_full_log(replica, truth))
        return broken

    def _miscounted(self, name: str) -> list[str]:
        """Where the position of a replica, or the record of what was trimmed, does not count the log's entries."""
        data, broken = self.store.space.data, []
        for host in self.replicas:
            assert host.replica is not None
            model = host.replica.model(name)
            stream = data.get(model.keys.log, Stream())
            trim = Trim.parse(data.get(trimmed_key(model.keys.log)))
            n = trim.n_entries + len(stream.ids)
            size = trim.log_bytes + sum(entry_size(fields) for fields in stream.fields)
            if (n, size) != (model.position.n_entries, model.position.log_bytes):
                broken.append(f"{host.name} counts {model.position} of {name}, and it is {n} with {size} bytes")
        return broken


async def _from_history(replica: Replica, name: str) -> str:
    """The digest of what history and log give, from their beginning on."""
    for _ in range(CUT_BEFORE):
        with contextlib.suppress(StoreUnavailable):  # a connection that was cut while nobody used it
            living = (await read_catalog(replica.store)).get(name)
            if living is None:
                return "none: there is no such model"
            if replica.artifacts is not None:  # a store that has lost all calls it by another name
                await replica.artifacts.join(replica.store)
            try:
                rebuilt = await replay(replica.store, living, params=LOG, artifacts=replica.artifacts, from_start=True)
            except (ArtifactsUnavailable, Corrupted, UnknownArtifact) as error:
                return f"none: {error}"
            return await rebuilt.compute_digest()
    return "the store is away"


async def _from_full_log(replica: Replica, truth: Truth) -> list[str]:
    """How history and log differ from all that the model has learned."""
    assert truth.keys is not None
    for _ in range(CUT_BEFORE):
        with contextlib.suppress(StoreUnavailable):
            contents = await History(replica.store, replica.artifacts, truth.keys).manifest()
            start = START if contents is None else contents.start
            found: list[tuple[Offset, Entry]] = []
            async for elements in full_log.read_entries(
                replica.store, replica.artifacts, truth.keys, start, params=LOG
            ):
                found += [(Offset.of_entry(name), decode_entry(fields)) for name, fields in elements]
            return [*differences(start, found, truth)]
    return ["the store is away"]


def _learned_state(live: object) -> bytes:
    parts = [live.features, live.labels, live.index]  # type: ignore[attr-defined]
    for part in parts:
        while not part.digest_pages(64):
            pass
    more = live.prequential, live.details  # type: ignore[attr-defined]
    return b"".join([*(part.digest() for part in parts), *(part.digest_bytes() for part in more)])


_apply = LiveModel.apply
_config = catalog._config
_configs: dict[str, ModelConfig] = {}


def _config_once(name: str, stored: dict[str, Any]) -> ModelConfig:
    """Check each configuration once."""
    found = _configs.get(repr(stored))
    if found is None:
        found = _configs[repr(stored)] = _config(name, stored)
    return found


async def _wait_for_nothing(groups: object, timeout: float | None = None) -> None:  # noqa: ASYNC109
    """Kernels are loaded before a history begins."""


def _apply_all(live: LiveModel, buffer: bytes, at: int, ranks: Any, updated: Any) -> tuple[int, int]:
    """Apply what was asked for, in one slice: where an index must grow hangs on where its arrays lie in memory."""
    done, (entry, first) = 0, live.at
    while done < len(ranks):
        live.at = entry, first + done
        at, n = _apply(live, buffer, at, ranks[done:], updated[done:])
        if n == 0:  # a change of labels waits to be prepared
            break
        done += n
    return at, done


@contextlib.contextmanager
def _without_the_world(seed: int) -> Iterator[None]:
    """No randomness but the seed's, and quiet."""
    rng = random.Random(f"secrets {seed}")
    _warm()
    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    was_collecting = gc.isenabled()
    gc.disable()  # it would end generators at a moment of its own
    puts = [
        *lean(),
        (secrets, "token_bytes", lambda n: rng.randbytes(n)),
        (secrets, "token_hex", lambda n: rng.randbytes(n).hex()),
        (secrets, "randbits", lambda n: rng.getrandbits(n)),
        (uuid, "uuid1", lambda: uuid.UUID(int=rng.getrandbits(128))),
        (LiveModel, "apply", _apply_all),
        (replacing, "Copy", replacing.Copy),
        (memory_budget, "time", clock),
        (storage_status, "time", clock),
        (os, "getpid", lambda: here().pid),
        (socket, "gethostname", lambda: "host"),
        (kernel_compiler, "load", lambda: None),
        (kernel_compiler, "wait_for_groups", _wait_for_nothing),
        (catalog, "GROWN_ENTRIES", 2),
        (catalog, "_config", _config_once),
        (replacing, "RETRY_SECONDS", 0.1),
        (replacing, "APPEND_SECONDS", 3.0),
        (replacing, "SWITCH_SECONDS", 0.5),
        (incoming, "RETRY_SECONDS", 0.2),
        (replication, "REPLICATION_SECONDS", 2.0),
        (activation, "RETRY_SECONDS", 0.1),
        (activation, "APPEND_SECONDS", 3.0),
        (versions, "libraries", dict),
        (lease, "LEASE_SECONDS", 1.2),
        (worker_module, "SWEEP_SECONDS", 1.0),
        (garbage, "UNREFERENCED_SECONDS", 1.0),
        (worker_module, "LOOK_SECONDS", 0.25),
    ]
    before = [(where, name, getattr(where, name)) for where, name, _ in puts]
    for where, name, what in puts:
        setattr(where, name, what)
    try:
        yield
    finally:
        for where, name, what in before:
            setattr(where, name, what)
        if was_collecting:
            gc.enable()


@cache
def _warm() -> None:
    """Compile the kernels, once; what there is by now is not looked through again and again for what nobody holds."""
    warmup()
    gc.collect()
    gc.freeze()


def run(seed: int, trace: bool = False, faults: Sequence[str] | None = None) -> Outcome:
    """Run the history of a seed; with ``faults`` these strike instead of those that the seed has chosen."""
    with _without_the_world(seed):
        loop = SimLoop(seed)
        world = World(seed, loop, faults)
        replacing.Copy = recorded(world.replacing)
        if trace:
            world.network.trace = []
        try:
            broken = loop.run(world.live())
        except (AboundError, Endless) as error:
            broken = [f"{type(error).__name__}: {error}"]
        broken = loop.errors + broken
    world.forget()
    collect()
    effects = [words for together in world.store.history for words in together]
    changes = [decode_catalog_entry(words[3:]).event for words in effects if words[:2] == [b"XADD", CATALOG_KEY]]
    counts = {
        "answers": sum(attempt.outcome == DONE for one in world.users.requests for attempt in one.attempts),
        "commands lost": len(world.store.lost),
        "trims": sum(words[0] == b"XTRIM" for words in effects),
        "ended unfinished": sum(isinstance(event, IncarnationDropped) for event in changes),
        "activations": len(world.activating.said) if world.activating is not None else 0,
    }
    replaced = {kind: sum(host.n_replaced[kind] for host in world.replacing) for kind in KINDS}
    counts |= replaced | world.counts
    return Outcome(seed, broken, world.network.checksum, loop.n_callbacks, counts, world.network.trace or [])

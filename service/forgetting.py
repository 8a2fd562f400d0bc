"""Forgetting: a model without some of its events, and nothing left of them in what is kept.

 1. ``look``: which events those are, among all up to the log's present end
 2. ``state``: the model is made anew from its beginning, the events being left out; what was adopted since the first
    of them is made anew as well, by its recipe
 3. that is adopted (``adoption.py``): from here on nobody has learned them
 4. ``clear``: two snapshots past the adoption, and none before it; the log up to it becomes history; the segments of
    history are written anew without the events, one by one, and take the old ones' place in one moment; remembered
    instances with the same vectors go; the store is told to write its file anew

An event that is forgotten leaves its position empty, so that no offset changes. A repeat of a forgotten request goes
with it, and no request that was refused or passed over comes to be learned because what it repeated is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from core.applying import Unit
from core.errors import Conflict, NotReady, StoreUnavailable, UnknownOffset
from core.kernels.records import vector_end
from core.limits import Limits
from core.live import LiveModel
from core.outcomes import Outcomes
from core.record import record_ends
from core.types import START, Offset
from service import indexes, past, refitting
from service import manifest as manifests
from service.adoption import Place
from service.archive import Archiving, archive, swap, write_segment
from service.beginning import restore_beginning
from service.compaction import compact
from service.events import Adopt, Entry, Learn, Prepare, decode_entry, encode
from service.follower import REPLAY_SLICE
from service.history import History, Segment
from service.indexes import IndexManifest
from service.lease import Lease, take
from service.log import Element
from service.model_replica import ModelReplica
from service.shadow import apply
from service.source import Source
from service.store import Store, reaching
from service.stretches import Start, Stretches, stretches_of, up_to

MOST_REMEMBERED = 1000
"""Remembered instances that are read at a time."""

LEASE_WAIT_SECONDS = 600.0
AOF_SECONDS = 600.0
POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class ForgetParams:
    """Which events: those that fulfil all that is given.

    Attributes
    ----------
    key : str or None
        Their idempotency key.
    source : str or None
    since, until : float or None
        Seconds of the store's clock, between which, both included, they were appended.
    reason : str
    """

    reason: str
    key: str | None = None
    source: str | None = None
    since: float | None = None
    until: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.reason) <= 1000:
            raise ValueError("reason must say why, in 1 to 1000 characters")
        if self.key is None and self.source is None and self.since is None and self.until is None:
            raise ValueError("key, source, since or until must say which events")
        if self.since is not None and self.until is not None and self.since > self.until:
            raise ValueError("since must not be after until")

    def matches(self, unit: Unit, at: Offset) -> bool:
        """Whether a request in the entry at an offset is one of them."""
        return (
            (self.key is None or unit.key == self.key)
            and (self.source is None or unit.source == self.source)
            and (self.since is None or at.milliseconds >= int(self.since * 1000))
            and (self.until is None or at.milliseconds <= int(self.until * 1000))
        )


class Forgetting:
    """One forgetting.

    Attributes
    ----------
    after : Offset or None
        Events up to here are looked at; None before ``look``.
    first : Offset or None
        The entry of the first that is forgotten.
    """

    def __init__(self, place: Place, params: ForgetParams, tell: Callable[[str, float], None]) -> None:
        self.after: Offset | None = None
        self.first: Offset | None = None
        self._place = place
        self._params = params
        self._tell = tell
        self._beginning = START
        self._n = {"requests": 0, "instances": 0}
        self._sources: set[str] = set()
        self._remade: dict[str, IndexManifest] = {}
        self._remembered: dict[bytes, list[bytes]] = {}
        self._matched: set[bytes] = set()

    # look

    async def look(self, after: Offset) -> dict[str, Any]:
        """Find the events up to ``after``; how many there are.

        Raises
        ------
        UnknownOffset
            Some may lie before history's beginning; names the first possible offset.
        """
        place, params = self._place, self._params
        contents = await History(place.store, place.artifacts, place.keys).contents()
        self._beginning = START if contents is None else contents.beginning
        self.after = after
        if self._beginning != START and params.key is None:
            since = int((params.since or 0.0) * 1000)
            if since <= self._beginning.milliseconds:
                raise self._too_early(f"give a since of at least {self._beginning.milliseconds / 1000 + 0.001:.3f}")
        await self._hash_remembered()
        async for elements in self._without(self._beginning, after, counting=True):
            self._tell(f"looking: at {elements[-1][0].decode()}", 0.05)
        if self._beginning != START and params.key is not None and self.first is None:
            raise self._too_early("no request with this key came since then")
        return {"forgotten": dict(self._n), "from": str(self.first) if self.first else None}

    def _too_early(self, hint: str) -> UnknownOffset:
        return UnknownOffset(
            f"the history of {self._place.keys.name} begins at {self._beginning}, and what came before it is only "
            f"there as an index, of which no event can be taken out: {hint}",
            self._beginning,
        )

    # state

    async def state(self) -> LiveModel:
        """The model at ``after`` without them."""
        if self.after is None:
            raise AssertionError("look first")
        self._tell("replaying without the events", 0.3)
        return (await self._state(self.after)).live

    async def _state(self, until: Offset) -> ModelReplica:
        place = self._place
        model = ModelReplica(place.keys, place.living.config, REPLAY_SLICE, Limits())
        await restore_beginning(place.store, place.artifacts, model)
        source = _Forgetful(self, place)
        async for elements in self._without(model.offset, until):
            for element in elements:
                await apply(model, element, source)
            await place.between()
        return model

    async def remade(self, name: str, digest: str) -> LiveModel | None:
        """An index that was made of forgotten events, made anew; None when it has none of them."""
        place = self._place
        manifest = await indexes.manifest_of(place.artifacts, place.keys, name)
        until = Offset.parse(manifest.after)
        method = manifest.recipe.get("method")
        if method == "restore":
            until = min(until, Offset.parse(manifest.recipe["to"]))
        if self.first is None or until[:2] < self.first[:2] or method in ("base", "import"):
            return None
        known = self._remade.get(name)
        if known is not None:
            return await indexes.load(place.artifacts, place.keys, known.id, known.digest, Limits())
        self._tell(f"making the index {name} anew", 0.4)
        if method == "forget":
            live = (await self._state(until)).live
        elif method == "restore":
            live = await self._restored(until)
        elif method == "refit":
            live = await self._refitted(manifest, until)
        else:
            raise Conflict(
                f"the index {name} was made of events that are to be forgotten, and it does not say how to make it anew"
            )
        new = indexes.new_id()
        await place.will_write(f"{indexes.folder(place.keys)}/{new}")
        self._remade[name] = await indexes.write(
            place.artifacts, place.keys, live, Offset.parse(manifest.after), manifest.recipe, place.between, new
        )
        return live

    async def _restored(self, to: Offset) -> LiveModel:
        before = to._replace(position=0)
        model = await self._state(Offset(before.milliseconds, before.sequence - 1, 0) if to.sequence else _back(to))
        async for elements in self._without(model.offset, before):
            for name, fields in elements:
                entry = decode_entry(fields)
                event = up_to(entry.event, to.position) if isinstance(entry.event, Learn) else entry.event
                await model.apply(_element(name, msgspec.structs.replace(entry, event=event)))
        return model.live

    async def _refitted(self, manifest: IndexManifest, until: Offset) -> LiveModel:
        place = self._place
        before = (await self._state(until)).live

        def read(after: Offset, to: Offset) -> AsyncGenerator[list[Element]]:
            return self._without(after, to._replace(position=0))

        contents = await History(place.store, place.artifacts, place.keys).contents()
        base = contents.base if contents is not None else None
        found: Stretches = await stretches_of(read, place.artifacts, place.keys, self._beginning, until)
        counted = refitting.start_of(Start(base.index, base.digest) if base is not None else None, found)
        again = refitting.Refitting(
            read, place.artifacts, place.keys, before.config, counted, before.n_learned, self._tell
        )
        live = await again.fit(manifest.recipe["setting"], manifest.recipe["passes"])
        live.continue_score(before)
        return live

    # clear

    async def clear(self, at: Offset) -> dict[str, Any]:
        """Take the events out of everything that is kept, once an index without them is adopted at ``at``."""
        place = self._place
        before = [one.id for one in await manifests.manifests(place.store, place.keys)]
        async with self._leased() as lease:
            keep = replace(place.snapshots, keep=2)
            self._tell("making snapshots without the events", 0.91)
            for _ in range(2):
                await compact(place.store, place.living, keep, place.log, artifacts=place.artifacts, lease=lease)
            kept = [one.id for one in await manifests.manifests(place.store, place.keys)]
            deleted = [name for name in before if name not in kept]
            self._tell("archiving the log", 0.92)
            to = Archiving(place.store, place.artifacts, place.living, lease, place.history, place.log)
            await archive(to)
            rewritten = await self._rewrite(to)
        self._tell("looking through the remembered instances", 0.96)
        n_remembered = await self._forget_remembered()
        self._tell("letting the store write its file anew", 0.97)
        return {
            "snapshots_deleted": deleted,
            "segments_rewritten": rewritten,
            "indexes_rewritten": {old: new.id for old, new in self._remade.items()},
            "remembered_deleted": n_remembered,
            "store_file": await write_file_anew(place.store),
        }

    @contextlib.asynccontextmanager
    async def _leased(self) -> AsyncGenerator[Lease]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LEASE_WAIT_SECONDS
        while True:
            try:
                async with take(self._place.store, self._place.keys) as lease:
                    yield lease
                return
            except Conflict:
                if loop.time() > deadline:
                    raise NotReady("the worker has the snapshots and the history of the model", 60.0) from None
            await asyncio.sleep(POLL_SECONDS)

    async def _rewrite(self, to: Archiving) -> list[str]:
        """Write the segments that hold any of the events anew; their names."""
        contents = await History(to.store, to.artifacts, to.keys).contents()
        if contents is None or not contents.segments or self.after is None:
            return []
        history = History(to.store, to.artifacts, to.keys)
        segments: list[Segment] = []
        old: list[Segment] = []
        pass_on = _Pass(self, to.keys.name)
        await pass_on.begin()
        for number, segment in enumerate(contents.segments):
            self._tell(f"rewriting history, segment {number + 1} of {len(contents.segments)}", 0.93)
            elements = await history.elements(segment)
            rewritten = [await pass_on.rewritten(element) for element in elements]
            if rewritten == elements:
                segments.append(segment)
                continue
            written = await write_segment(to, rewritten, segment.n_before, segment.bytes_before, segment.log_bytes)
            segments.append(written)
            old.append(segment)
        await swap(to, msgspec.structs.replace(contents, segments=segments))
        for segment in old:
            await to.artifacts.delete(segment.name)
        return [segment.name for segment in old]

    # the past without the events

    async def _without(self, after: Offset, until: Offset, counting: bool = False) -> AsyncGenerator[list[Element]]:
        """The entries past ``after`` up to ``until``, with the events emptied; read from the beginning each time."""
        place = self._place
        pass_on = _Pass(self, place.keys.name, counting)
        await pass_on.begin()
        reading = past.entries(place.store, place.artifacts, place.keys, self._beginning, until, params=place.log)
        async with contextlib.aclosing(reading):
            async for elements in reading:
                rewritten = [await pass_on.rewritten(element) for element in elements]
                wanted = [one for one in rewritten if Offset.of_entry(one[0])[:2] > after[:2]]
                if wanted:
                    yield wanted
                await place.between()
                await asyncio.sleep(0)

    # remembered instances

    async def _hash_remembered(self) -> None:
        """Note the vectors of all remembered instances, to know those again that are forgotten."""
        self._remembered = {}
        async for entry, fields in self._remembered_entries():
            self._remembered.setdefault(_hash(fields[b"v"]), []).append(entry)

    async def _remembered_entries(self) -> AsyncGenerator[tuple[bytes, dict[bytes, bytes]]]:
        client, key, last = self._place.store.client, self._place.keys.of("remembered"), b"-"
        while True:
            with reaching():
                found = await client.xrange(key, last, "+", count=MOST_REMEMBERED)
            if not found:
                return
            for entry, fields in found:
                yield entry, fields
            last = b"(" + found[-1][0]

    async def _forget_remembered(self) -> int:
        """Write the stream of remembered instances anew without those that are forgotten; how many they were.

        An entry that is deleted leaves its bytes in the node of the stream that it was in; so those that stay go
        into a new stream, which takes the old one's place.
        """
        if not self._matched:
            return 0
        client, keys = self._place.store.client, self._place.keys
        key, beside = keys.of("remembered"), keys.of(f"remembered:{secrets.token_hex(4)}")
        n, last = 0, b"0-0"
        with reaching():
            async for entry, fields in self._remembered_entries():
                if _hash(fields[b"v"]) in self._matched:
                    n += 1
                else:
                    await client.xadd(beside, fields, id=entry)
                last = entry
            await client.eval(_TAKE_PLACE, 2, key, beside, last)
        return n

    # what a pass tells

    def note(self, units: list[Unit], gone: list[bool], event: Learn, at: Offset) -> None:
        """A pass that counts has met these."""
        if self.first is None:
            self.first = at
        ends = record_ends(event.records, event.n_records).tolist()
        place = 0
        for unit, is_gone in zip(units, gone, strict=True):
            if is_gone and not unit.emptied:
                self._n["requests"] += 1
                self._n["instances"] += unit.n
            for record in range(place, place + (0 if unit.emptied else unit.n)):
                if is_gone and self._remembered:
                    vector = event.records[ends[record] : int(vector_end(event.records, ends[record]))]
                    if (hashed := _hash(vector)) in self._remembered:
                        self._matched.add(hashed)
            place += 0 if unit.emptied else unit.n

    def is_selected(self, unit: Unit, at: Offset) -> bool:
        """Whether a request is to be forgotten."""
        return (
            not unit.emptied and self.after is not None and at[:2] <= self.after[:2] and self._params.matches(unit, at)
        )

    def new_index(self, name: str) -> IndexManifest | None:
        """What an index was made anew as."""
        return self._remade.get(name)

    @property
    def place(self) -> Place:
        """Where."""
        return self._place


class _Pass:
    """One pass over the past from its beginning, which empties what is to be forgotten."""

    def __init__(self, forgetting: Forgetting, model: str, counting: bool = False) -> None:
        self._forgetting = forgetting
        self._counting = counting
        self._forgotten: set[tuple[str, bytes]] = set()
        self._outcomes = Outcomes()
        self._adopted = START
        self._began = False

    async def begin(self) -> None:
        """Take the receipts that there are at the beginning."""
        place = self._forgetting.place
        contents = await History(place.store, place.artifacts, place.keys).contents()
        if contents is not None and contents.base is not None:
            base = contents.base
            live = await indexes.load(place.artifacts, place.keys, base.index, base.digest, Limits())
            self._outcomes = Outcomes(live.receipts)
            self._adopted = base.position.adopted

    async def rewritten(self, element: Element) -> Element:
        """The next entry, without what is to be forgotten."""
        name, fields = element
        entry = decode_entry(fields)
        event, at = entry.event, Offset.of_entry(name)
        if isinstance(event, Learn):
            changed = self._emptied(event, at)
            return element if changed is event else _element(name, msgspec.structs.replace(entry, event=changed))
        if isinstance(event, Adopt | Prepare):
            if isinstance(event, Adopt) and Offset.parse(event.after) >= self._adopted:
                self._adopted = at
                await self._adopt(event, at)
            new = self._forgetting.new_index(event.index)
            if new is not None:
                changed_event = msgspec.structs.replace(event, index=new.id, digest=new.digest)
                return _element(name, msgspec.structs.replace(entry, event=changed_event))
        return element

    async def _adopt(self, event: Adopt, at: Offset) -> None:
        """Go on with the receipts that the model had from an adoption on."""
        place = self._forgetting.place
        live = await indexes.load(place.artifacts, place.keys, event.index, event.digest, Limits())
        self._outcomes = Outcomes(live.receipts)
        reading = past.entries(
            place.store, place.artifacts, place.keys, Offset.parse(event.after), at, params=place.log
        )
        async with contextlib.aclosing(reading):
            async for elements in reading:
                for name, fields in elements:
                    learned = decode_entry(fields).event
                    if isinstance(learned, Learn):
                        self._outcomes.of(learned.records, learned.units, Offset.of_entry(name))

    def _emptied(self, event: Learn, at: Offset) -> Learn:
        units = event.units
        learned = self._outcomes.of(event.records, units, at)
        gone = [self._forgetting.is_selected(unit, at) for unit in units]
        for i, unit in enumerate(units):
            if unit.key is None or unit.emptied:
                continue
            if gone[i]:
                self._forgotten.add((unit.key, unit.body))
            elif (unit.key, unit.body) in self._forgotten and not learned[i]:
                gone[i] = True
        if any(gone):
            self._began = True
            if self._counting:
                self._forgetting.note(units, gone, event, at)
        if self._began:  # what was not learned must not come to be
            gone = [one or not good for one, good in zip(gone, learned, strict=True)]
        if not any(is_gone and not unit.emptied for unit, is_gone in zip(units, gone, strict=True)):
            return event
        ends = record_ends(event.records, event.n_records).tolist()
        kept: list[Unit] = []
        records: list[bytes] = []
        place = 0
        for unit, is_gone in zip(units, gone, strict=True):
            n = 0 if unit.emptied else unit.n
            if is_gone or unit.emptied:
                kept.append(Unit(unit.n, batch=unit.batch, emptied=True))
            else:
                kept.append(unit)
                records.append(event.records[ends[place] : ends[place + n]])
            place += n
        return Learn(b"".join(records), event.n, kept)


class _Forgetful(Source):
    """Where shadows come from in a model that is made without the events."""

    def __init__(self, forgetting: Forgetting, place: Place) -> None:
        super().__init__(place.store, place.artifacts, place.log)
        self._forgetting = forgetting

    async def load(self, keys: Any, index: str, digest: str, limits: Limits, progress: Any = None) -> LiveModel:
        """An index, made anew if it was made of the events."""
        live = await self._forgetting.remade(index, digest)
        return live if live is not None else await super().load(keys, index, digest, limits)

    async def entries(self, keys: Any, after: Offset, until: Offset | None) -> AsyncGenerator[list[Element]]:
        """The entries without the events."""
        if until is None:
            raise AssertionError("a shadow knows where it is to come to")
        async for elements in self._forgetting._without(after, until):
            yield elements


_TAKE_PLACE = """
local left = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+')
for _, entry in ipairs(left) do redis.call('XADD', KEYS[2], entry[1], unpack(entry[2])) end
local milliseconds = redis.call('PTTL', KEYS[1])
if redis.call('EXISTS', KEYS[2]) == 0 then return redis.call('DEL', KEYS[1]) end
redis.call('RENAME', KEYS[2], KEYS[1])
if milliseconds > 0 then redis.call('PEXPIRE', KEYS[1], milliseconds) end
return 1
"""


async def write_file_anew(store: Store, seconds: float = AOF_SECONDS) -> str:
    """Let the store write its append-only file anew, so that nothing of what was deleted is left in it.

    Returns
    -------
    ``rewritten``, or why it is not known to be. The old file is deleted by the store after that; what copies, replicas
    or backups hold is theirs.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    asked = False
    try:
        with reaching():
            while loop.time() < deadline:
                facts = await store.client.info("persistence")
                busy = int(facts.get("aof_rewrite_in_progress", 0)) or int(facts.get("aof_rewrite_scheduled", 0))
                if asked and not busy:
                    good = facts.get("aof_last_bgrewrite_status") == "ok"
                    return "rewritten" if good else "the store could not rewrite its file; send it BGREWRITEAOF"
                if not busy:
                    await store.client.bgrewriteaof()
                    asked = True
                await asyncio.sleep(POLL_SECONDS)
    except StoreUnavailable as error:
        return f"not rewritten, send BGREWRITEAOF to the store: {error}"
    return "the store is still rewriting its file"


def _element(name: bytes, entry: Entry) -> Element:
    payload, checksum = encode(entry)
    return name, [b"e", payload, b"c", checksum]


def _hash(vector: bytes) -> bytes:
    return hashlib.blake2b(vector, digest_size=16).digest()


def _back(to: Offset) -> Offset:
    return Offset(max(0, to.milliseconds - 1), 2**63 if to.milliseconds else 0, 0)

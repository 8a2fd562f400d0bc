"""Forgetting: a model without some of its events, and nothing left of them in what is kept.

 1. ``look``: which events those are, among all up to the log's present end; once more, with all that follows, when
    one of them came again before what was made is adopted (``repeated``)
 2. ``state``: the model is made anew from its beginning, the events being left out; what was adopted since the first
    of them is made anew as well, by its recipe
 3. that is adopted (``adoption.py``): from here on nobody has learned them
 4. ``clear``: versions that were fitted on the events are deleted (``forgotten_versions.py``); two snapshots past the
    adoption, and none before it; the log up to it becomes history; remembered instances with the same vectors go; the
    segments of history are written anew without the events, one by one, and take the old ones' place in one moment;
    the store is told to write its file anew. Whoever dies meanwhile is followed by one who does it again, so what finds
    the events goes last; and what is about to go is noted before (``cleared.py``), so that the record has it all the
    same

An event that is forgotten leaves its position empty, so that no offset changes. A repeat of a forgotten request goes
with it, and no request that was refused or passed over comes to be learned because what it repeated is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

import msgspec

from core.errors import Conflict, NotReady, StoreUnavailable, UnknownOffset
from core.limits import Limits
from core.live import LiveModel
from core.types import START, Offset
from service import forgotten, indexes, past, refitting
from service import manifest as manifests
from service.adoption import Place, delete_indexes
from service.archive import Archiving, archive, swap, write_segment
from service.beginning import restore_beginning
from service.cleared import Cleared
from service.compaction import compact
from service.copied import until_copied
from service.emptying import Adopted, Emptying, ForgetParams, Note, adoptions_of, element_of
from service.events import Learn, decode_entry
from service.forgotten import Unfinished
from service.forgotten_versions import fitted_on, take_away
from service.history import Contents, History, Segment, folder
from service.indexes import IndexManifest
from service.lease import Lease, take
from service.loader import REPLAY_SLICE
from service.log import Element, mended_key
from service.model_replica import ModelReplica
from service.shadow import apply
from service.snapshots import unlisted
from service.source import Source
from service.store import reaching
from service.store_file import write_file_anew
from service.stretches import Start, Stretches, stretches_of, up_to
from service.unremembering import Unremembering

LEASE_WAIT_SECONDS = 600.0
POLL_SECONDS = 0.2


class Forgetting:
    """One forgetting.

    Attributes
    ----------
    after : Offset or None
        Events up to here are looked at; None before ``look``.
    first : Offset or None
        The entry of the first that is forgotten.
    """

    def __init__(
        self,
        place: Place,
        params: ForgetParams,
        tell: Callable[[str, float], None],
        cleared: Cleared | None = None,
        name: str = "",
    ) -> None:
        self.after: Offset | None = None
        self.first: Offset | None = None
        self._place = place
        self._params = params
        self._tell = tell
        self._cleared = cleared or Cleared()
        self._name = name
        self._beginning = START
        self._all_time = True
        self._passed: Emptying | None = None
        self._forgotten: set[tuple[str, bytes]] = set()
        self._adoptions: list[Adopted] = []
        self._complete: set[Offset] = set()
        self._others: dict[str, Unfinished] = {}
        self._n = {"requests": 0, "instances": 0}
        self._remade: dict[str, IndexManifest] = {}
        self._remembered = Unremembering(place.store, place.keys)

    # look

    async def look(self, after: Offset, again: bool = False) -> dict[str, Any]:
        """Find the events up to ``after``; how many there are.

        Parameters
        ----------
        again : bool
            One that died has begun to take them out; there may be none left.

        Raises
        ------
        UnknownOffset
            Some may lie before history's beginning; names the first possible offset.
        """
        place, params = self._place, self._params
        contents = await History(place.store, place.artifacts, place.keys).contents()
        self._beginning = START if contents is None else contents.beginning
        self.after, self.first = after, None
        self._n = {"requests": 0, "instances": 0}
        since = int((params.since or 0.0) * 1000)
        self._all_time = since <= self._beginning.milliseconds
        if self._beginning != START and params.key is None and not again and self._all_time:
            raise self._too_early(f"give a since of at least {self._beginning.milliseconds / 1000 + 0.001:.3f}")
        snapshots = await manifests.ids(place.store, place.keys)
        await self._remembered.read()
        self._complete = {at for at in await forgotten.complete(place.store, place.keys) if at[:2] <= after[:2]}
        adoptions = await adoptions_of(place, after)
        self._adoptions = [one for one in adoptions if one.at not in self._complete]
        adopted = {one.event.adoption for one in adoptions} - {self._name}
        others = await forgotten.unfinished(place.store, place.keys)
        self._others = {job: what for job, what in others.items() if job in adopted}
        async for elements in self.without(self._beginning, after, self._count):
            self._tell(f"looking: at {elements[-1][0].decode()}", 0.05)
        self._forgotten = self._passed.forgotten if self._passed is not None else set()
        if self._beginning != START and params.key is not None and self.first is None and not again:
            raise self._too_early("no request with this key came since then")
        imported = self._passed.imported if self._passed is not None else START
        if imported > START and since <= imported.milliseconds and not again and (params.key is None or not self.first):
            raise UnknownOffset(
                f"{place.keys.name} took over an index from a file at {imported}, of which no event can be taken out: "
                f"give a since of at least {imported.milliseconds / 1000 + 0.001:.3f}",
                imported,
            )
        counts = {"forgotten": dict(self._n), "from": str(self.first) if self.first else None}
        if self.first is not None and not again:
            await self._cleared.found(counts, snapshots)
        return counts

    def _too_early(self, hint: str) -> UnknownOffset:
        return UnknownOffset(
            f"the history of {self._place.keys.name} begins at {self._beginning}, and what came before it is only "
            f"there as an index, of which no event can be taken out: {hint}",
            self._beginning,
        )

    async def end_others(self) -> None:
        """Say that what former ones forget is gone, once ``look`` has found nothing: not all have said so themselves.

        One that was begun by a worker may be finished by another, of older code, that does not know it has to.
        """
        await forgotten.end(self._place.store, self._place.keys, self._others)

    async def repeated(self, at: Offset) -> bool:
        """Whether a key of a request that is forgotten came again past ``after``, before the adoption at ``at``.

        It was answered as a repeat, or refused with another body, and is learned on top of what was adopted, which
        does not know the first one.
        """
        place = self._place
        if self.after is None:
            raise AssertionError("look first")
        keys = {key for key, _ in self._forgotten}
        if not keys:
            return False
        reading = past.entries(place.store, place.artifacts, place.keys, self.after, at, params=place.log)
        async with contextlib.aclosing(reading):
            async for elements in reading:
                for element in elements:
                    event = past.entry_of(element).event
                    if isinstance(event, Learn) and any(one.key in keys for one in event.units):
                        return True
        return False

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
        async for elements in self.without(model.offset, until):
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
        source = _Forgetful(self, self._place)
        async for elements in self.without(model.offset, before):
            for name, fields in elements:
                entry = decode_entry(fields)
                event = up_to(entry.event, to.position) if isinstance(entry.event, Learn) else entry.event
                await apply(model, element_of(name, msgspec.structs.replace(entry, event=event)), source)
        return model.live

    async def _refitted(self, manifest: IndexManifest, until: Offset) -> LiveModel:
        place = self._place
        before = (await self._state(until)).live

        def read(after: Offset, to: Offset) -> AsyncGenerator[list[Element]]:
            return self.without(after, to._replace(position=0))

        contents = await History(place.store, place.artifacts, place.keys).contents()
        base = contents.base if contents is not None else None
        found: Stretches = await stretches_of(read, place.artifacts, place.keys, self._beginning, until)
        counted = refitting.start_of(Start(base.index, base.digest) if base is not None else None, found)
        again = refitting.Refitting(
            read,
            place.artifacts,
            place.keys,
            before.config,
            counted,
            before.n_learned,
            lambda stage, done: self._tell(stage, 0.4),
        )
        live = await again.fit(manifest.recipe["setting"], manifest.recipe["passes"])
        live.continue_score(before)
        return live

    # clear

    async def clear(self, at: Offset) -> dict[str, Any]:
        """Take the events out of everything that is kept, once an index without them is adopted at ``at``.

        What nothing points to any more is deleted last, when the store has what points on disk, and all of its copies
        have it: were that lost, the files would be needed again.

        Raises
        ------
        NotReady
            Others have what is needed for too long, or copies of the store do not come so far.
        StoreUnavailable
            Also when a failover has lost the adoption, or what was written since. All can be done again.
        """
        place = self._place
        cleared = self._cleared
        if self.first is not None:  # else history has lost the events already, and these went before
            self._tell("deleting the versions that were fitted on the events", 0.9)
            fitted = await fitted_on(place, self.first)
            await take_away(place, fitted, self._params.reason, cleared.will_delete_versions)
        async with contextlib.AsyncExitStack() as stack:
            lease = await self._lease(stack)
            keep = replace(place.snapshots, keep=2)
            await cleared.will_delete_snapshots(await manifests.ids(place.store, place.keys))
            self._tell("making snapshots without the events", 0.91)
            for _ in range(2):
                made = await compact(place.store, place.living, keep, place.log, artifacts=place.artifacts, lease=lease)
                if made.position.adopted[:2] < at[:2]:
                    raise StoreUnavailable(f"the store has lost the adoption at {at}")
            cleared.kept_snapshots(await manifests.ids(place.store, place.keys))
            await self._drop_unfinished()
            self._tell("archiving the log", 0.92)
            to = Archiving(place.store, place.artifacts, place.living, lease, place.history, place.log)
            await archive(to)
            self._tell("looking through the remembered instances", 0.93)
            await cleared.will_forget_remembered(await self._remembered.count())
            await self._remembered.forget()  # while history still tells which those are
            if self._remade:  # history is about to name them, so they are not the job's own any more
                await place.commit(*[f"{indexes.folder(place.keys)}/{new.id}" for new in self._remade.values()])
            rewritten = await self._rewrite(to, at)
            self._tell("letting the store write its file anew", 0.97)
            store_file = await write_file_anew(place.store)
            self._tell("waiting until copies of the store have all of it", 0.98)
            await until_copied(place.store)
            await lease.check()
            await self._delete_unlisted(to, rewritten)
            await delete_indexes(place, cleared.will_delete_indexes)
        return cleared.record(store_file=store_file)

    async def _lease(self, stack: contextlib.AsyncExitStack) -> Lease:
        """The lease of the model, as soon as the worker lets go of it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LEASE_WAIT_SECONDS
        while True:
            try:
                return await stack.enter_async_context(take(self._place.store, self._place.keys))
            except Conflict:
                if loop.time() > deadline:
                    raise NotReady("the worker has the snapshots and the history of the model", 60.0) from None
            await asyncio.sleep(POLL_SECONDS)

    async def _drop_unfinished(self) -> None:
        """Take out what those who died have left, of snapshots and of mends: nothing points to it, and the events may
        be in it."""
        store = self._place.store
        found = await unlisted(store, self._place.keys)
        await self._cleared.will_delete_snapshots(found)
        with reaching():
            await store.client.unlink(mended_key(self._place.keys.log))
            for some in found.values():
                await store.client.unlink(*some)

    async def _rewrite(self, to: Archiving, at: Offset) -> Contents | None:
        """Write the segments that hold any of the events anew; the list of history that there is then.

        From that moment on the adoption at ``at``, and those of rounds before it, say nothing any more.
        """
        history = History(to.store, to.artifacts, to.keys)
        contents = await history.contents()
        if contents is None:
            return None
        segments: list[Segment] = []
        old: list[str] = []
        emptying = await self._emptying()
        for number, segment in enumerate(contents.segments):
            self._tell(f"rewriting history, segment {number + 1} of {len(contents.segments)}", 0.94)
            elements = await history.elements(segment)
            rewritten = [await emptying.rewritten(element) for element in elements]
            if rewritten != elements:
                old.append(segment.name)
                segment = await write_segment(to, rewritten, segment.n_before, segment.bytes_before, segment.log_bytes)
            segments.append(segment)
        complete = await forgotten.complete(to.store, to.keys)
        if old or at not in complete:
            await self._cleared.will_rewrite(old, {name: new.id for name, new in self._remade.items()})
            own = {self._name, *self._others}
            by_own = {at} | {one.at for one in self._adoptions if one.event.adoption in own}
            too_late = await forgotten.unfinished(to.store, to.keys)  # those would be passed over
            own |= {job for job, what in too_late.items() if Offset.parse(what.after) < at}
            said = forgotten.saying(to.keys, complete - self._complete | by_own, own)
            contents = await swap(to, msgspec.structs.replace(contents, segments=segments), also=said)
        return contents

    async def _delete_unlisted(self, to: Archiving, rewritten: Contents | None) -> None:
        """Delete the files of history that are not in its list, if that is still the one that was written."""
        contents = await History(to.store, to.artifacts, to.keys).contents()
        if contents != rewritten:
            raise StoreUnavailable("the store has lost the list of history that was written last")
        listed = {segment.name for segment in contents.segments} if contents is not None else set()
        for name in await to.artifacts.names(folder(to.keys, "history")):
            if name not in listed:
                await to.artifacts.delete(name)

    # the past without the events

    async def _emptying(self, note: Note = lambda event, gone, at: None) -> Emptying:
        if self.after is None:
            raise AssertionError("look first")
        self._passed = emptying = Emptying(
            self._place,
            self._params,
            self.after,
            self._adoptions,
            self._complete,
            self._remade,
            note,
            self._name,
            self._others,
        )
        await emptying.begin()
        if emptying.came_before and self._all_time:
            raise self._too_early("a request with this key came before that, and has been learned")
        return emptying

    async def without(
        self, after: Offset, until: Offset, note: Note = lambda event, gone, at: None
    ) -> AsyncGenerator[list[Element]]:
        """The entries past ``after`` up to ``until``, with the events emptied; read from the beginning each time."""
        place = self._place
        emptying = await self._emptying(note)
        reading = past.entries(place.store, place.artifacts, place.keys, self._beginning, until, params=place.log)
        async with contextlib.aclosing(reading):
            async for elements in reading:
                rewritten = [await emptying.rewritten(element) for element in elements]
                wanted = [one for one in rewritten if Offset.of_entry(one[0])[:2] > after[:2]]
                if wanted:
                    yield wanted
                await place.between()
                await asyncio.sleep(0)

    def _count(self, event: Learn, gone: list[bool], at: Offset) -> None:
        if self.first is None:
            self.first = at
        for unit, is_gone in zip(event.units, gone, strict=True):
            if is_gone:
                self._n["requests"] += 1
                self._n["instances"] += unit.n
        self._remembered.compare(event, gone)


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
        first = self._forgetting.first
        if first is not None and until[:2] < first[:2]:  # nothing was left out yet
            async for elements in super().entries(keys, after, until):
                yield elements
            return
        async for elements in self._forgetting.without(after, until):
            yield elements


def _back(to: Offset) -> Offset:
    return Offset(max(0, to.milliseconds - 1), 2**63 if to.milliseconds else 0, 0)

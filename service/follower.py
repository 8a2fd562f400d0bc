"""The follower: reads the catalog and the logs of all models, and applies them, from the first start to the last stop.

    **load**     newest good snapshot, then replay to the log's end
    **follow**   one XREAD BLOCK over the catalog and all logs, for ever
    **return**   after every lost connection: is the entry applied last still there, with the same checksum? If not,
                 the store has lost a tail or is another store: the state is dropped and loaded anew

A replica that has gone on from a tail which the store lost would differ from all others for ever; that is why step
*return* comes before anything new is applied. So would one that was stopped for so long that entries which it has not
read were trimmed, or one whose server was made the copy of another: the store does not tell a reader. That is why every
reading is followed, on the same connection, by the questions how far each log is trimmed and whether this is a copy.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

import hiredis
import structlog

from core.errors import (
    ArtifactsUnavailable,
    CannotStart,
    Damaged,
    StoreUnavailable,
    UnknownApplyVersion,
    UnknownOffset,
)
from core.limits import Limits
from core.types import START
from service import log as stream
from service import past
from service.artifacts import Artifacts
from service.catalog import CATALOG_KEY, Catalog, Living
from service.events import Mark, Prepare, PrepareVersion
from service.line import FIRST_PAUSE, LONGEST_PAUSE
from service.link import Link, LinkLost
from service.log import MOST_ENTRIES, Element, LogParams, Pace, Trim, size_of
from service.model_replica import Applied, ModelReplica, NotLoaded, NotPrepared
from service.snapshots import restore_newest
from service.store import Store

log = structlog.get_logger(__name__)

BLOCK_SECONDS = 1.0
REPLAY_SLICE = 1024
HALTED_PAUSE_SECONDS = 0.1
AGAIN_SECONDS = 10.0

Progress = Callable[[str, float], None]


class Watcher(Protocol):
    """Whom the follower tells what happens. A replica is one; so is whatever only looks on."""

    def came(self, model: ModelReplica) -> None:
        """A model is followed from here on."""

    def gone(self, model: ModelReplica) -> None:
        """A model is no more."""

    def sighted(self, model: ModelReplica, applied: Applied) -> None:
        """An entry was applied."""

    async def marked(self, model: ModelReplica, token: str) -> None:
        """A mark was applied; the next entry waits until this returns."""

    def prepared(self, model: ModelReplica) -> None:
        """An index is about to be adopted, or a version to be activated."""

    def halted(self, model: ModelReplica, missing: NotPrepared | NotLoaded) -> None:
        """A model cannot go on without its shadow, or a version. Sets ``halted``, and later ``resumes``."""


class Follower:
    """Keeps models at the end of their logs.

    Attributes
    ----------
    catalog : Catalog
    models : dict of ModelReplica by name
    trouble : str or None
        Why nothing is followed any more.
    cut_off : str or None
        Why the store cannot be read at the moment.
    """

    def __init__(
        self, store: Store, params: LogParams, limits: Limits, watcher: Watcher, artifacts: Artifacts | None = None
    ) -> None:
        self.catalog = Catalog()
        self.models: dict[str, ModelReplica] = {}
        self.trouble: str | None = None
        self.cut_off: str | None = None
        self._store = store
        self._params = params
        self._limits = limits
        self._watcher = watcher
        self._artifacts = artifacts
        self._by_key: dict[bytes, ModelReplica] = {}
        self._link: Link | None = None
        self._since_pause = 0
        self._pace = Pace(params.read_bytes)
        self._most = MOST_ENTRIES

    async def load(self, progress: Progress) -> None:
        """Bring all models there are to the ends of their logs.

        Raises
        ------
        StoreUnavailable
            The store went away meanwhile; call again.
        CannotStart
            The catalog or a model's beginning is lost or damaged.
        """
        link = await self._store.open_link("load")
        try:
            await self._read_catalog(link)
            for model in list(self.models.values()):
                if not model.ready and model.trouble is None:
                    await self._load_model(link, model, progress)
                while model.halted is not None and model.trouble is None and not model.lacks:
                    progress(f"{model.name} waits: {model.halted}", 0.0)
                    await asyncio.sleep(HALTED_PAUSE_SECONDS)
                    if model.resumes:
                        await self._replay(link, model, progress)
                    elif not await self._goes_on(link, model):
                        raise StoreUnavailable(f"the store has lost a tail of the log of {model.name}")
        except ArtifactsUnavailable as error:
            raise CannotStart(str(error)) from error
        finally:
            link.close()
        if self.trouble is not None:
            raise CannotStart(self.trouble)

    async def follow(self) -> None:
        """Apply whatever comes, for ever. Ends only when it is cancelled, or with ``trouble``."""
        pause = FIRST_PAUSE
        while self.trouble is None:
            link = None
            try:
                link = self._link = await self._store.open_link("follow")
                await self._return(link)
                if self.cut_off is not None:
                    log.info("following the log again")
                self.cut_off = None
                pause = FIRST_PAUSE
                self._pace = Pace(self._params.read_bytes)  # whatever ended the last link, the next entry gets through
                while self.trouble is None:
                    await self._read_once(link)
            except (StoreUnavailable, LinkLost, hiredis.ReplyError) as error:
                if self.cut_off is None:
                    log.warning("cut off from the log", reason=str(error))
                self.cut_off = str(error)
            finally:
                if link is not None:
                    link.close()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def knows(self, link: Link, seconds: float) -> bool:
        """Whether the catalog at the other end of a link goes on from ours.

        If not, its server has lost a tail and with it models, and what is appended to their logs would be nowhere.
        """
        offset, checksum = self.catalog.offset, self.catalog.checksum
        if offset == START:
            return True
        return await stream.holds_over(link, CATALOG_KEY, offset, checksum, seconds)

    def doubt(self) -> None:
        """Step *return* is taken as soon as what is being applied is: somebody saw less in the store than was read."""
        if self._link is not None:
            self._link.close()

    # load

    async def _read_catalog(self, link: Link) -> None:
        """Take the whole catalog anew; models that it does not have any more go.

        It counts only once it is read to its end: half of one would hold at the next return, and nobody would miss
        the rest, nor let go of the models that are no more.
        """
        catalog = Catalog()
        seconds = self._store.params.reply_seconds
        async for elements in stream.read(
            link, CATALOG_KEY, catalog.offset, read_bytes=self._params.read_bytes, seconds=seconds
        ):
            for element in elements:
                if not self._apply_catalog(element, catalog):
                    return
        self.catalog = catalog
        self._sync()

    async def _load_model(self, link: Link, model: ModelReplica, progress: Progress) -> None:
        """Newest good snapshot and replay."""
        name = model.name
        try:
            progress(f"loading snapshot of {name}", 0.0)
            manifest = await restore_newest(
                self._store,
                model,
                lambda done: progress(f"loading snapshot of {name}", done),
                artifacts=self._artifacts,
            )
        except (Damaged, UnknownApplyVersion) as error:
            raise CannotStart(str(error)) from error
        log.info("loaded a snapshot", model=name, snapshot=manifest.id if manifest else None, offset=str(model.offset))
        await self._replay(link, model, progress)

    async def _replay(self, link: Link, model: ModelReplica, progress: Progress) -> None:
        """Go on from where the model is to the log's end; then it is ready, unless it has stopped or halted.

        It halts at the end when it does not have the version that is active there.
        """
        name = model.name
        model.halted, model.resumes = None, False
        tail = await stream.tail(self._store, model.keys.log)
        n_entries = tail.n_removed + tail.n_entries
        begin = model.position.n_entries
        model.slice_events = REPLAY_SLICE
        try:
            progress(f"replaying {name}", 0.0)
            async with contextlib.aclosing(
                past.entries(
                    self._store,
                    self._artifacts,
                    model.keys,
                    model.offset,
                    params=self._params,
                    link=link,
                    most=self._most,
                    checksum=model.position.checksum,
                )
            ) as reading:
                async for elements in reading:
                    for element in elements:
                        await self._apply(model, element)
                        if model.trouble is not None or model.halted is not None:
                            return
                    done = (model.position.n_entries - begin) / max(1, n_entries - begin)
                    progress(f"replaying {name}", min(1.0, done))
        except StoreUnavailable:
            self._most = max(1, self._most // 4)  # a reply may have been too much for the way here
            raise
        except (Damaged, UnknownOffset) as error:
            raise CannotStart(str(error)) from error
        finally:
            model.slice_events = self._params.slice_events
        self._most = MOST_ENTRIES
        model.trim = await stream.trim_of(self._store, model.keys.log)
        try:
            model.check_serving()
        except NotLoaded as missing:
            self._watcher.halted(model, missing)
            return
        model.lacks, model.ready = False, True
        log.info("replayed a model", model=name, offset=str(model.offset), entries=model.position.n_entries - begin)

    # return

    async def _return(self, link: Link) -> None:
        """Check that all logs go on from where we are; load anew what does not."""
        seconds = self._store.params.reply_seconds
        stream.check_primary(await link.call(*stream.ROLE, seconds=seconds))  # before anything is dropped
        if not await self.knows(link, seconds):
            log.error("the catalog does not go on from where it was; reading it anew", offset=str(self.catalog.offset))
            await self._read_catalog(link)
        for model in list(self.models.values()):
            if model.trouble is not None:
                continue
            trusted = model.ready or model.halted is not None
            if trusted and await self._goes_on(link, model):
                continue
            if trusted:
                log.error(
                    "the log does not go on from the entry applied last; dropping the state and loading anew",
                    model=model.name,
                    offset=str(model.offset),
                )
            await self._load_anew(link, model)

    async def _goes_on(self, link: Link, model: ModelReplica) -> bool:
        """Whether the log at the other end goes on from the entry that a model has applied last."""
        position, seconds = model.position, self._store.params.reply_seconds
        return await stream.holds_over(link, model.keys.log, position.offset, position.checksum, seconds)

    async def _load_anew(self, link: Link, model: ModelReplica) -> None:
        """Drop a model's state and load it again; when that cannot be done, ``trouble`` says why."""
        model.ready = False
        try:
            await self._load_model(link, model, _no_progress)
        except CannotStart as error:
            model.trouble = str(error)
            log.error("a model cannot be loaded", model=model.name, reason=model.trouble)
        except ArtifactsUnavailable as error:
            model.trouble = str(error)
            log.error("a model cannot be loaded yet", model=model.name, reason=model.trouble)
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._try_again, model, model.trouble)

    def _try_again(self, model: ModelReplica, trouble: str) -> None:
        if model.trouble == trouble and self.models.get(model.name) is model:
            model.trouble = None
            self.doubt()

    # follow

    async def _read_once(self, link: Link) -> None:
        """Wait for entries of any stream, at most BLOCK_SECONDS, and apply them."""
        for halted in [model for model in self.models.values() if model.resumes and model.trouble is None]:
            try:
                await self._replay(link, halted, _no_progress)
            except (CannotStart, ArtifactsUnavailable):
                await self._load_anew(link, halted)
        followed = [model for model in self.models.values() if model.trouble is None and model.halted is None]
        seconds = BLOCK_SECONDS + self._store.params.reply_seconds
        words: list[str | bytes | int] = ["XREAD", "COUNT", self._pace.count, "BLOCK", int(BLOCK_SECONDS * 1000)]
        words += ["STREAMS", CATALOG_KEY]
        words += [model.log_key for model in followed]
        words.append(self.catalog.offset.entry)
        words += [model.offset.entry for model in followed]
        keys = [stream.trimmed_key(model.log_key) for model in followed] or [stream.trimmed_key(CATALOG_KEY)]
        reply, trims, role = await link.call_all(tuple(words), ("MGET", *keys), stream.ROLE, seconds=seconds)
        stream.check_primary(role)
        if reply:
            await asyncio.sleep(0)  # what others have to send goes out first: the store is busy while we apply
        reply = reply or ()
        left = []
        for one, text in zip(followed, trims, strict=False):
            if self._is_left(one, text):
                left.append(one)
                await self._load_anew(link, one)
        size = sum(size_of(fields) for _, elements in reply for _, fields in elements)
        self._pace.came(max((len(elements) for _, elements in reply), default=0), size)
        for key, elements in reply:
            for entry_id, fields in elements:
                if key == CATALOG_KEY:
                    self._apply_catalog((entry_id, fields), self.catalog)
                    for created in self._sync():
                        if self.catalog.known == self.catalog.offset:  # it was there while we were behind
                            await self._load_anew(link, created)
                        else:
                            created.ready = True  # its log began just now
                    continue
                model = self._by_key.get(key)
                if model is None or model.trouble is not None or model.halted is not None or model in left:
                    break
                await self._apply(model, (entry_id, fields))

    def _is_left(self, model: ModelReplica, text: bytes | None) -> bool:
        """Note how far a log is trimmed; whether entries that the model has not read may be gone."""
        try:
            model.trim = Trim.parse(text)
        except Damaged as error:
            model.ready = False
            model.trouble = str(error)
            log.error("a model has stopped", model=model.name, reason=model.trouble)
            return False
        if not model.trim.is_past(model.offset):
            return False
        log.error(
            "the log is trimmed past the entry applied last; dropping the state and loading anew",
            model=model.name,
            offset=str(model.offset),
            trimmed=model.trim.last.entry,
        )
        return True

    async def _apply(self, model: ModelReplica, element: Element) -> None:
        """Apply one entry; every so many events, let other work of the process have its turn."""
        try:
            applied = await model.apply(element)
        except (Damaged, UnknownApplyVersion) as error:
            log.error("a model has stopped", model=model.name, reason=str(error))
            return
        except (NotLoaded, NotPrepared) as missing:
            what = "an adoption" if isinstance(missing, NotPrepared) else "an activation"
            log.warning(f"a model halts before {what}", model=model.name, reason=str(missing))
            model.ready = False
            self._watcher.halted(model, missing)
            return
        self._watcher.sighted(model, applied)
        event = applied.entry.event
        if type(event) is Mark:
            await self._watcher.marked(model, event.token)
        elif type(event) is Prepare or type(event) is PrepareVersion:
            self._watcher.prepared(model)
        self._since_pause += applied.offset.position + 1
        if self._since_pause >= model.slice_events:
            self._since_pause = 0
            await asyncio.sleep(0)

    def _apply_catalog(self, element: Element, catalog: Catalog) -> bool:
        """Take the next entry of a catalog; False when it cannot be taken, and ``trouble`` says why."""
        try:
            catalog.apply(element)
        except (Damaged, UnknownApplyVersion) as error:
            mending = f". {stream.MENDING}" if isinstance(error, Damaged) else ""
            self.trouble = f"entry {element[0].decode()} of the catalog cannot be applied: {error}{mending}"
            log.error("the catalog has stopped", reason=self.trouble)
            return False
        return True

    def _sync(self) -> list[ModelReplica]:
        """Let go of models that the catalog does not have any more; take up those that it has new, and return them."""
        for model in list(self.models.values()):
            living = self.catalog.get(model.name)
            if living is None or living.keys != model.keys:
                model.ready = False
                model.trouble = f"the model {model.name} was deleted"
                del self.models[model.name], self._by_key[model.keys.log]
                self._watcher.gone(model)
        new = [living for living in self.catalog if living.keys.name not in self.models]
        return [self._take_up(living) for living in new]

    def _take_up(self, living: Living) -> ModelReplica:
        model = ModelReplica(living.keys, living.config, self._params.slice_events, self._limits)
        self.models[model.name] = self._by_key[model.keys.log] = model
        self._watcher.came(model)
        return model


def _no_progress(stage: str, done: float) -> None:
    """Nobody looks."""

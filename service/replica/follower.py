"""The follower: reads the catalog and the logs of all models, and applies them, from the first start to the last stop.

    **load**     newest good snapshot, then replay to the log's end (``service/replica/loader.py``)
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

import hiredis
import structlog

from abound.core.errors import ArtifactsUnavailable, CannotStart, Damaged, StoreUnavailable, UnknownApplyVersion
from abound.core.limits import Limits
from abound.core.types import START
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.log import stream
from abound.service.log.catalog import CATALOG_KEY, Catalog, Living
from abound.service.log.stream import Element, LogParams, Pace, Trim, size_of
from abound.service.model.replicated_model import ModelReplica
from abound.service.processes import kernel_compiler
from abound.service.replica.loader import Loader, Progress, Watcher
from abound.service.store.client import Store, reaching
from abound.service.store.connection import Link, LinkLost
from abound.service.store.reconnecting import FIRST_PAUSE, LONGEST_PAUSE

log = structlog.get_logger(__name__)

BLOCK_SECONDS = 1.0
HALTED_PAUSE_SECONDS = 0.1
AGAIN_SECONDS = 10.0


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
        self._loader = Loader(store, params, watcher, artifacts)
        self._by_key: dict[bytes, ModelReplica] = {}
        self._link: Link | None = None
        self._pace = Pace(params.read_bytes)

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
                    await self._loader.load(link, model, progress)
                while model.halted is not None and model.trouble is None and not model.lacks:
                    progress(f"{model.name} waits: {model.halted}", 0.0)
                    await asyncio.sleep(HALTED_PAUSE_SECONDS)
                    if model.resumes:
                        await self._loader.replay(link, model, progress)
                    elif not (await self._goes_on(link, model) or await self._is_archived(link, model)):
                        raise StoreUnavailable(f"the store has lost a tail of the log of {model.name}")
        except ArtifactsUnavailable as error:
            raise CannotStart(str(error)) from error
        finally:
            link.close()
        if self.trouble is not None:
            raise CannotStart(self.trouble)

    async def follow(self) -> None:
        """Apply whatever comes, for ever. Ends only when it is cancelled, or with ``trouble``.

        Whatever ends it says so there, so that nobody is answered from a state that stands still.
        """
        try:
            await self._follow()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.trouble = f"the follower stopped: {type(error).__name__}: {error}"
            log.exception("the follower stopped")
            raise

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

    # the catalog

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
        await self._sync()

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

    async def _sync(self) -> list[ModelReplica]:
        """Let go of models that the catalog does not have any more; take up those that it has new, and return them."""
        for model in list(self.models.values()):
            living = self.catalog.get(model.name)
            if living is None or living.keys != model.keys:
                model.ready = False
                model.trouble = f"the model {model.name} was deleted"
                del self.models[model.name], self._by_key[model.keys.log]
                self._watcher.gone(model)
        new = [living for living in self.catalog if living.keys.name not in self.models]
        for living in new:
            await kernel_compiler.loaded(living.config)
        return [self._take_up(living) for living in new]

    def _take_up(self, living: Living) -> ModelReplica:
        model = ModelReplica(living.keys, living.config, self._params.slice_events, self._limits)
        self.models[model.name] = self._by_key[model.keys.log] = model
        self._watcher.came(model)
        return model

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

    async def _is_archived(self, link: Link, model: ModelReplica) -> bool:
        """Whether the entry that a model has applied last has left the log for history, from where it is replayed."""
        with reaching():
            text = await link.call("GET", stream.trimmed_key(model.keys.log), seconds=self._store.params.reply_seconds)
        trim = Trim.parse(text)
        return trim != stream.UNTRIMMED and trim.covers(model.offset)

    async def _load_anew(self, link: Link, model: ModelReplica) -> None:
        """Drop a model's state and load it again; when that cannot be done, ``trouble`` says why."""
        model.ready = False
        model.halted, model.resumes = None, False  # that was said of the state which goes
        try:
            await self._loader.load(link, model)
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

    async def _follow(self) -> None:
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

    async def _read_once(self, link: Link) -> None:
        """Wait for entries of any stream, at most BLOCK_SECONDS, and apply them."""
        for halted in [model for model in self.models.values() if model.resumes and model.trouble is None]:
            try:
                await self._loader.replay(link, halted)
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
                    for created in await self._sync():
                        if self.catalog.known == self.catalog.offset:  # it was there while we were behind
                            await self._load_anew(link, created)
                        else:
                            created.ready = True  # its log began just now
                    continue
                model = self._by_key.get(key)
                if model is None or model.trouble is not None or model.halted is not None or model in left:
                    break
                await self._loader.apply(model, (entry_id, fields))

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

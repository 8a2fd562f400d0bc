"""The follower: reads the catalog and the logs of all models and applies them, from start to stop.

A replica that continued from entries which the store has lost would differ from all others forever. So each new
connection first verifies that the last applied entry still exists with the same checksum; if not, the state is
dropped and loaded again.
"""

from __future__ import annotations

import asyncio
import contextlib

import hiredis
import structlog

from abound.artifacts.artifact_store import ArtifactStore
from abound.log import stream
from abound.log.catalog import CATALOG_KEY, Catalog, CatalogModel, Coming
from abound.log.stream import Element, LogParams, ReadPacer, Trim, entry_size
from abound.processes import kernel_compiler
from abound.replica.incoming import IncomingModels
from abound.replica.loader import FollowerCallbacks, Loader, Progress
from abound.state.replicated_model import ReplicatedModel
from abound.store.client import Store, store_errors
from abound.store.raw_connection import ConnectionLost, StoreConnection
from abound.store.reconnecting_connection import FIRST_PAUSE, LONGEST_PAUSE
from abound_core.config import ModelConfig
from abound_core.errors import ArtifactsUnavailable, CannotStart, Corrupted, StoreUnavailable, UnknownApplyVersion
from abound_core.limits import Limits
from abound_core.types import START, Offset

log = structlog.get_logger(__name__)

BLOCK_SECONDS = 1.0
HALTED_PAUSE_SECONDS = 0.1
RETRY_SECONDS = 10.0
BEING_LOADED = "what replaces it is being loaded"


class Follower:
    """Keeps models at the end of their logs."""

    def __init__(
        self,
        store: Store,
        params: LogParams,
        limits: Limits,
        callbacks: FollowerCallbacks,
        artifacts: ArtifactStore | None = None,
    ) -> None:
        self.catalog = Catalog()
        self.models: dict[str, ReplicatedModel] = {}
        # ``models`` is complete up to here. It is behind ``catalog`` while kernels are loaded.
        self.models_offset = START
        self._models_checksum = b""  # of that entry
        self.failure: str | None = None  # why the follower has stopped
        self.cut_off: str | None = None  # why the store cannot be read at the moment
        self._store = store
        self._artifacts = artifacts
        self._params = params
        self._limits = limits
        self._callbacks = callbacks
        self._loader = Loader(store, params, callbacks, artifacts)
        loader = Loader(store, params, callbacks, artifacts)  # a replay of a served model does not slow it down
        self.incoming = IncomingModels(store, loader, self._make_incoming, self._on_incoming_loaded)
        self._by_key: dict[bytes, ReplicatedModel] = {}  # those that are followed
        self._connection: StoreConnection | None = None
        self._pace = ReadPacer(params.read_bytes)

    async def load(self, progress: Progress) -> None:
        """Bring all models to the ends of their logs.

        Raises StoreUnavailable if the store became unavailable: call again. Raises CannotStart if the catalog, or the
        beginning of a model's log, is lost or damaged.
        """
        connection = await self._store.open_connection("load")
        try:
            await self._read_catalog(connection)
            for model in list(self.models.values()):
                if self.incoming.is_loading(model):
                    continue
                if not model.ready and model.failure is None:
                    await self._loader.load(connection, model, progress)
                while model.halted is not None and model.failure is None and not model.lacks_version:
                    progress(f"{model.name} waits: {model.halted}", 0.0)
                    await asyncio.sleep(HALTED_PAUSE_SECONDS)
                    if model.resumes:
                        await self._loader.replay(connection, model, progress)
                    elif not (
                        await self._continues_log(connection, model) or await self._is_archived(connection, model)
                    ):
                        raise StoreUnavailable(f"the store has lost the end of the log of {model.name}")
        except ArtifactsUnavailable as error:
            raise CannotStart(str(error)) from error
        finally:
            connection.close()
        if self.failure is not None:
            raise CannotStart(self.failure)

    async def follow(self) -> None:
        """Apply new entries until it is cancelled or fails.

        A failure is recorded in ``failure``, so that no request is answered from a state that no longer advances.
        """
        try:
            await self._follow()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.failure = f"the follower stopped: {type(error).__name__}: {error}"
            raise

    async def continues_catalog(self, connection: StoreConnection, seconds: float) -> bool:
        """Return whether the catalog at the other end of a connection continues ours, and the one of our models.

        If not, that server has lost models, and entries appended to their logs would be lost.
        """
        known = {self.catalog.offset: self.catalog.checksum, self.models_offset: self._models_checksum}
        for offset, checksum in known.items():
            if offset != START and not await stream.holds_over(connection, CATALOG_KEY, offset, checksum, seconds):
                return False
        return True

    def verify_soon(self) -> None:
        """Verify all positions after the current entry: the heartbeat found fewer entries than were read here."""
        if self._connection is not None:
            self._connection.close()

    # the catalog

    async def _read_catalog(self, connection: StoreConnection) -> None:
        catalog = Catalog()
        seconds = self._store.params.reply_seconds
        async for elements in stream.read(
            connection, CATALOG_KEY, catalog.offset, read_bytes=self._params.read_bytes, seconds=seconds
        ):
            for element in elements:
                if not self._apply_catalog(element, catalog):
                    return
        if self._artifacts is not None and self._artifacts.id:  # a store that has lost its data may have another folder
            with contextlib.suppress(ArtifactsUnavailable):
                await self._artifacts.join(self._store)
        # Only a catalog read to its end takes effect. Half of one would pass the next verification, and missing or
        # deleted models would go unnoticed.
        self.catalog = catalog
        await self._sync()

    def _apply_catalog(self, element: Element, catalog: Catalog) -> bool:
        """Apply an entry; return False, and set ``failure``, when that is impossible."""
        try:
            catalog.apply(element)
        except (Corrupted, UnknownApplyVersion) as error:
            self.failure = str(error)
            log.error("the catalogue has stopped", reason=self.failure)
            return False
        return True

    async def _sync(self) -> list[ReplicatedModel]:
        """Switch models that were replaced, remove those that no longer exist, add new ones and return them."""
        # May be called again after an error: each step is complete before it is recorded.
        self.incoming.update(self.catalog)
        for model in list(self.models.values()):
            living = self.catalog.get(model.name)
            if living is not None and living.keys == model.keys:
                model.resumes |= model.halted == BEING_LOADED  # a failover has lost the replacement
                continue
            by = self.incoming.models.get(living.keys.incarnation) if living is not None else None
            if by is not None:
                await self._switch(model, by)
                continue
            model.ready = False
            model.failure = f"the model {model.name} was deleted"
            del self.models[model.name]
            self._unfollow(model)
            self._callbacks.on_model_removed(model)
        for model in self.incoming.abandoned(self.catalog):
            del self.incoming.models[model.incarnation]
            self._unfollow(model)
        for model in self.models.values():
            coming = self.catalog.coming.get(model.name)
            model.coming = None if coming is None else self.incoming.models.get(coming.keys.incarnation)
        new = [living for living in self.catalog if living.keys.name not in self.models]
        for living in new:
            await kernel_compiler.wait_until_loaded(living.config)
        added = [self._add_model(living) for living in new]
        self.models_offset, self._models_checksum = self.catalog.offset, self.catalog.checksum
        return added

    async def _switch(self, model: ReplicatedModel, by: ReplicatedModel) -> None:
        """Serve another incarnation of a model from now on, or as soon as it is loaded.

        Both logs end with the same entry, which was there before the model was replaced: so both are read to their
        ends. Requests whose entries are in the old log get their outcome; the others are sent again.
        """
        connection = self._connection
        for one in (model, by):
            if one.ready and connection is not None and not self.incoming.is_loading(one):
                await self._loader.replay(connection, one)
        if not self.incoming.is_loaded(by):  # nothing is answered from a state that was replaced
            model.ready, model.halted = False, BEING_LOADED
            return
        before = CatalogModel(model.keys, model.live.config)
        self._unfollow(model)
        await model.become(by)
        del self.incoming.models[by.incarnation]
        self._by_key[model.keys.log] = model
        self._callbacks.on_model_replaced(model, before)
        log.info("serving another incarnation of a model", model=model.name, offset=str(model.offset))

    def _unfollow(self, model: ReplicatedModel) -> None:
        self._by_key.pop(model.keys.log, None)
        self.incoming.drop(model)

    def _is_switch_due(self, by: ReplicatedModel) -> bool:
        living = self.catalog.get(by.name)
        return self.incoming.is_loaded(by) and living is not None and living.keys == by.keys

    def _make_incoming(self, coming: Coming, origin: str) -> ReplicatedModel:
        config = coming.config or ModelConfig()
        return ReplicatedModel(coming.keys, config, self._params.slice_events, self._limits, origin)

    def _on_incoming_loaded(self, model: ReplicatedModel) -> None:
        self._by_key[model.keys.log] = model
        self._callbacks.on_incoming_loaded(model)

    def _add_model(self, living: CatalogModel) -> ReplicatedModel:
        model = ReplicatedModel(living.keys, living.config, self._params.slice_events, self._limits, living.origin)
        self.models[model.name] = self._by_key[model.keys.log] = model
        self._callbacks.on_model_added(model)
        return model

    # verify

    async def _return(self, connection: StoreConnection) -> None:
        """Verify that all logs continue from our positions; reload models whose log does not."""
        seconds = self._store.params.reply_seconds
        stream.check_primary(await connection.call(*stream.ROLE, seconds=seconds))  # before anything is dropped
        if not await self.continues_catalog(connection, seconds):
            log.error(
                "the catalogue does not continue from our offset; reading it again", offset=str(self.catalog.offset)
            )
            await self._read_catalog(connection)
        for model in list({**self._by_key, **{one.keys.log: one for one in self.models.values()}}.values()):
            if model.failure is not None or self.incoming.is_loading(model):
                continue
            trusted = model.ready or model.halted is not None
            if trusted and await self._continues_log(connection, model):
                continue
            if trusted:
                log.error(
                    "the log does not continue from the last applied entry; dropping the state and reloading",
                    model=model.name,
                    offset=str(model.offset),
                )
            await self._reload(connection, model)

    async def _continues_log(self, connection: StoreConnection, model: ReplicatedModel) -> bool:
        position, seconds = model.position, self._store.params.reply_seconds
        return await stream.holds_over(connection, model.keys.log, position.offset, position.checksum, seconds)

    async def _is_archived(self, connection: StoreConnection, model: ReplicatedModel) -> bool:
        """Return whether the last applied entry of a model was moved from the log to history, ready for replay."""
        with store_errors():
            text = await connection.call(
                "GET", stream.trimmed_key(model.keys.log), seconds=self._store.params.reply_seconds
            )
        trim = Trim.parse(text)
        return trim != stream.UNTRIMMED and trim.covers(model.offset)

    async def _reload(self, connection: StoreConnection, model: ReplicatedModel) -> None:
        """Drop a model's state and load it again; set ``failure`` when that is impossible."""
        model.ready = False
        model.halted, model.resumes = None, False  # they belong to the dropped state
        try:
            await self._loader.load(connection, model)
        except CannotStart as error:
            model.failure = str(error)
            log.error("a model cannot be loaded", model=model.name, reason=model.failure)
        except ArtifactsUnavailable as error:
            model.failure = str(error)
            log.error("a model cannot be loaded yet", model=model.name, reason=model.failure)
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._try_again, model, model.failure)

    def _try_again(self, model: ReplicatedModel, trouble: str) -> None:
        if model.failure == trouble and self.models.get(model.name) is model:
            model.failure = None
            self.verify_soon()

    # follow

    async def _follow(self) -> None:
        pause = FIRST_PAUSE
        while self.failure is None:
            connection = None
            try:
                connection = self._connection = await self._store.open_connection("follow")
                await self._return(connection)
                if self.cut_off is not None:
                    log.info("following the log again")
                self.cut_off = None
                pause = FIRST_PAUSE
                self._pace = ReadPacer(self._params.read_bytes)  # a large reply may have ended the last connection
                while self.failure is None:
                    await self._read_once(connection)
            except (StoreUnavailable, ConnectionLost, hiredis.ReplyError) as error:
                if self.cut_off is None:
                    log.warning("cut off from the log", reason=str(error))
                self.cut_off = str(error)
            finally:
                if connection is not None:
                    connection.close()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _read_once(self, connection: StoreConnection) -> None:
        """Wait for entries of any stream, at most BLOCK_SECONDS, and apply them."""
        # An error has interrupted a change of the catalog, or what replaces a model was not loaded at once.
        if self.models_offset != self.catalog.offset or any(map(self._is_switch_due, self.incoming.models.values())):
            await self._add_models(connection)
        for halted in [model for model in self.models.values() if model.resumes and model.failure is None]:
            try:
                await self._loader.replay(connection, halted)
            except (CannotStart, ArtifactsUnavailable):
                await self._reload(connection, halted)
        followed = [model for model in self._by_key.values() if model.failure is None and model.halted is None]
        seconds = BLOCK_SECONDS + self._store.params.reply_seconds
        # One blocking read over the catalog and all logs.
        words: list[str | bytes | int] = ["XREAD", "COUNT", self._pace.count, "BLOCK", int(BLOCK_SECONDS * 1000)]
        words += ["STREAMS", CATALOG_KEY]
        words += [model.log_key for model in followed]
        words.append(self.catalog.offset.entry)
        words += [model.offset.entry for model in followed]
        keys = [stream.trimmed_key(model.log_key) for model in followed] or [stream.trimmed_key(CATALOG_KEY)]
        # This replica may have been suspended until entries that it had not read were trimmed, or its server may have
        # become a replica. The store reports neither to a reader, so each read also asks for the trims and the role.
        reply, trims, role = await connection.call_all(tuple(words), ("MGET", *keys), stream.ROLE, seconds=seconds)
        stream.check_primary(role)
        if reply:
            await asyncio.sleep(0)  # send pending commands first: the store works on them while we apply
        reply = reply or ()
        left = []
        for one, text in zip(followed, trims, strict=False):
            if self._is_left(one, text):
                left.append(one)
                await self._reload(connection, one)
        size = sum(entry_size(fields) for _, elements in reply for _, fields in elements)
        self._pace.on_reply(max((len(elements) for _, elements in reply), default=0), size)
        for key, elements in reply:
            for entry_id, fields in elements:
                if key == CATALOG_KEY:
                    self._apply_catalog((entry_id, fields), self.catalog)
                    await self._add_models(connection)
                    continue
                model = self._by_key.get(key)
                if model is None or model.failure is not None or model.halted is not None or model in left:
                    break
                if Offset.of_entry(entry_id)[:2] <= model.offset[:2]:  # a switch has read this log to its end
                    break
                await self._loader.apply(model, (entry_id, fields))

    async def _add_models(self, connection: StoreConnection) -> None:
        for added in await self._sync():
            if added.incarnation == self.catalog.offset.entry:
                added.ready = True  # its log is new
            else:  # it existed while we were behind
                await self._reload(connection, added)

    def _is_left(self, model: ReplicatedModel, text: bytes | None) -> bool:
        """Record how far a log is trimmed; return whether entries that the model has not read were trimmed."""
        try:
            model.trim = Trim.parse(text)
        except Corrupted as error:
            model.ready = False
            model.failure = str(error)
            log.error("a model has stopped", model=model.name, reason=model.failure)
            return False
        if not model.trim.is_past(model.offset):
            return False
        log.error(
            "the log is trimmed past the last applied entry; dropping the state and reloading",
            model=model.name,
            offset=str(model.offset),
            trimmed=model.trim.last.entry,
        )
        return True

"""Loaded versions: the versions that a replica holds in memory to serve them.

The active version, and one that is about to be activated, are always loaded. Other versions are loaded on request,
and the least recently used ones are evicted to stay within the bounds. A version that is evicted while a request uses
it stays in memory until the request ends.

A model that reads the activation of a version that is not loaded **halts** before it: it is not ready and answers
nothing. It continues when the version is loaded. If loading fails, it continues as well, to check whether another
version is active by now, but still answers nothing. At the end of the log it retries until it succeeds. So an answer
never comes from another version than the one that is active at the offset in the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from abound.artifacts.artifact_store import ArtifactStore
from abound.log.events import PrepareVersionEvent
from abound.state.replicated_model import ReplicatedModel, VersionInfo, VersionNotLoaded
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.store.lease import ACTIVATION, read_payloads
from abound.tasks import cancel_and_wait, wait_for_event
from abound.versions import versions as versions
from abound.versions.card import is_id
from abound.versions.versions import LoadedVersion
from abound_core.errors import (
    AboundError,
    ArtifactsUnavailable,
    Corrupted,
    MemoryLimitExceeded,
    StoreUnavailable,
    UnknownVersion,
)

log = structlog.get_logger(__name__)

POLL_SECONDS = 1.0
RETRY_SECONDS = 2.0
DELETED_SECONDS = 5.0  # interval of the check whether loaded versions were deleted

UNKNOWN_SECONDS = 1.0  # time for which a missing version is not looked up again

MAX_UNKNOWN = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingParams:
    """Bounds of the versions that a replica serves.

    Attributes
    ----------
    loaded : int
        Most versions in memory, of all models, besides the active ones.
    loaded_bytes : int
        Most bytes of versions in memory, including the active ones.
    threads : int
        Threads that rank by versions, so that the event loop stays free.
    """

    loaded: int = 8
    loaded_bytes: int = 8 * 2**30
    threads: int = 2

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0")


class LoadedVersions:
    """The loaded versions of all models of a replica. ``ReplicatedModel.versions`` says which each model has."""

    def __init__(
        self,
        store: Store,
        artifacts: ArtifactStore | None,
        models: Mapping[str, ReplicatedModel],
        params: ServingParams,
    ) -> None:
        self._store = store
        self._models = models
        self._artifacts = artifacts
        self._tasks: dict[str, asyncio.Task[None]] = {}  # at most one for each model
        self._poll_due = asyncio.Event()
        self._params = params
        self._one_at_a_time = asyncio.Lock()
        self._loaded: dict[tuple[str, str], LoadedVersion] = {}  # the most recently used one last
        self._loading: dict[tuple[str, str], asyncio.Task[LoadedVersion]] = {}
        self._unknown: dict[tuple[str, str], float] = {}
        self._wanted: dict[str, set[str]] = {}
        self._failed: dict[str, tuple[str, float]] = {}
        self._checked_for_deleted = 0.0

    def on_model_added(self, model: ReplicatedModel) -> None:
        model.versions = {}  # from now on it serves only with its active version loaded

    def on_model_removed(self, model: ReplicatedModel) -> None:
        self._wanted.pop(model.incarnation, None)
        self._failed.pop(model.incarnation, None)
        for version in list(model.versions or ()):
            self._unload(model, version)

    def on_model_replaced(self, model: ReplicatedModel, before: ModelKeys) -> None:
        """Keep the active version loaded: the other incarnation has the same versions, or fewer."""
        self._wanted.pop(before.incarnation, None)
        self._failed.pop(before.incarnation, None)
        kept, serving = model.versions or {}, model.live.serving.version
        loaded = {version: self._loaded.pop((before.incarnation, version), None) for version in kept}
        model.versions = {}
        if (active := loaded.get(serving)) is not None:
            model.versions[serving] = kept[serving]
            self._loaded[(model.incarnation, serving)] = active
        if model.ready:
            try:
                model.check_serving()
            except VersionNotLoaded as missing:
                model.ready = False
                self.on_halt(model, missing)

    async def stop(self) -> None:
        await cancel_and_wait(*self._tasks.values(), *self._loading.values())

    async def run(self) -> None:
        """Follow the activations that are announced in the payloads of leases, before they are in the log."""
        while True:
            await wait_for_event(self._poll_due, POLL_SECONDS)
            self._poll_due.clear()
            with contextlib.suppress(StoreUnavailable):
                await self._poll()

    def poll_soon(self) -> None:
        self._poll_due.set()

    async def wait_loaded(self) -> None:
        if self._loading:
            await asyncio.wait(self._loading.values())

    async def get(self, model: ReplicatedModel, version: str) -> LoadedVersion:
        """Return a version to rank by; load it first if necessary.

        Raises UnknownVersion, MemoryLimitExceeded if it is larger than the bounds allow, or the error of its loading.
        """
        found = self.get_loaded(model, version)
        if found is not None:
            return found
        place = (model.incarnation, version)
        loop = asyncio.get_running_loop()
        if not is_id(version) or self._unknown.get(place, 0.0) > loop.time():
            raise _unknown(model, version)
        try:
            return await self._load(model, version)
        except UnknownVersion:
            if len(self._unknown) >= MAX_UNKNOWN:
                self._unknown.clear()
            self._unknown[place] = loop.time() + UNKNOWN_SECONDS
            raise

    def get_loaded(self, model: ReplicatedModel, version: str) -> LoadedVersion | None:
        """Return a version if it is loaded, and mark it as the most recently used."""
        place = (model.incarnation, version)
        found = self._loaded.pop(place, None)
        if found is not None:
            self._loaded[place] = found
        return found

    def on_halt(self, model: ReplicatedModel, missing: VersionNotLoaded) -> None:
        reason, _ = self._failed.get(model.incarnation, (str(missing), 0.0))
        model.halted = reason if model.lacks_version else str(missing)
        self._want(model, missing.version)
        self._start(model, self._resume_later(model, missing))

    # internals

    async def _poll(self) -> None:
        models = [model for model in self._models.values() if model.failure is None]
        found = await read_payloads(self._store, [one.keys for one in models], ACTIVATION, PrepareVersionEvent)
        for model, event in zip(models, found, strict=True):
            if model.halted is None and model.ready:
                self._on_announcement(model, event)
        self._unload_until_fits(0)
        now = asyncio.get_running_loop().time()
        if now - self._checked_for_deleted >= DELETED_SECONDS:
            self._checked_for_deleted = now
            with contextlib.suppress(ArtifactsUnavailable):
                await self._unload_deleted()

    def _on_announcement(self, model: ReplicatedModel, event: PrepareVersionEvent | None) -> None:
        self._wanted[model.incarnation] = set() if event is None else {event.version}
        if event is None or event.version in (model.versions or {}) or model.name in self._tasks:
            return
        _, failed = self._failed.get(model.incarnation, ("", -RETRY_SECONDS))
        if asyncio.get_running_loop().time() - failed >= RETRY_SECONDS:
            self._start(model, self._prepare(model, event))

    def _start(self, model: ReplicatedModel, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as the task of a model; cancel the one before."""
        before = self._tasks.pop(model.name, None)
        if before is not None:
            before.cancel()
        task = self._tasks[model.name] = asyncio.create_task(work, name=f"loading a version of {model.name}")
        task.add_done_callback(lambda done: self._ended(model.name, done))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if not task.cancelled() and task.exception() is not None:
            log.error("preparing an activation failed", model=name, exc_info=task.exception())

    async def _unload_deleted(self) -> None:
        artifacts = self._artifacts
        for model in [*self._models.values()]:
            loose = [name for name in model.versions or () if not self._is_needed(model, name)]
            if artifacts is None or not artifacts.id or not loose:
                continue
            there = set(await versions.ids(artifacts, model.keys))
            for name in loose:
                if name not in there and not self._is_needed(model, name):
                    self._unload(model, name)

    async def _prepare(self, model: ReplicatedModel, event: PrepareVersionEvent) -> None:
        try:
            await self._load(model, event.version, event.digest)
        except Exception as error:
            self._failed[model.incarnation] = (str(error), asyncio.get_running_loop().time())
            log.warning(
                "cannot load a version to activate",
                model=model.name,
                version=event.version,
                reason=str(error),
                exc_info=not isinstance(error, AboundError),
            )

    async def _resume_later(self, model: ReplicatedModel, missing: VersionNotLoaded) -> None:
        """Load the active version, or pause if that fails; then resume the model."""
        try:
            await self._load(model, missing.version, missing.digest)
        except Exception as error:  # whatever it is, the model must not stay halted
            if model.halted is None:
                return  # it is being reloaded
            why = str(error) or repr(error)
            reason = f"the version {missing.version} is active from {missing.at} on and cannot be loaded: {why}"
            if model.halted != reason:
                unexpected = not isinstance(error, AboundError)
                log.warning("a model is halted", model=model.name, reason=reason, exc_info=unexpected)
            self._failed[model.incarnation] = (reason, asyncio.get_running_loop().time())
            model.halted, model.lacks_version = reason, True
            await asyncio.sleep(RETRY_SECONDS)
        if model.halted is not None and self._models.get(model.name) is model:
            model.resumes = True

    async def _load(self, model: ReplicatedModel, version: str, digest: str | None = None) -> LoadedVersion:
        """Load a version, once for all callers. ``digest``: of its activation, which skips the bounds."""
        place = (model.incarnation, version)
        loading = self._loading.get(place)
        if loading is None:
            loading = asyncio.create_task(self._load_now(model, version, digest))
            self._loading[place] = loading
            loading.add_done_callback(lambda task: self._loading_ended(place, task))
        loaded = await asyncio.shield(loading)
        if digest is not None and loaded.card.digest != digest:
            raise Corrupted(f"the version {version} does not have the digest of its activation")
        return loaded

    def _loading_ended(self, place: tuple[str, str], task: asyncio.Task[LoadedVersion]) -> None:
        del self._loading[place]
        if not task.cancelled():
            task.exception()  # mark it as retrieved: callers have received it, and there may be none left

    async def _load_now(self, model: ReplicatedModel, version: str, digest: str | None) -> LoadedVersion:
        artifacts = self._artifacts
        if artifacts is None:
            raise ArtifactsUnavailable("there is no artifact store to load versions from: set ABOUND_ARTIFACTS_URL")
        async with self._one_at_a_time if digest is None else contextlib.nullcontext():
            if not artifacts.id:
                await artifacts.join(self._store)
            if digest is None:
                card = await versions.card_of(artifacts, model.keys, version)
                self._refuse_larger(model, card.n_bytes)
                self._unload_until_fits(card.n_bytes, 1)
            loaded = await versions.load(artifacts, model.keys, version, digest)
        if model.versions is None or self._models.get(model.name) is not model:
            raise _unknown(model, version)
        model.versions[version] = VersionInfo(loaded.card.digest, loaded.card.n_bytes)
        self._loaded[(model.incarnation, version)] = loaded
        self._unload_until_fits(0)
        log.info("loaded a version", model=model.name, version=version, bytes=loaded.card.n_bytes)
        return loaded

    def _refuse_larger(self, model: ReplicatedModel, n_bytes: int) -> None:
        """Raise MemoryLimitExceeded when a version does not fit into the bounds besides the required versions."""
        kept = sum(
            loaded.n_bytes
            for one in self._models.values()
            for version, loaded in (one.versions or {}).items()
            if self._is_needed(one, version)
        )
        if kept + n_bytes > self._params.loaded_bytes:
            raise MemoryLimitExceeded(
                f"the version has {n_bytes} bytes, and {self._params.loaded_bytes - kept} are left besides the active "
                "versions; raise ABOUND_SERVING_LOADED_BYTES"
            )
        bound = model.live.config.max_memory
        if bound is not None and model.live.n_bytes + model.n_loaded_bytes + n_bytes > bound:
            raise MemoryLimitExceeded(
                f"the version has {n_bytes} bytes, and its model's memory is bounded to {bound} (max_memory)"
            )

    def _unload_until_fits(self, n_bytes: int, n: int = 0) -> None:
        """Unload the least recently used versions until ``n_bytes`` and ``n`` more fit."""
        by_incarnation = {model.incarnation: model for model in self._models.values()}
        total = n_bytes + sum(model.n_loaded_bytes for model in by_incarnation.values())
        loose = [
            place
            for place in self._loaded
            if place[0] in by_incarnation and not self._is_needed(by_incarnation[place[0]], place[1])
        ]
        n += len(loose)
        for incarnation, version in loose:
            if total <= self._params.loaded_bytes and n <= self._params.loaded:
                return
            total -= self._unload(by_incarnation[incarnation], version)
            n -= 1

    def _is_needed(self, model: ReplicatedModel, version: str) -> bool:
        return version == model.live.serving.version or version in self._wanted.get(model.incarnation, ())

    def _want(self, model: ReplicatedModel, version: str) -> None:
        self._wanted.setdefault(model.incarnation, set()).add(version)

    def _unload(self, model: ReplicatedModel, version: str) -> int:
        self._loaded.pop((model.incarnation, version), None)
        info = (model.versions or {}).pop(version, None)
        return info.n_bytes if info is not None else 0


def _unknown(model: ReplicatedModel, version: str) -> UnknownVersion:
    return UnknownVersion(f"the model {model.name} has no version {version[:64]!r}")

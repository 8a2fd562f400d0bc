"""The ways to rank: by the index, by a version, or by both; versions rank in threads (``service/replica/rankers.py``).

The pool: a few threads for what would hold up the event loop, and a bound on what waits for them.

What waits when a thread comes free is done by it together: many small calls cost little more than one. Nobody waits
for others to come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Generic, NamedTuple, TypeVar

from abound.core.errors import InvalidInstance, NotReady, Overloaded
from abound.core.model.active_version import BLEND, LIVE, Serving
from abound.service.api.schemas.hot import ClassifyRequest
from abound.service.metrics import Timer
from abound.service.model.replicated_model import ModelReplica
from abound.service.replica.loaded_versions import ServingParams, Shelf
from abound.service.versions.ranking import Asked, Labels, Way, listed, rank_all

KINDS = ("version", BLEND)


class Ways:
    """What ``version=`` of a request picks from.

    Attributes
    ----------
    timers : dict of Timer by kind
        Seconds of ranking, one a turn of a thread: by versions, and where there was a blend among them.
    """

    def __init__(self, shelf: Shelf, params: ServingParams) -> None:
        self._shelf = shelf
        self._pool: Pool[Asked, Labels] = Pool(self._ranked, params.threads, params.waiting)
        self.timers = {kind: Timer() for kind in KINDS}

    def close(self) -> None:
        """Rank no more."""
        self._pool.close()

    async def of(self, model: ModelReplica, request: ClassifyRequest) -> Way | None:
        """By what to rank; None: by the index.

        Does not wait where the request leaves it to what is active, or asks for a blend with it: the way is that of
        the model's present offset.

        Raises
        ------
        UnknownVersion
            The model has no such version.
        InvalidInstance
            Reasons are asked for (field ``explain``) of a version that is named, or ``min_probability`` of any, and
            there are none.
        NoRoom, Damaged, UnknownApplyVersion, ArtifactsUnavailable, StoreUnavailable
            It cannot be loaded.
        """
        version = request.version
        serving = model.live.serving
        if version == LIVE or (serving.is_live and version in (None, BLEND)):
            return None
        if request.explain and version is not None:
            raise InvalidInstance(
                "explain tells what features did for a score of the index: ask for the version live. The scores of "
                "other versions are no sums over features",
                "explain",
            )
        if request.min_probability is not None:
            raise InvalidInstance(
                "min_probability is of the index alone: ask for the version live. The scores of other versions, and of "
                "a blend, are no probabilities",
                "min_probability",
            )
        if version is None or version == BLEND:
            return self._active(model, serving, version == BLEND)
        return Way(await self._shelf.get(model, version))

    def is_still(self, model: ModelReplica, request: ClassifyRequest, serving: Serving) -> bool:
        """Whether what was active when a way was found still is, as far as the request leaves it to that."""
        return request.version not in (None, BLEND) or model.live.serving is serving

    def ask(self, model: ModelReplica, way: Way, vector: bytes, request: ClassifyRequest) -> Asked:
        """One instance, with what is of the model's present state."""
        live = None
        if way.weights is not None:
            live = listed(model.live, vector, request.k, request.include, request.exclude)
        return Asked(way, vector, request.k, request.include, request.exclude, request.threshold, model.offset, live)

    async def rank(self, asked: Sequence[Asked], patient: bool = False) -> list[Labels]:
        """The labels for each; ``patient``: wait for a thread however long it takes. Overloaded."""
        return await self._pool.run(asked, patient)

    def _ranked(self, asked: Sequence[Asked]) -> list[Labels]:
        """In a thread."""
        began = perf_counter()
        labels = rank_all(asked)
        kind = KINDS[any(one.way.weights is not None for one in asked)]
        self.timers[kind].note(perf_counter() - began)
        return labels

    def _active(self, model: ModelReplica, serving: Serving, blended: bool) -> Way:
        loaded = self._shelf.loaded(model, serving.version)
        if loaded is None:
            raise NotReady(f"the version {serving.version} of {model.name} is being loaded")
        return Way(loaded, serving.weights if blended else None)


T = TypeVar("T")
R = TypeVar("R")

MOST_TOGETHER = 256
"""Items of several calls that are done together; one call may have more."""


class _Call(NamedTuple, Generic[T, R]):
    items: Sequence[T]
    done: asyncio.Future[list[R]]


class Pool(Generic[T, R]):
    """Threads that all do one kind of work.

    Parameters
    ----------
    work : callable
        Given items, a result for each. Called in a thread.
    threads : int
    waiting : int
        Calls that may wait for a thread.
    """

    def __init__(self, work: Callable[[Sequence[T]], list[R]], threads: int, waiting: int) -> None:
        self._work = work
        self._executor = ThreadPoolExecutor(threads, "rank")
        self._threads = threads
        self._most = waiting
        self._waiting: deque[_Call[T, R]] = deque()
        self._busy: set[asyncio.Task[None]] = set()

    async def run(self, items: Sequence[T], patient: bool = False) -> list[R]:
        """The result for each item. ``patient``: wait however many wait already; for who has one call at a time.

        Overloaded when too many wait.
        """
        if not patient and len(self._waiting) >= self._most:
            raise Overloaded("too many requests wait to be ranked by a version; `version` live needs no waiting")
        call: _Call[T, R] = _Call(items, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        self._begin()
        return await call.done

    def close(self) -> None:
        """Take nothing more; what is being done is left to end."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        """Give what waits to the threads that are free."""
        while self._waiting and len(self._busy) < self._threads:
            together = [self._waiting.popleft()]
            size = len(together[0].items)
            while self._waiting and size + len(self._waiting[0].items) <= MOST_TOGETHER:
                together.append(self._waiting.popleft())
                size += len(together[-1].items)
            task = asyncio.create_task(self._do(together))
            self._busy.add(task)
            task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._busy.discard(task)
        self._begin()

    async def _do(self, together: list[_Call[T, R]]) -> None:
        """Do calls together; where that fails, each alone, so that none fails for another one."""
        together = [call for call in together if not call.done.done()]  # whoever was to be told may be gone
        if not together:
            return
        items = [item for call in together for item in call.items]
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._executor, self._work, items)
        except BaseException as error:
            if len(together) > 1 and isinstance(error, Exception):
                for call in together:
                    await self._do([call])
                return
            for call in together:
                if not call.done.done():
                    call.done.set_exception(error)
            return
        first = 0
        for call in together:
            if not call.done.done():
                call.done.set_result(results[first : first + len(call.items)])
            first += len(call.items)

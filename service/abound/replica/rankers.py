"""Rankers: choose between the index and a version, and rank by versions in threads.

A small thread pool keeps long rankings off the event loop and bounds the number of waiting calls. A free thread takes
all waiting calls at once, since many small calls cost little more than one. No call waits for others to arrive.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Generic, NamedTuple, TypeVar

from abound.metrics import DurationCounter
from abound.replica.loaded_versions import LoadedVersions, ServingParams
from abound.state.replicated_model import ReplicatedModel
from abound.versions.ranking import Labels, RankingRequest, rank_all
from abound.versions.versions import LoadedVersion
from abound_core.errors import InvalidInstance, NotReady, Overloaded
from abound_core.model.active_version import LIVE, ServingState

MAX_WAITING = 128  # requests that wait for a thread; those behind them would time out, so they get 503 at once


class Rankers:
    def __init__(self, loaded_versions: LoadedVersions, params: ServingParams) -> None:
        self._loaded_versions = loaded_versions
        self._pool: BatchingPool[RankingRequest, Labels] = BatchingPool(self._ranked, params.threads, MAX_WAITING)
        self.timer = DurationCounter()  # seconds of each ranking batch in a thread

    def close(self) -> None:
        self._pool.close()

    async def choose(
        self,
        model: ReplicatedModel,
        version: str | None,
        explain: bool = False,
        min_probability: float | None = None,
    ) -> LoadedVersion | None:
        """Return the version to rank by for the fields of a request; None: the index.

        Does not wait if ``version`` leaves the choice to the active version (None). The version is then that of the
        model's current offset. Raises UnknownVersion, or InvalidInstance if the request asks for reasons
        (``explain``) of a named version or for ``min_probability`` of any.
        """
        serving = model.live.serving
        if version == LIVE or (serving.is_live and version is None):
            return None
        if explain and version is not None:
            raise InvalidInstance(
                "explain is available for the index only: ask for the version live. Scores of other versions are not "
                "sums over features",
                "explain",
            )
        if min_probability is not None:
            raise InvalidInstance(
                "min_probability is available for the index only: ask for the version live. Scores of other versions "
                "are not probabilities",
                "min_probability",
            )
        if version is not None:
            return await self._loaded_versions.get(model, version)
        loaded = self._loaded_versions.get_loaded(model, serving.version)
        if loaded is None:
            raise NotReady(f"the version {serving.version} of {model.name} is being loaded")
        return loaded

    def is_current(self, model: ReplicatedModel, version: str | None, serving: ServingState) -> bool:
        """Return whether the version of a request is still the same; True if the request names one."""
        return version is not None or model.live.serving is serving

    async def rank(self, asked: Sequence[RankingRequest], patient: bool = False) -> list[Labels]:
        return await self._pool.run(asked, patient)

    def _ranked(self, asked: Sequence[RankingRequest]) -> list[Labels]:
        began = perf_counter()
        labels = rank_all(asked)
        self.timer.observe(perf_counter() - began)
        return labels


T = TypeVar("T")
R = TypeVar("R")

MAX_BATCH = 256  # most items of several calls in one batch; a single call may have more


class _Call(NamedTuple, Generic[T, R]):
    items: Sequence[T]
    done: asyncio.Future[list[R]]


class BatchingPool(Generic[T, R]):
    """Threads that all do one kind of work: ``work`` returns one result for each item, in a thread.

    At most ``waiting`` calls wait for a thread.
    """

    def __init__(self, work: Callable[[Sequence[T]], list[R]], threads: int, waiting: int) -> None:
        self._work = work
        self._executor = ThreadPoolExecutor(threads, "rank")
        self._threads = threads
        self._most = waiting
        self._waiting: deque[_Call[T, R]] = deque()
        self._busy: set[asyncio.Task[None]] = set()

    async def run(self, items: Sequence[T], patient: bool = False) -> list[R]:
        """Return the result of each item. Raise Overloaded when too many calls wait.

        A ``patient`` call waits even if the queue is full; for callers that make one call at a time.
        """
        if not patient and len(self._waiting) >= self._most:
            raise Overloaded("too many requests wait to be ranked by a version; `version` live does not wait")
        call: _Call[T, R] = _Call(items, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        self._begin()
        return await call.done

    def close(self) -> None:
        """Stop accepting calls. Running work continues to its end."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        while self._waiting and len(self._busy) < self._threads:
            together = [self._waiting.popleft()]
            size = len(together[0].items)
            while self._waiting and size + len(self._waiting[0].items) <= MAX_BATCH:
                together.append(self._waiting.popleft())
                size += len(together[-1].items)
            task = asyncio.create_task(self._do(together))
            self._busy.add(task)
            task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._busy.discard(task)
        self._begin()

    async def _do(self, together: list[_Call[T, R]]) -> None:
        """Run calls as one batch; if it fails, each alone, so that none fails because of another."""
        together = [call for call in together if not call.done.done()]  # callers may have been cancelled
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

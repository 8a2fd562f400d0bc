"""The processes of the product in a history: replicas and workers, started, killed, started again."""

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from abound.artifacts.artifact_store import ArtifactStore
from abound.history.history import HistoryParams
from abound.log.stream import LogParams
from abound.replica.replica import Replica, ReplicaParams
from abound.state.snapshots import SnapshotParams
from abound.store.client import Store, StoreParams
from abound.worker import Worker
from abound_core.errors import CannotStart
from tests.simulation.loop import Process, SimLoop
from tests.simulation.network import Network

URL = "redis://store"
QUICK = StoreParams(connect_seconds=0.5, reply_seconds=0.5, start_seconds=5.0)
LOG = LogParams(group_events=8, slice_events=2, wait_store_seconds=1.2, read_bytes=4096)
SNAPSHOTS = SnapshotParams(every_seconds=0.2, part_bytes=32_768)
HISTORY = HistoryParams(segment_bytes=1024)
AGAIN_SECONDS = 0.2


class Gone(Exception):
    """The connection to a replica ended without an answer. ``reached``: the request may have arrived."""

    def __init__(self, reached: bool) -> None:
        super().__init__("unknown" if reached else "not there")
        self.reached = reached


class Host:
    def __init__(self, loop: SimLoop, network: Network, name: str, artifacts_url: str | None = None) -> None:
        self.name = name
        self.artifacts_url = artifacts_url
        self.process: Process | None = None
        self.wanted = True
        self.ends: list[str] = []
        self._loop = loop
        self._network = network

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        if self.is_up or not self.wanted:
            return
        self._network.note("start", self.name)
        self.process = self._loop.process(self.name)
        self.process.at_end.append(self._ended)
        self.process.run(self._main(self.process), "main")

    async def _main(self, process: Process) -> None:
        try:
            await self.serve()
        except CannotStart as error:
            self.ends.append(str(error))
            self._network.note("cannot start", self.name, str(error))
        except Exception as error:
            self._loop.errors.append(f"{self.name} ended by itself: {type(error).__name__}: {error}")
            if self._network.trace is not None:
                self._network.trace += traceback.format_exception(error)
        process.kill()

    @property
    def artifacts(self) -> ArtifactStore | None:
        return ArtifactStore(self.artifacts_url) if self.artifacts_url is not None else None

    async def serve(self) -> None:
        """What its process does."""
        raise NotImplementedError

    def _ended(self) -> None:
        self._network.note("end", self.name)
        self._loop.world.call(self.start, after=AGAIN_SECONDS)

    def rest(self) -> None:
        self.wanted = False
        self.kill()

    def go_on(self) -> None:
        self.wanted = True
        self.start()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()


class ReplicaHost(Host):
    replica: Replica | None = None
    durability = "log"

    async def serve(self) -> None:
        self.replica = None
        self._stopping = asyncio.Event()
        replica = Replica(Store(URL, QUICK), ReplicaParams(log=LOG, durability=self.durability), self.artifacts)
        try:
            await replica.store.check()
            await replica.start()
        except CannotStart as error:
            if "ABOUND_DURABILITY" in str(error):  # as an operator does who must go on
                self.durability = "log"
            raise
        self.replica = replica
        await self._stopping.wait()
        replica.drain()
        await replica.stop()

    def stop(self) -> None:
        if self.is_up and self.process is not None and self.replica is not None:
            self.process.call(self._stopping.set)

    async def ask(self, work: Callable[[Replica], Coroutine[Any, Any, Any]]) -> Any:
        """Send a request and wait for its answer; Gone when there is none. For the world to call."""
        loop, network = self._loop, self._network
        await asyncio.sleep(network.latency())
        process, replica = self.process, self.replica
        if process is None or not process.alive or replica is None:
            raise Gone(reached=False)
        answer: asyncio.Future[Any] = loop.create_future()

        def gone() -> None:
            loop.world.call(lambda: answer.done() or answer.set_exception(Gone(reached=True)))

        def answered(task: asyncio.Task[Any]) -> None:
            if gone in process.at_end:
                process.at_end.remove(gone)
            if network.strikes("answer lost"):
                gone()
                return
            loop.world.call(tell, task, after=network.latency())

        def tell(task: asyncio.Task[Any]) -> None:
            if answer.done():
                task.cancelled() or task.exception()
            elif task.cancelled():
                answer.set_exception(Gone(reached=True))
            elif task.exception() is not None:
                answer.set_exception(task.exception())
            else:
                answer.set_result(task.result())

        process.at_end.append(gone)
        process.run(work(replica), "request").add_done_callback(answered, context=process.context)
        return await answer


class NoJobs:
    """A repository of no jobs, which the store in memory does not keep."""

    async def committed_prefixes(self) -> set[str]:
        return set()


class WorkerHost(Host):
    worker: Worker | None = None
    undo_seconds = 7 * 86_400.0

    async def serve(self) -> None:
        store = Store(URL, QUICK)
        jobs: Any = NoJobs()
        self.worker = Worker(store, SNAPSHOTS, LOG, self.artifacts, HISTORY, jobs=jobs, undo_seconds=self.undo_seconds)
        await store.check()
        await self.worker.run()
        await store.close()

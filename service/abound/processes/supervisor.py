"""The supervisor, the parent process of ``abound serve``.

It binds the port, starts all other processes and restarts them. It is small on purpose: it holds the port, the lock
of the data directory and the children, and does no work that could fail. When it ends in any way, the kernel ends all
its children, so that the port and the data directory are free again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from pathlib import Path

from pydantic import SecretStr

from abound.processes.child import Child, restart_delay
from abound.processes.embedded_store import EmbeddedStore
from abound.processes.kernel_cache import set_cache_dir
from abound.processes.lifetime import is_running, raise_open_files_limit
from abound.processes.memory import default_models_memory
from abound.processes.runtime_dir import prepare_runtime_dir, runtime_dir
from abound.processes.startup_page import StartupServer, StartupStatus, listen, url_of
from abound.settings import Settings, unknown_variables
from abound_core.errors import CannotStart, WrongSetting

REPLICA = "abound.api.server"
WORKER = "abound.worker"

METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # where prometheus-client keeps the values of several processes

WATCH_SECONDS = 0.1  # between two checks of the store's process

LOADING_SECONDS = 0.02

SPARE_SECONDS = 5.0  # beyond its own bound, before a child is killed

STEP = 0.1  # of progress, after which a stage is printed again


def serve(settings: Settings) -> int:
    """Run the service until it is stopped; return 0, 1 if it could not start or continue, 2 for a wrong setting."""
    teller = ConsoleLog(settings.log_format == "json")
    for sentence in unknown_variables(os.environ):
        teller.write(sentence, level="warning")
    raise_open_files_limit()
    try:
        set_cache_dir()
        may_have_keys = settings.redis_url is not None or EmbeddedStore(settings.data_dir).has_files()
        settings.check_exposure(may_have_keys)  # a replica checks whether there are keys
        with contextlib.closing(listen(settings.host, settings.port)) as listening:
            asyncio.run(Supervisor(settings, listening, teller).run())
    except CannotStart as error:
        teller.write(str(error), level="error")
        return 2 if isinstance(error, WrongSetting) else 1
    return 0


class ConsoleLog:
    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def write(self, sentence: str, level: str = "info") -> None:
        line = f"abound: {sentence}" if level == "info" else f"abound: {level}: {sentence}"
        if self._as_json:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            line = json.dumps({"timestamp": now, "level": level, "event": sentence})
        with contextlib.suppress(OSError):  # the terminal may be gone while the service goes on
            sys.stderr.write(f"{line}\n")  # in one call: other processes write there too
            sys.stderr.flush()


class Supervisor:
    def __init__(self, settings: Settings, listening: socket.socket, teller: ConsoleLog) -> None:
        self._settings = settings
        self._listening = listening
        self._console = teller
        self._url = url_of(listening)
        self._startup_server = StartupServer(listening, self.status)
        self._store: EmbeddedStore | None = None
        self._loading = 0.0
        self._replicas: list[Child] = []
        self._worker: Child | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._stop_at_once = False
        self._changed = asyncio.Event()
        self._reported = ("", 0.0)

    async def run(self) -> None:
        """Start, watch, and stop at a signal. Raises CannotStart, with everything stopped, if a part does not start."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_signal)
        loop.add_signal_handler(signal.SIGINT, self._on_signal)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # set by nohup, which is respected
            loop.add_signal_handler(signal.SIGHUP, self._on_signal)
        await self._startup_server.open()  # answers on the port until a replica does
        self._print(f"listening on {self._url}, process {os.getpid()}")
        runtime = runtime_dir(self._settings.data_dir)
        metrics = runtime / f"metrics-{os.getpid()}"
        try:
            store_url = await self._start_store()
            if not self._stopping.is_set():
                _prepare_metrics(runtime, metrics)
                self._start_children(self._environment(store_url, metrics))
                await self._watch()
        finally:
            await self._stop()
            shutil.rmtree(metrics, ignore_errors=True)
            with contextlib.suppress(OSError):
                runtime.rmdir()
        self._print("stopped")

    def status(self) -> StartupStatus:
        if self._stopping.is_set():
            return StartupStatus("stopping", 0.0)
        if not self._replicas:
            return StartupStatus("loading the store", self._loading)
        nearest = max(self._replicas, key=lambda child: (child.warm, child.progress))
        if nearest.ready:  # the connection is older than the ready replica
            return StartupStatus("a replica is ready and answers on a new connection", 1.0)
        return StartupStatus(nearest.stage, nearest.progress)

    async def _start_store(self) -> str:
        if self._settings.redis_url is not None:
            return self._settings.store_url()
        store = EmbeddedStore(self._settings.data_dir)
        store.lock()
        self._store = store
        store.launch()
        await self._until_loaded(store)
        self._in_background(self._supervise_store(store))
        return store.url

    async def _until_loaded(self, store: EmbeddedStore) -> None:
        """Wait until the store answers or the service stops; raise CannotStart if the store ends."""
        while (loaded := store.load_progress()) < 1.0 and not self._stopping.is_set():
            self._loading = loaded
            if not self._replicas:
                self._print_stage("loading the store", loaded)
            await asyncio.sleep(LOADING_SECONDS)

    async def _supervise_store(self, store: EmbeddedStore) -> None:
        """Restart the store whenever it ends; a full disk or a lack of memory may be temporary."""
        failures = 0
        while not self._stopping.is_set():
            if store.pid is not None:
                await asyncio.sleep(WATCH_SECONDS)
                continue
            try:
                store.load_progress()
            except CannotStart as error:
                self._print(f"{error}\n    Starting it again.", level="error")
            try:
                store.launch()
                await self._until_loaded(store)
                self._print("the store is back")
                failures = 0
            except CannotStart as error:
                failures += 1
                delay = restart_delay(failures)
                self._print(f"{error}\n    Trying again in {delay:g} s.", level="error")
                await asyncio.sleep(delay)

    def _environment(self, store_url: str, metrics: Path) -> dict[str, str]:
        """Return the environment of the children: that of this process, with the effective settings."""
        port = self._listening.getsockname()[1]
        effective = self._settings.model_copy(update={"redis_url": SecretStr(store_url), "port": port})
        if (artifacts := self._settings.artifacts_location()) is not None:
            effective = effective.model_copy(update={"artifacts_url": SecretStr(artifacts)})
        if effective.max_memory is None:  # replicas do not know which other processes run here
            bound = default_models_memory(effective.processes, worker=effective.worker, store=self._store is not None)
            effective = effective.model_copy(update={"max_memory": bound})
        return effective.child_environment() | {METRICS_VARIABLE: str(metrics)}

    def _start_children(self, environment: dict[str, str]) -> None:
        fd = self._listening.fileno()
        for i in range(self._settings.processes):
            self._replicas.append(self._child(f"replica {i + 1}", REPLICA, ["--fd", str(fd)], environment, [fd]))
        later = self._replicas[1:]
        if self._settings.worker:
            self._worker = self._child("worker", WORKER, [], environment, [])
            later = [*later, self._worker]
        self._in_background(self._replicas[0].run())
        self._starting = self._in_background(self._start_later(later))

    def _child(
        self, name: str, module: str, arguments: list[str], environment: dict[str, str], fds: list[int]
    ) -> Child:
        child = Child(
            name,
            module,
            arguments,
            environment,
            fds,
            changed=self._changed.set,
            say=lambda sentence: self._print(sentence, level="warning"),
            essential=module == REPLICA,
        )
        child.ended = lambda pid: _delete_gauges(Path(environment[METRICS_VARIABLE]), pid)
        return child

    async def _start_later(self, children: list[Child]) -> None:
        # The first replica compiles the kernels of the default model; the others find them compiled.
        await self._replicas[0].was_warm.wait()
        for child in children:
            self._in_background(child.run())

    async def _watch(self) -> None:
        """Print progress and watch the children until the stop."""
        printed = ""
        while not self._stopping.is_set():
            self._changed.clear()
            # Leave the port to the replicas while one accepts connections.
            if any(child.ready for child in self._replicas):
                self._startup_server.close()
            else:
                await self._startup_server.open()
                self._print_stage(*self.status()[:2])
            printed = self._print_ready(printed)
            await self._changed.wait()
            for task in [task for task in self._tasks if task.done()]:
                self._tasks.discard(task)
                task.result()  # raises the error that ended it

    def _print_ready(self, printed: str) -> str:
        """Print how many replicas are ready, as their ``/readyz`` says, if that changed; return the last news."""
        ready = sum(child.ready and not child.unready for child in self._replicas)
        reason = next((child.unready for child in self._replicas if child.ready and child.unready), "")
        if ready:
            news = f"ready on {self._url}{self._how_many(ready)}"
        elif reason or printed:
            news = "no replica is ready"
        else:
            return printed
        if news != printed and ready in (0, 1, len(self._replicas)):
            self._print(f"{news}: {reason}" if reason and not ready else news)
        return news

    def _how_many(self, ready: int) -> str:
        return f", {ready} of {len(self._replicas)} replicas" if len(self._replicas) > 1 else ""

    async def _stop(self) -> None:
        """Stop the replicas, which finish their requests, then the worker, then the store. The port answers 503."""
        self._stopping.set()
        if self._starting is not None:
            self._starting.cancel()
        bound = (
            0.0 if self._stop_at_once else self._settings.drain_seconds + self._settings.stop_seconds + SPARE_SECONDS
        )
        stopping = asyncio.gather(*(child.stop(bound) for child in self._replicas))
        while not stopping.done():
            if not any(child.ready for child in self._replicas):
                await self._startup_server.open()
            await asyncio.wait([stopping], timeout=WATCH_SECONDS)
        await stopping
        if self._worker is not None:
            await self._worker.stop(0.0 if self._stop_at_once else self._settings.stop_seconds + SPARE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._store is not None:
            await asyncio.to_thread(self._store.stop, 0.0 if self._stop_at_once else 30.0)
        self._startup_server.close()

    def _on_signal(self) -> None:
        self._changed.set()
        if not self._stopping.is_set():
            self._print("stopping; send the signal again to stop at once")
            self._stopping.set()
            return
        self._stop_at_once = True
        for child in [*self._replicas, *([self._worker] if self._worker else [])]:
            child.signal(signal.SIGKILL)
        if self._store is not None and self._store.process is not None:
            self._store.process.kill()  # acknowledged writes are on disk

    def _in_background(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._changed.set())
        self._tasks.add(task)
        return task

    def _print_stage(self, stage: str, progress: float) -> None:
        if stage != self._reported[0] or progress >= self._reported[1] + STEP:
            self._reported = (stage, progress)
            self._print(f"{stage}, {progress:.0%}" if progress else stage)

    def _print(self, sentence: str, level: str = "info") -> None:
        self._console.write(sentence, level)


def _prepare_metrics(runtime: Path, metrics: Path) -> None:
    """Create the directory for the metrics of all processes, and delete those of services that are gone."""
    prepare_runtime_dir(runtime)
    for left_over in runtime.glob("metrics-*"):
        pid = left_over.name.partition("-")[2]
        if left_over == metrics or not (pid.isdecimal() and is_running(int(pid))):
            shutil.rmtree(left_over, ignore_errors=True)
    metrics.mkdir(mode=0o700)


def _delete_gauges(metrics: Path, pid: int) -> None:
    """Delete the gauges of a process that has ended; its counters still count."""
    for gauge in metrics.glob(f"gauge_live*_{pid}.*"):
        gauge.unlink(missing_ok=True)

"""Loading of kernels: those of the default model before the replica is ready, other groups when a model needs them.

At the first start on a machine they are compiled. Requests, log entries and digests that need a group wait for it
(``wait_for_groups``), so that the event loop never compiles.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import structlog
from numba.core.caching import IndexDataCacheFile

from abound.processes import kernel_cache
from abound.processes.lifetime import dies_with_parent
from abound_core.config import ModelConfig
from abound_core.errors import CannotStart, NotReady
from abound_core.instances import vectorizer
from abound_core.model.live_model import DEFAULT_GROUPS, GROUPS, READING_GROUP, STATE_GROUP, groups_of, warmup

log = structlog.get_logger(__name__)

NICE = 10

PATIENCE_SECONDS = 45.0  # of a request that waits for kernels; clients give up after one minute

BACKGROUND_GROUPS = [group for group in GROUPS if group not in DEFAULT_GROUPS]

# a forked process has all modules loaded; no thread may run yet when it is started
_context = multiprocessing.get_context("fork")

coming: dict[str, Future[None]] = {}  # groups that this process loads, or has loaded, in the background


def load() -> None:
    """Compile or load the kernels that must be present before anything is served."""
    warmup(*DEFAULT_GROUPS)
    if READING_GROUP not in coming:
        warmup(READING_GROUP)


def load_all() -> None:
    """Compile the kernels of all groups and methods, and load those that all models use.

    If another process compiles them already, wait for it. Call this from the main thread, before any other thread is
    started. Raises CannotStart if the process that compiles a part of them failed.
    """
    if not kernel_cache.is_complete():
        with _compile_lock():
            other = _start(_compile_answering_and_methods)
            warmup("learning", STATE_GROUP, "sls", "reranked", "decided", "plain")
            other.join()
            if other.exitcode:
                raise CannotStart(
                    f"the process that compiles kernels ended with exit code {other.exitcode} (-9: it was killed, "
                    "mostly for lack of memory). Start again: the kernels compiled so far are kept"
                )
    load()


def load_first() -> None:
    """Load the kernels of the default model.

    If they are not compiled yet, compile them, and start compiling the rest in the background. Call this from the
    main thread, before any other thread is started.
    """
    if kernel_cache.is_complete():
        load()
        return
    _save_one_at_a_time()
    # One process for each group; they share numba's cache on disk.
    compiling = [_start(_compile, group) for group in DEFAULT_GROUPS]
    for process in compiling:
        process.join()
    warmup(*DEFAULT_GROUPS)
    # The replica gets ready, and reads instances in plain Python until that kernel is compiled, too.
    vectorizer.use_kernel = False
    _compile_rest()


async def wait_until_loaded(config: ModelConfig, timeout: float | None = None) -> None:  # noqa: ASYNC109
    """Wait for the kernels with which a model learns and answers."""
    await wait_for_groups(groups_of(config), timeout)


async def wait_for_groups(groups: Sequence[str], timeout: float | None = None) -> None:  # noqa: ASYNC109
    """Wait until groups of kernels are loaded; raise NotReady if they are missing after ``timeout`` seconds."""
    for group in groups:
        if group not in coming:
            _load_in_background([group])
    waiting = [asyncio.wrap_future(coming[group]) for group in groups if not coming[group].done()]
    if not waiting:
        return
    _, left = await asyncio.wait(waiting, timeout=timeout)
    if left:
        raise NotReady(
            "the kernels of this model are being compiled, at the first start only; try again in a minute", 5.0
        )


def _start(work: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = _context.Process(target=_run, args=(dies_with_parent(), work, *arguments), daemon=True)
    process.start()
    return process


def _run(arrange: Callable[[], None], work: Callable[..., None], *arguments: Any) -> None:
    arrange()
    work(*arguments)


def _compile(group: str) -> None:
    gc.disable()  # compiling makes millions of objects and few cycles; the process ends soon
    warmup(group)


def _compile_answering_and_methods() -> None:
    warmup("answering", READING_GROUP)
    _compile_methods()


def _compile_methods() -> None:
    from abound_core.methods.warmup import warmup as warmup_methods

    warmup_methods()


def _compile_rest() -> None:
    receiving, sending = _context.Pipe(duplex=False)
    _start(_compile_others, sending)
    sending.close()
    _load_in_background(BACKGROUND_GROUPS, receiving)  # each group once it is compiled


def _compile_others(sending: Connection) -> None:
    os.nice(NICE)  # the replica answers meanwhile
    with _compile_lock():
        for group in BACKGROUND_GROUPS:
            warmup(group)
            sending.send(group)
        sending.close()
        _compile_methods()


def _load_in_background(groups: list[str], compiled: Connection | None = None) -> None:
    coming.update({group: Future() for group in groups})
    threading.Thread(target=_load_groups, args=(groups, compiled), name="kernels", daemon=True).start()


def _load_groups(groups: list[str], compiled: Connection | None) -> None:
    """Load groups of kernels; with ``compiled``, each when the other process has compiled it, or has ended."""
    for group in groups:
        if compiled is not None:
            with contextlib.suppress(EOFError):
                compiled.recv()
        try:
            warmup(group)
        except Exception:
            log.exception("kernels cannot be loaded", group=group)
        vectorizer.use_kernel |= group == READING_GROUP
        coming[group].set_result(None)


@contextlib.contextmanager
def _compile_lock() -> Iterator[None]:
    """Hold the lock for compiling all groups, so that no kernel of a machine is compiled twice."""
    if kernel_cache.is_complete():
        yield
        return
    _save_one_at_a_time()
    with kernel_cache.lock("compiling"):
        yield
        kernel_cache.mark_complete()  # later starts load a group when it is needed


def _save_one_at_a_time() -> None:
    # Numba names a file by the index of the kernel's signatures, which it has read before. Two processes that save two
    # signatures of one kernel could therefore write to the same file.
    save = IndexDataCacheFile.save

    def locked(file: IndexDataCacheFile, key: object, data: object) -> None:
        with kernel_cache.lock("saving"):
            save(file, key, data)  # type: ignore[no-untyped-call]

    if save.__name__ != "locked":
        IndexDataCacheFile.save = locked  # type: ignore[method-assign]

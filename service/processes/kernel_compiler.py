"""Loading kernels: what the default model uses before the replica is ready, other groups when a model needs them.

At the first start on a machine they are compiled:

1. Two processes compile the kernels of ``abound.core.model.live_model.FIRST``, a group each, and share numba's cache on
disk.
2. The replica gets ready. A process of low priority compiles the other groups, one after the other, then the kernels
   of batch methods; a thread of the replica loads each group once it is compiled.

Requests and log entries that need a group wait for it (``loaded``), so that the event loop never compiles. Once all
kernels are compiled, the cache says so (``kernel_cache.is_complete``), and later starts load a group when it is needed.
Each process of a machine that compiles the other groups holds a lock meanwhile, so that no kernel is compiled twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import structlog
from numba.core.caching import IndexDataCacheFile

from abound.core.config import ModelConfig
from abound.core.errors import NotReady
from abound.core.model.live_model import FIRST, GROUPS, groups_of, warmup
from abound.service.processes import kernel_cache
from abound.service.processes.lifetime import dies_with_parent

log = structlog.get_logger(__name__)

NICE = 10

PATIENCE_SECONDS = 45.0
"""So long a request waits for kernels; clients give up after a minute."""

LATER = [group for group in GROUPS if group not in FIRST]

_context = multiprocessing.get_context("fork")
"""A forked process has all modules loaded. No thread may run yet when it is started."""

_coming: dict[str, Future[None]] = {}
"""The groups that this process has loaded in the background, or is loading."""


def load() -> None:
    """Compile or load the kernels that must be there before anything is served."""
    warmup(*FIRST)


def load_all() -> None:
    """Compile the kernels of all groups and methods, or wait until another process has, and load what all models use.

    Call it from the main thread, before there is any other.
    """
    if not kernel_cache.is_complete():
        with _compiling_alone():
            other = _start(_compile_answering_and_methods)
            warmup("learning", "sls")
            other.join()
    load()


def load_first() -> None:
    """Compile or load what the default model uses, and begin to compile the rest if it is not compiled yet.

    Call it from the main thread, before there is any other.
    """
    if kernel_cache.is_complete():
        load()
        return
    _save_one_at_a_time()
    other = _start(warmup, FIRST[1])
    warmup(FIRST[0])
    other.join()
    load()
    _compile_rest()


async def loaded(config: ModelConfig, timeout: float | None = None) -> None:  # noqa: ASYNC109
    """Wait until the kernels that a model uses are there; NotReady when they are not after ``timeout`` seconds."""
    for group in groups_of(config):
        if group not in _coming:
            _load_behind([group])
    coming = [asyncio.wrap_future(_coming[group]) for group in groups_of(config) if not _coming[group].done()]
    if not coming:
        return
    _, left = await asyncio.wait(coming, timeout=timeout)
    if left:
        raise NotReady("the kernels that this model needs are being compiled, at the first start only", 5.0)


def _start(work: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Do some work in another process, which ends with this one."""
    process = _context.Process(target=_run, args=(dies_with_parent(), work, *arguments), daemon=True)
    process.start()
    return process


def _run(arrange: Callable[[], None], work: Callable[..., None], *arguments: Any) -> None:
    arrange()
    work(*arguments)


def _compile_answering_and_methods() -> None:
    warmup("answering", "calibrated")
    _compile_methods()


def _compile_methods() -> None:
    from abound.core.methods.warmup import warmup as warmup_methods

    warmup_methods()


def _compile_rest() -> None:
    """Begin to compile the other groups in a process, and to load them in a thread of this one."""
    receiving, sending = _context.Pipe(duplex=False)
    _start(_compile_others, sending)
    sending.close()
    _load_behind(LATER, receiving)


def _compile_others(sending: Connection) -> None:
    os.nice(NICE)
    with _compiling_alone():
        for group in LATER:
            warmup(group)
            sending.send(group)
        sending.close()
        _compile_methods()


def _load_behind(groups: list[str], compiled: Connection | None = None) -> None:
    _coming.update({group: Future() for group in groups})
    threading.Thread(target=_load_groups, args=(groups, compiled), name="kernels", daemon=True).start()


def _load_groups(groups: list[str], compiled: Connection | None) -> None:
    """Load groups: with ``compiled``, each when the other process has compiled it, or has ended and never will."""
    for group in groups:
        if compiled is not None:
            with contextlib.suppress(EOFError):
                compiled.recv()
        try:
            warmup(group)
        except Exception:
            log.exception("kernels cannot be loaded", group=group)
        _coming[group].set_result(None)


@contextlib.contextmanager
def _compiling_alone() -> Iterator[None]:
    """Keep other processes from compiling all groups meanwhile, unless they are compiled already."""
    if kernel_cache.is_complete():
        yield
        return
    _save_one_at_a_time()
    with kernel_cache.lock("compiling"):
        yield
        kernel_cache.complete()


def _save_one_at_a_time() -> None:
    """Let no two processes save a compiled kernel at the same time.

    Numba names the file by the index of a kernel's signatures that it has read before: two processes that save two
    signatures of one kernel could write them to the same file.
    """
    save = IndexDataCacheFile.save

    def locked(file: IndexDataCacheFile, key: object, data: object) -> None:
        with kernel_cache.lock("saving"):
            save(file, key, data)  # type: ignore[no-untyped-call]

    if save.__name__ != "locked":
        IndexDataCacheFile.save = locked  # type: ignore[method-assign]

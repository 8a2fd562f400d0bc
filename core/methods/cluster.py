"""Pieces of work on the workers of a Dask cluster, also when some of these die.

1. The work travels once to each worker, with all that it refers to; a piece is a number or two. Kernels travel by name.
2. A worker that dies is Dask's business: others do its pieces again.
3. When the work is gone with all workers that had it, or the scheduler is, what is done is kept, and the rest is sent
   again as soon as there is a worker. Nobody waits for one longer than ``BACK_SECONDS``, and nothing is sent more than
   ``TRIES`` times: then it is ClusterUnavailable, and somebody may begin anew.
"""

from __future__ import annotations

import contextlib
import copyreg
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from numba.core.registry import CPUDispatcher

from core.errors import ClusterUnavailable

TRIES = 3
BACK_SECONDS = 30.0
LOOK_SECONDS = 1.0

Told = Callable[[int], None]


def done_there(
    client: Any, work: Callable[..., Any], pieces: Sequence[tuple[Any, ...]], told: Told | None = None
) -> list[Any]:
    """``work(*piece)`` for each piece, in the order of the pieces, by the workers of a cluster.

    Parameters
    ----------
    client : distributed.Client
    told : callable, optional
        Called with the number of the piece that is waited for, at least every second; what it raises ends the work.

    Raises
    ------
    ClusterUnavailable
        See above. Whatever ``work`` and ``told`` raise besides.
    """
    import cloudpickle  # of Dask; who has no cluster needs neither
    from distributed.scheduler import KilledWorker

    copyreg.pickle(CPUDispatcher, _named)
    packed = cloudpickle.dumps(work)
    found: list[Any] = []
    why = ""
    for _ in range(TRIES):
        try:
            _go_on(client, packed, pieces, found, told)
        except KilledWorker as error:
            raise ClusterUnavailable(f"workers of the cluster died over a piece of work: {error}") from None
        except _lost() as error:
            why = f"{type(error).__name__}: {error}"
            _wait_for_worker(client, why)
        else:
            return found
    raise ClusterUnavailable(f"the cluster lost its work {TRIES} times, the last time by {why}"[:1000])


def _lost() -> tuple[type[Exception], ...]:
    """What is raised where a worker, or the scheduler, is gone."""
    from distributed.client import FutureCancelledError

    return (FutureCancelledError, OSError, TimeoutError)


def _go_on(client: Any, packed: bytes, pieces: Sequence[tuple[Any, ...]], found: list[Any], told: Told | None) -> None:
    """Do what is not done yet; ``found`` grows."""
    shared = client.scatter([packed], broadcast=True, hash=False)[0]
    waiting = [client.submit(_apply, shared, *piece, pure=False) for piece in pieces[len(found) :]]
    try:
        for one in waiting:
            found.append(_result(client, one, (lambda: told(len(found))) if told is not None else lambda: None))
    finally:
        with contextlib.suppress(*_lost()):
            client.cancel([*waiting, shared])


def _result(client: Any, one: Any, tell: Callable[[], None]) -> Any:
    """What came of a piece; TimeoutError when there has been no worker for a while."""
    alone = 0
    while True:
        tell()
        try:
            return one.result(timeout=LOOK_SECONDS)
        except TimeoutError:
            if one.status == "error":  # the work's own
                raise
        alone = 0 if client.nthreads() else alone + 1
        if alone * LOOK_SECONDS > BACK_SECONDS:
            raise TimeoutError(f"there was no worker for {BACK_SECONDS:.0f} s")


def _wait_for_worker(client: Any, why: str) -> None:
    try:
        client.wait_for_workers(1, timeout=BACK_SECONDS)
    except (OSError, TimeoutError, RuntimeError) as error:
        raise ClusterUnavailable(f"the cluster is gone ({why}), and did not come back: {error}"[:1000]) from None


def _apply(packed: bytes, *piece: Any) -> Any:
    return unpacked(packed)(*piece)


@lru_cache(maxsize=1)
def unpacked(packed: bytes) -> Callable[..., Any]:
    """The work, made here, once: arrays as Dask gives them are read-only, and kernels would be compiled for these."""
    import cloudpickle

    work: Callable[..., Any] = cloudpickle.loads(packed)
    return work


def _named(kernel: Any) -> tuple[Callable[[str, str], Any], tuple[str, str]]:
    """A kernel travels by its name; sent as what it is, it would be compiled anew by each worker."""
    return _kernel, (kernel.py_func.__module__, kernel.py_func.__qualname__)


def _kernel(module: str, name: str) -> Any:
    return getattr(import_module(module), name)

"""Independent pieces of one piece of work, on threads of this process or on the machines of a cluster.

Which of both, and how many, says ``joblib.parallel_config``. With its Dask backend the work travels once to each
worker, with all that it refers to, and each piece is a number or two; so it must not change what it shares, nor ask
for anything that is only here. The outcome is the same to the bit, wherever a piece is done.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeVar

from joblib import Parallel, delayed
from joblib.parallel import get_active_backend
from numba.core.registry import CPUDispatcher

T = TypeVar("T")

DASK = "DaskDistributedBackend"


def spread(
    work: Callable[..., T], pieces: Sequence[tuple[Any, ...]], told: Callable[[int], None] | None = None
) -> list[T]:
    """``work(*piece)`` for each piece, in the order of the pieces.

    Parameters
    ----------
    work : callable
        Shares nothing that it changes.
    pieces : sequence of tuples
    told : callable, optional
        Called with a number from 0 on, before each piece or when it is done; what it raises ends the work.
    """
    backend, _ = get_active_backend()
    if type(backend).__name__ == DASK:
        return _on_cluster(backend.client, work, pieces, told)

    def one(number: int, piece: tuple[Any, ...]) -> T:
        if told is not None:
            told(number)
        return work(*piece)

    found: list[T] = Parallel(require="sharedmem")(delayed(one)(i, piece) for i, piece in enumerate(pieces))
    return found


def _on_cluster(
    client: Any, work: Callable[..., T], pieces: Sequence[tuple[Any, ...]], told: Callable[[int], None] | None
) -> list[T]:
    """By the client that joblib's backend has, since of joblib's own tasks each would carry the work."""
    import cloudpickle  # of Dask; who has no cluster needs neither

    copyreg.pickle(CPUDispatcher, _named)
    shared = client.scatter([cloudpickle.dumps(work)], broadcast=True, hash=False)[0]
    waiting = [client.submit(_apply, shared, *piece, pure=False) for piece in pieces]
    found = []
    try:
        for number, one in enumerate(waiting):
            found.append(one.result())
            if told is not None:
                told(number)
    finally:
        client.cancel(waiting)
    return found


def _apply(packed: bytes, *piece: Any) -> Any:
    return _unpacked(packed)(*piece)


@lru_cache(maxsize=1)
def _unpacked(packed: bytes) -> Callable[..., Any]:
    """The work, made here, once: arrays as Dask gives them are read-only, and kernels would be compiled for these."""
    import cloudpickle

    work: Callable[..., Any] = cloudpickle.loads(packed)
    return work


def _named(kernel: Any) -> tuple[Callable[[str, str], Any], tuple[str, str]]:
    """A kernel travels by its name; sent as what it is, it would be compiled anew by each worker."""
    return _kernel, (kernel.py_func.__module__, kernel.py_func.__qualname__)


def _kernel(module: str, name: str) -> Any:
    return getattr(import_module(module), name)

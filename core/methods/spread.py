"""Independent pieces of one piece of work, on threads of this process or on the machines of a cluster.

Which of both, and how many, says ``joblib.parallel_config``. With its Dask backend the work travels (``cluster.py``),
so it must not change what it shares, nor ask for anything that is only here. The outcome is the same to the bit,
wherever a piece is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from joblib import Parallel, delayed
from joblib.parallel import get_active_backend

from core.methods.cluster import done_there

T = TypeVar("T")

DASK = "DaskDistributedBackend"


def is_elsewhere() -> bool:
    """Whether work is done on a cluster."""
    return type(get_active_backend()[0]).__name__ == DASK


def threads() -> int:
    """On how many threads of this process pieces are done at the same time; one, unless told."""
    backend, n = get_active_backend(require="sharedmem")
    return int(backend.effective_n_jobs(n))


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
        Called with a number from 0 on, before each piece, or while it is waited for; what it raises ends the work.

    Raises
    ------
    ClusterUnavailable
        And what ``work`` and ``told`` raise.
    """
    if is_elsewhere():
        # By the client that joblib's backend has, since of joblib's own tasks each would carry the work.
        return done_there(get_active_backend()[0].client, work, pieces, told)

    def one(number: int, piece: tuple[Any, ...]) -> T:
        if told is not None:
            told(number)
        return work(*piece)

    found: list[T] = Parallel(require="sharedmem")(delayed(one)(i, piece) for i, piece in enumerate(pieces))
    return found

"""Parallel work in independent pieces on an executor, by default threads of this process.

The caller sets the executor with ``executed_by``; methods call ``spread``. An executor without shared memory
gets a copy of the work, so the work must not change shared data. The results are bit-equal on every executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from joblib import Parallel, delayed

T = TypeVar("T")
OnPiece = Callable[[int], None]


class Executor(Protocol):
    """An executor of pieces of work."""

    @property
    def shares_memory(self) -> bool:
        """Whether the pieces run in this process."""

    def map(self, work: Callable[..., T], pieces: Sequence[tuple[Any, ...]], on_piece: OnPiece | None) -> list[T]:
        """Return ``work(*piece)`` for each piece, in the order of the pieces; see ``spread``."""


class Threads:
    """Threads of this process, as many as ``joblib.parallel_config`` sets; one by default."""

    shares_memory = True

    def map(self, work: Callable[..., T], pieces: Sequence[tuple[Any, ...]], on_piece: OnPiece | None) -> list[T]:
        def one(number: int, piece: tuple[Any, ...]) -> T:
            if on_piece is not None:
                on_piece(number)
            return work(*piece)

        found: list[T] = Parallel(require="sharedmem")(delayed(one)(i, piece) for i, piece in enumerate(pieces))
        return found


_executor: ContextVar[Executor] = ContextVar("executor", default=Threads())  # noqa: B039  has no state


@contextmanager
def executed_by(executor: Executor) -> Iterator[None]:
    """Run the pieces of every ``spread`` inside on ``executor``."""
    token = _executor.set(executor)
    try:
        yield
    finally:
        _executor.reset(token)


def is_distributed() -> bool:
    return not _executor.get().shares_memory


def spread(work: Callable[..., T], pieces: Sequence[tuple[Any, ...]], on_piece: OnPiece | None = None) -> list[T]:
    """Return ``work(*piece)`` for each piece, in the order of the pieces; ``work`` must not change shared data.

    ``on_piece`` is called with a number from 0 on, before each piece or while waiting for it; an exception in it ends
    the work. Raises ClusterUnavailable if the Dask cluster is not there, or was lost.
    """
    return _executor.get().map(work, pieces, on_piece)

"""Where batch work runs: on threads of this process, or on a Dask cluster (``ABOUND_CLUSTER=dask://host:port``).

A cluster may lose workers: finished results are kept, and only the other pieces run again.
"""

from __future__ import annotations

import contextlib
import copyreg
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeVar

from numba.core.registry import CPUDispatcher
from threadpoolctl import threadpool_limits

from abound_core.errors import CannotStart, ClusterUnavailable
from abound_core.methods.training.parallel import OnPiece, executed_by

T = TypeVar("T")

SCHEME = "dask://"
CONNECT_SECONDS = 30.0
MAX_ATTEMPTS = 3
BACK_SECONDS = 30.0
LOOK_SECONDS = 1.0


@contextlib.contextmanager
def parallel(cluster: str | None, threads: int) -> Iterator[None]:
    """Run batch work on the threads or the cluster while the context lasts, each piece on one thread.

    A seed therefore gives the same model to the bit, whatever the number of threads. The workers of a cluster must
    run the same release. Raises CannotStart if the address is malformed or Dask is not installed, and
    ClusterUnavailable if the scheduler cannot be reached or has no worker.
    """
    from joblib import parallel_config

    with contextlib.ExitStack() as stack:
        stack.enter_context(threadpool_limits(1))  # with more threads BLAS sums in another order
        stack.enter_context(parallel_config("threading", n_jobs=1 if cluster is not None else threads))
        if cluster is not None:
            if not cluster.startswith(SCHEME):
                raise CannotStart(f"ABOUND_CLUSTER must begin with {SCHEME}, not {cluster[:64]!r}")
            try:
                from distributed import Client
            except ImportError:
                raise CannotStart("ABOUND_CLUSTER needs Dask: pip install 'abound[cluster]'") from None
            try:
                address = f"tcp://{cluster.removeprefix(SCHEME)}"
                client = stack.enter_context(Client(address, timeout=CONNECT_SECONDS))  # type: ignore[no-untyped-call]
                client.wait_for_workers(1, timeout=CONNECT_SECONDS)
            except (OSError, TimeoutError) as error:
                raise ClusterUnavailable(f"the cluster {cluster} cannot be used: {error}") from error
            stack.enter_context(executed_by(DaskExecutor(client)))
        yield


class DaskExecutor:
    shares_memory = False

    def __init__(self, client: Any) -> None:
        self._client = client

    def map(self, work: Callable[..., T], pieces: Sequence[tuple[Any, ...]], on_piece: OnPiece | None) -> list[T]:
        """Return ``work(*piece)`` for each piece, in the order of the pieces.

        ``on_piece`` is called with the number of finished pieces at least every ``LOOK_SECONDS``. Raises
        ClusterUnavailable if the cluster lost the work; errors of ``work`` and ``on_piece`` are raised as they are.
        """
        import cloudpickle
        from distributed.scheduler import KilledWorker

        copyreg.pickle(CPUDispatcher, _named)
        packed = cloudpickle.dumps(work)
        found: list[T] = []
        why = ""
        for _ in range(MAX_ATTEMPTS):
            try:
                self._run_remaining(packed, pieces, found, on_piece)
            except KilledWorker as error:
                raise ClusterUnavailable(
                    f"workers of the cluster died while they ran a piece of work: {error}"
                ) from None
            except _lost() as error:
                # All workers that had the work are gone, or the scheduler is: send the other pieces once there is a
                # worker again.
                why = f"{type(error).__name__}: {error}"
                self._wait_for_worker(why)
            else:
                return found
        raise ClusterUnavailable(f"the cluster lost its work {MAX_ATTEMPTS} times, last because of {why}"[:1000])

    def _run_remaining(
        self, packed: bytes, pieces: Sequence[tuple[Any, ...]], found: list[T], on_piece: OnPiece | None
    ) -> None:
        """Run the pieces that have no result yet, and append their results to ``found``."""
        client = self._client
        # The work goes once to each worker, with all its data; a piece is only a number or two. When a worker dies,
        # Dask runs its pieces on another one.
        shared = client.scatter([packed], broadcast=True, hash=False)[0]
        waiting = [client.submit(_apply, shared, *piece, pure=False) for piece in pieces[len(found) :]]
        try:
            for one in waiting:
                found.append(self._result(one, (lambda: on_piece(len(found))) if on_piece else lambda: None))
        finally:
            with contextlib.suppress(*_lost()):
                client.cancel([*waiting, shared])

    def _result(self, one: Any, tell: Callable[[], None]) -> Any:
        """Return the result of a piece; raise TimeoutError if the cluster has no worker for a while."""
        alone = 0
        while True:
            tell()
            try:
                return one.result(timeout=LOOK_SECONDS)
            except (TimeoutError, UnboundLocalError):
                # distributed raises UnboundLocalError if a future is cancelled while its result is fetched.
                if one.status == "error":  # raised by the work itself
                    raise
            alone = 0 if self._client.nthreads() else alone + 1
            if alone * LOOK_SECONDS > BACK_SECONDS:
                raise TimeoutError(f"there was no worker for {BACK_SECONDS:.0f} s")

    def _wait_for_worker(self, why: str) -> None:
        try:
            self._client.wait_for_workers(1, timeout=BACK_SECONDS)
        except (OSError, TimeoutError, RuntimeError) as error:
            raise ClusterUnavailable(f"the cluster was lost ({why}) and is not back: {error}"[:1000]) from None


def _lost() -> tuple[type[Exception], ...]:
    from distributed.client import FutureCancelledError

    return (FutureCancelledError, OSError, TimeoutError)


def _apply(packed: bytes, *piece: Any) -> Any:
    return unpack(packed)(*piece)


@lru_cache(maxsize=1)
def unpack(packed: bytes) -> Callable[..., Any]:
    """Unpack the work on a worker, once per process.

    Dask passes read-only arrays, for which kernels would be compiled again. Unpacked here, they are writable.
    """
    import cloudpickle

    work: Callable[..., Any] = cloudpickle.loads(packed)
    return work


def _named(kernel: Any) -> tuple[Callable[[str, str], Any], tuple[str, str]]:
    """Pickle a kernel by its name. Otherwise each worker would compile it again."""
    return _kernel, (kernel.py_func.__module__, kernel.py_func.__qualname__)


def _kernel(module: str, name: str) -> Any:
    return getattr(import_module(module), name)

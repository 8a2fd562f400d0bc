"""Where batch work is done: on threads of this process, or on a Dask cluster (``ABOUND_CLUSTER=dask://host:port``)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from threadpoolctl import threadpool_limits

from core.errors import CannotStart, ClusterUnavailable

SCHEME = "dask://"
CONNECT_SECONDS = 30.0


def as_if(cluster: str | None, threads: int) -> contextlib.AbstractContextManager[Any]:
    """As ``parallel``, to reckon with what it would take: nothing is connected, and what is done elsewhere is not."""
    from joblib import parallel_config

    context: contextlib.AbstractContextManager[Any]
    context = parallel_config("threading", n_jobs=1 if cluster is not None else threads)
    return context


@contextlib.contextmanager
def parallel(cluster: str | None, threads: int) -> Iterator[None]:
    """As long as the context lasts, joblib's work is done there, and each of its pieces on one thread.

    So a seed gives one model, to the bit, whatever the number of threads.

    Parameters
    ----------
    cluster : str or None
        ``dask://host:port`` of a scheduler, whose workers run this very release. None: ``threads`` threads here.

    Raises
    ------
    CannotStart
        It is no such address, or Dask is not installed.
    ClusterUnavailable
        The scheduler cannot be reached, or has no worker.
    """
    from joblib import parallel_config

    with contextlib.ExitStack() as stack:
        stack.enter_context(threadpool_limits(1))  # BLAS adds up in another order where it has more
        if cluster is None:
            stack.enter_context(parallel_config("threading", n_jobs=threads))
        else:
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
            stack.enter_context(parallel_config("dask"))
        yield

"""The queue of jobs: RQ, reduced to carrying ids from the door to a worker.

RQ would run what a payload names: a function, callbacks, an URL to call. Nothing of that is taken from the store
here. A :class:`Ticket` is rebuilt from its id alone, whatever its hash in the store says, and does one thing: run the
job of that id (``horse.py``), whose record (``job.py``) decides whether there is anything to run. Payloads are JSON;
nothing is ever unpickled.
"""

from __future__ import annotations

import json
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq.executions import Execution
from rq.job import Job
from rq.queue import Queue
from rq.serializers import JSONSerializer
from rq.utils import as_text

from core.errors import Malformed
from service.job import is_id
from service.store import reaching

FUNCTION = "service.horse.run"
FOR_EVER = -1

_TAKEN = (b"created_at", b"enqueued_at", b"started_at", b"ended_at", b"origin", b"status", b"worker_name")
"""What is read of a ticket's hash: times, and words that RQ itself checks."""


class Ticket(Job):
    """An id on its way to a worker.

    Attributes
    ----------
    holder : str
        The process that runs it, as the record shall name it.
    """

    holder: str = ""

    def restore(self, raw_data: dict[bytes, bytes]) -> None:
        """Take times and state from the store, and nothing that names something to do."""
        plain = {name: value for name, value in raw_data.items() if name in _TAKEN}
        super().restore(plain | {b"data": _payload(self.id)})
        self.timeout, self.result_ttl, self.failure_ttl = FOR_EVER, 0, 0

    def delete(self, pipeline: Any = None, remove_from_queue: bool = True, delete_dependents: bool = False) -> None:
        """Take it away by the names of its keys.

        RQ reads its executions for that and raises when one has expired meanwhile, as after a machine that slept, or
        was put together anew from one heartbeat.
        """
        connection: Any = self.connection if pipeline is None else pipeline
        if remove_from_queue:
            Queue(self.origin, connection=self.connection, serializer=JSONSerializer).remove(self, pipeline=pipeline)
        registry = self.execution_registry
        names: Any = self.connection.zrange(registry.key, 0, -1)
        for name in names:
            Execution(as_text(name), self.id, self.connection).delete(self, connection)
        connection.delete(self.key, self.dependents_key, self.dependencies_key, registry.key)

    def perform(self) -> None:
        """Run the job of this id."""
        from service.horse import run

        run(_checked(self.id), self.holder)


def connect(url: str, seconds: float) -> redis.Redis:
    """A blocking client for RQ, which sends nothing twice by itself."""
    return redis.Redis.from_url(
        url,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        socket_connect_timeout=seconds,
        socket_timeout=seconds,
    )


def queue_of(kind: str, client: redis.Redis) -> Queue:
    """The queue of the workers of a kind."""
    return Queue(f"abound-{kind}", connection=client, serializer=JSONSerializer, job_class=Ticket)


def enqueue(client: redis.Redis, kind: str, job_id: str, first: bool = False) -> None:
    """Put a job's id into its queue, behind all others or before them; StoreUnavailable."""
    with reaching():
        queue_of(kind, client).enqueue_call(
            FUNCTION,
            args=(_checked(job_id),),
            job_id=job_id,
            timeout=FOR_EVER,
            result_ttl=0,
            failure_ttl=0,
            description=f"job {job_id}",
            at_front=first,
        )


def waiting(client: redis.Redis, kind: str) -> set[str]:
    """The ids in a queue; StoreUnavailable."""
    with reaching():
        return set(queue_of(kind, client).get_job_ids())


def _checked(job_id: str) -> str:
    if not is_id(job_id):
        raise Malformed(f"not the id of a job: {job_id[:64]!r}")
    return job_id


def _payload(job_id: str) -> bytes:
    return json.dumps((FUNCTION, None, [job_id], {})).encode()

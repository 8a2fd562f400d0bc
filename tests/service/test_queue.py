"""Tickets: what is left of them in the store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from rq.executions import Execution
from rq.utils import now

from service.job import new_id
from service.queue import Ticket, connect, enqueue, queue_of, waiting
from service.settings import Settings
from service.stable import Stable
from tests.service.valkey import Server


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    client = connect(server.url, 5)
    yield client
    client.close()


def left(client: redis.Redis) -> list[bytes]:
    """Keys that are about one ticket, and what registries hold of any."""
    named = [key for part in ("job", "execution", "executions") for key in client.keys(f"rq:{part}:*")]
    return named + [member for key in client.keys("rq:wip:*") for member in client.zrange(key, 0, -1)]


def begun(stable: Stable, client: redis.Redis) -> Ticket:
    """A ticket that was just taken from the queue, and its execution."""
    enqueue(client, "fit", new_id())
    [ticket] = stable.queues[0].get_jobs()
    assert isinstance(ticket, Ticket)
    stable.queues[0].pop_job_id()
    stable.prepare_execution(ticket)
    assert left(client)
    return ticket


@pytest.mark.parametrize("what", ["is there", "has expired", "was made anew by a heartbeat"])
def test_nothing_is_left_of_a_ticket_whose_execution(server: Server, client: redis.Redis, what: str) -> None:
    stable = Stable("fit", Settings(redis_url=server.url))
    stable.register_birth()
    for end in ("failed", "succeeded"):
        ticket = begun(stable, client)
        earlier = Execution("0" * 32, ticket.id, client)  # of a stable that was killed
        with client.pipeline() as pipe:
            ticket.execution_registry.add(earlier, 60, pipe)
            ticket.started_job_registry.add_execution(earlier, pipe, 60, xx=False)
            pipe.execute()
        if what != "is there":
            assert stable.execution is not None
            client.delete(stable.execution.key)
        if what.startswith("was made"):
            stable.maintain_heartbeats(ticket)
        if end == "failed":
            stable.handle_job_failure(ticket, stable.queues[0])
        else:
            ticket.started_at = ticket.ended_at = now()
            stable.handle_job_success(ticket, stable.queues[0], ticket.started_job_registry)
        assert left(client) == []


def test_a_ticket_that_waits_is_taken_out_of_its_queue(server: Server, client: redis.Redis) -> None:
    enqueue(client, "fit", new_id())
    [ticket] = queue_of("fit", client).get_jobs()
    ticket.delete()
    assert waiting(client, "fit") == set()
    assert left(client) == []

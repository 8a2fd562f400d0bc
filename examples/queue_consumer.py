"""A consumer of a queue that teaches what it takes from it: each message once, whenever it or the service is killed.

    python -m examples.queue_consumer redis://127.0.0.1:6379 routed --url http://127.0.0.1:8000 --model default

The service may also be named by ``ABOUND_URL``; its key is read from ``ABOUND_KEY``, as the list of processes shows
arguments to everybody.

The queue is a stream of Redis or Valkey with a consumer group; any queue that gives a message again until it is
acknowledged does as well. Each message carries a text and labels. The three rules:

1. The id of the message is the idempotency key, so a message that comes twice is learned once.
2. A message is acknowledged after the service has: its answer says that the event is durable.
3. What the service refuses for good (it has no label, say) goes to a list for people to look at, and is acknowledged.
   What it refuses for another reason, or does not answer, stays in the queue. Where that is a matter of this message
   and of what the model is just now (it has all the classes that it may have, say), the others go on meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import cast

import redis

from abound.client import Client, ClientError, Labelled, Model, Refused

GROUP, CONSUMER, REJECTED = "abound", "consumer-1", "rejected"
TOGETHER = 500
FOR_GOOD = (400, 413, 422)
"""What is wrong with a message itself. All else may be mended without it: a key, a model, memory, the service."""

NOT_NOW = (409,)
"""A message that the model does not take as it is now: it is tried again, and keeps up no other."""

AGAIN_SECONDS = 10.0
FIRST = b"0"

Message = tuple[bytes, dict[bytes, bytes]]


def consume(store: redis.Redis, queue: str, model: Model, *, idle_seconds: float | None = None) -> int:
    """Learn messages until nothing new came for ``idle_seconds``, None: for ever; how many were learned.

    Parameters
    ----------
    store : redis.Redis
        Holds the queue.
    queue : str
        Key of the stream.
    model : Model
    idle_seconds : float or None
    """
    prepare(store, queue)
    learned, since = 0, time.monotonic()
    behind: bytes | None = FIRST  # what this consumer took before it was killed comes first
    look: float | None = None  # when those that stayed are tried again
    while True:
        messages = taken(store, queue, behind)
        try:
            n_learned, left = teach(store, queue, model, messages)
        except ClientError as error:
            print(f"{error}; once more in a second", file=sys.stderr)
            time.sleep(1)
            behind, since = FIRST, time.monotonic()
            continue
        learned += n_learned
        if left:
            print(f"{left[0]}; {len(left)} such messages stay in the queue", file=sys.stderr)
            look = time.monotonic() + AGAIN_SECONDS
        if n_learned or (messages and behind is None):
            since = time.monotonic()
        if behind is not None:
            behind = messages[-1][0] if messages else None
        elif not messages and idle_seconds is not None and time.monotonic() - since > idle_seconds:
            return learned
        elif look is not None and time.monotonic() > look:  # only after a look at what is new
            behind, look = FIRST, None


def teach(store: redis.Redis, queue: str, model: Model, messages: list[Message]) -> tuple[int, list[Refused]]:
    """Learn messages, and acknowledge those that are learned or refused for good; the refusals of those that stay."""
    learned, left = 0, []
    for (number, message), answer in zip(messages, model.learn_many(instances(messages)), strict=True):
        if isinstance(answer, Refused):
            if answer.status in NOT_NOW:
                left.append(answer)
                continue
            if answer.status not in FOR_GOOD:
                raise answer
            fields = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in message.items()}
            store.rpush(f"{queue}:{REJECTED}", json.dumps(fields | {"id": number.decode(), "refused": str(answer)}))
        else:
            learned += 1
        store.xack(queue, GROUP, number)
    return learned, left


def instances(messages: list[Message]) -> Iterator[Labelled]:
    """Messages as the model takes them."""
    for number, message in messages:
        text = message.get(b"text", b"").decode(errors="replace")
        labels = [label.decode(errors="replace") for label in message.get(b"labels", b"").split(b",") if label]
        yield Labelled(text=text, labels=labels, key=number.decode(), source="queue")


def prepare(store: redis.Redis, queue: str) -> None:
    """Make the group of consumers unless it is there."""
    try:
        store.xgroup_create(queue, GROUP, id="0", mkstream=True)
    except redis.ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise


def taken(store: redis.Redis, queue: str, behind: bytes | None = None) -> list[Message]:
    """Messages that nobody has, waiting for some; or those that this consumer has already, ``behind`` one of them."""
    where, block = (">", 200) if behind is None else (behind.decode(), None)
    answer = store.xreadgroup(GROUP, CONSUMER, {queue: where}, count=TOGETHER, block=block)
    of_queues = cast("list[tuple[bytes, list[Message]]]", answer or [])
    return [one for _, messages in of_queues for one in messages]


def main(arguments: Sequence[str] | None = None) -> None:
    """Consume for ever, or until nothing new came for ``--idle-seconds``."""
    parser = argparse.ArgumentParser(description="Teach what comes from a queue.")
    parser.add_argument("store", help="URL of the Redis or Valkey that holds the queue")
    parser.add_argument("queue", help="key of its stream")
    parser.add_argument("--url", default=os.environ.get("ABOUND_URL", "http://127.0.0.1:8000"), help="of the service")
    parser.add_argument("--model", default="default")
    parser.add_argument("--idle-seconds", type=float, help="end when nothing new came for so long")
    given = parser.parse_args(arguments)
    with (
        Client(given.url, key=os.environ.get("ABOUND_KEY")) as client,
        redis.Redis.from_url(given.store) as store,
    ):
        consume(store, given.queue, Model(client, given.model), idle_seconds=given.idle_seconds)


if __name__ == "__main__":
    main()

"""Learn what comes on a Kafka topic: each message once, even if the consumer or the service is killed.

    python -m examples.kafka.consumer 127.0.0.1:9092 routed --url http://127.0.0.1:8000 --model tickets

A message is a JSON object with ``text`` and ``labels``. ``ABOUND_URL`` and ``ABOUND_KEY`` name the service and its key.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import msgspec
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from abound import Client, Model
from abound.client import ClientError, Labelled, Refused

TOGETHER = 500
PERMANENT = (400, 413, 422)
"""Statuses that say that the message itself is wrong. All else can be repaired: a key, a limit, the service."""


class Routed(msgspec.Struct):
    """The value of a message."""

    text: str
    labels: list[str]


def run(
    consumer: Consumer, producer: Producer, model: Model, *, source: str = "kafka", idle_seconds: float | None = None
) -> int:
    """Learn messages until none came for ``idle_seconds``, None: forever. Return how many were learned.

    Offsets are committed after the service has acknowledged the events. If it does not, the consumer goes back to the
    first uncommitted message and tries again.
    """
    learned, since = 0, time.monotonic()
    while idle_seconds is None or time.monotonic() - since < idle_seconds:
        messages = consumer.consume(TOGETHER, timeout=0.2)
        for one in messages:
            if (error := one.error()) is not None:
                raise KafkaException(error)
        if not messages:
            if not consumer.assignment():  # still joining the group
                since = time.monotonic()
            continue
        since = time.monotonic()
        try:
            learned += learn(producer, model, messages, source)
        except ClientError as error:
            print(f"{error}; once more in a second", file=sys.stderr)
            time.sleep(1)
            for place in places(messages, min):
                consumer.seek(place)
            continue
        offsets = [TopicPartition(one.topic, one.partition, one.offset + 1) for one in places(messages, max)]
        consumer.commit(offsets=offsets, asynchronous=False)
    return learned


def learn(producer: Producer, model: Model, messages: list[Message], source: str) -> int:
    """Learn messages. Those that are wrong go to the topic ``<topic>.rejected``, with the reason as a header.

    Raises ClientError where the service refused for another reason, or did not answer. Nothing is rejected then: the
    same messages come again.
    """
    instances, readable = [], []
    rejected: list[tuple[Message, str]] = []
    for message in messages:
        try:
            routed = msgspec.json.decode(message.value() or b"", type=Routed)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            rejected.append((message, str(error)))
            continue
        key = f"{source}-{message.topic()}-{message.partition()}-{message.offset()}"
        instances.append(Labelled(text=routed.text, labels=routed.labels, key=key, source=source))
        readable.append(message)
    learned = 0
    for message, answer in zip(readable, model.learn_many(instances), strict=True):
        if not isinstance(answer, Refused):
            learned += 1
        elif answer.status in PERMANENT:
            rejected.append((message, str(answer)))
        else:
            raise answer
    for message, reason in rejected:
        reject(producer, message, reason)
    if producer.flush(10.0):
        raise ClientError("the broker did not take the rejected messages")
    return learned


def reject(producer: Producer, message: Message, reason: str) -> None:
    """Queue a message for the topic of rejected ones."""
    headers: list[tuple[str, str | bytes | None]] = [
        ("reason", reason.encode()),
        ("offset", f"{message.partition()}-{message.offset()}".encode()),
    ]
    producer.produce(f"{message.topic()}.rejected", value=message.value(), key=message.key(), headers=headers)


def places(messages: list[Message], choose: Callable[[list[int]], int]) -> list[TopicPartition]:
    """Return the first or the last offset of each partition."""
    offsets: dict[tuple[str, int], list[int]] = {}
    for one in messages:
        offsets.setdefault((one.topic() or "", one.partition() or 0), []).append(one.offset() or 0)
    return [TopicPartition(topic, partition, choose(found)) for (topic, partition), found in offsets.items()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Consume forever, or until no message came for ``--idle-seconds``."""
    parser = argparse.ArgumentParser(description="Learn what comes on a Kafka topic.")
    parser.add_argument("brokers", help="bootstrap.servers, such as 127.0.0.1:9092")
    parser.add_argument("topic")
    parser.add_argument("--group", default="abound", help="consumer group")
    parser.add_argument("--url", help="of the service (default: ABOUND_URL)")
    parser.add_argument("--model", default="default")
    parser.add_argument("--source", default="kafka", help="of the events; choose another one if a topic is made again")
    parser.add_argument("--idle-seconds", type=float, help="end when no message came for so long")
    given = parser.parse_args(arguments)
    consumer = Consumer(
        {
            "bootstrap.servers": given.brokers,
            "group.id": given.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([given.topic])
        producer = Producer({"bootstrap.servers": given.brokers})
        with Client(given.url) as client:
            model = client.model(given.model)
            n = run(consumer, producer, model, source=given.source, idle_seconds=given.idle_seconds)
            print(f"{n} learned")
    finally:
        consumer.close()


if __name__ == "__main__":
    main()

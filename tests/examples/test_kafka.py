"""The Kafka consumer, against a service and the mock cluster of librdkafka, which speaks the protocol of Kafka."""

import json
import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from abound import Client
from examples.kafka import consumer as example
from tests.support.served import fresh_model


@pytest.fixture
def producer() -> Producer:
    return Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})


def brokers_of(producer: Producer) -> str:
    [broker] = producer.list_topics(timeout=10).brokers.values()
    return f"{broker.host}:{broker.port}"


def consumer_of(producer: Producer, topic: str) -> Consumer:
    settings = {"bootstrap.servers": brokers_of(producer), "group.id": "abound", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    partitions = producer.list_topics(topic, timeout=10).topics[topic].partitions
    # faster than to join the group
    consumer.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one in partitions])
    return consumer


def routed(i: int) -> bytes:
    return json.dumps({"text": f"word{i % 5}", "labels": [f"label{i % 5}"]}).encode()


def taken(consumer: Consumer, n: int) -> list[Message]:
    messages: list[Message] = []
    end = time.monotonic() + 30
    while len(messages) < n and time.monotonic() < end:
        messages += consumer.consume(n - len(messages), timeout=1.0)
    return messages


def test_each_message_is_learned_once(service, producer):
    name = fresh_model(service)
    for value in (*map(routed, range(700)), b'{"text": "no label", "labels": []}', b"not JSON"):
        producer.produce("routed", value, partition=0)
    assert producer.flush(10) == 0
    with Client(service.url) as client:
        model = client.model(name)
        # A consumer that is killed between the answer of the service and its commit.
        killed = consumer_of(producer, "routed")
        assert example.learn(producer, model, taken(killed, 300), "kafka") == 300
        killed.close()
        assert service.learned(name) == 300
        arguments = [brokers_of(producer), "routed", "--url", service.url, "--model", name, "--idle-seconds", "5"]
        example.main(arguments)
        assert service.learned(name) == 700
        assert [one.label for one in model.classify("word3", k=1).labels] == ["label3"]
    rejected = consumer_of(producer, "routed.rejected")
    wrong = {one.value(): dict(one.headers() or []) for one in taken(rejected, 2)}
    rejected.close()
    assert sorted(wrong) == [b"not JSON", b'{"text": "no label", "labels": []}']
    assert b"labels" in wrong[b'{"text": "no label", "labels": []}']["reason"]
    assert wrong[b"not JSON"]["offset"] == b"0-701"
    group = consumer_of(producer, "routed")
    assert group.committed([TopicPartition("routed", 0)], timeout=10)[0].offset == 702
    group.close()

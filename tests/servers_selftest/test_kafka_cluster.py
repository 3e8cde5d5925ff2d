"""The brokers under test are real: records survive restarts, leaders move, strangers are refused."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from servers.kafka_cluster import KafkaCluster
from servers.waiting import wait_until

pytestmark = pytest.mark.kafka


def produce(options: dict[str, Any], topic: str, values: list[bytes]) -> None:
    producer = KafkaProducer(**options)
    for value in values:
        producer.send(topic, value).get(30)
    producer.close()


def consume(options: dict[str, Any], topic: str, num_records: int) -> list[bytes]:
    consumer = KafkaConsumer(**options)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    found: list[bytes] = []

    def has_all() -> bool:
        for records in consumer.poll(200).values():
            found.extend(record.value for record in records)
        return len(found) >= num_records

    wait_until(has_all, limit_s=30, what=f"{num_records} records of {topic}")
    consumer.close()
    return found


def test_records_outlive_a_killed_broker(kafka_broker: KafkaCluster) -> None:
    options = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    topic = kafka_broker.create_topic()
    produce(options, topic, [b"one"])
    kafka_broker.brokers[0].kill()
    kafka_broker.brokers[0].start()
    produce(options, topic, [b"two"])
    assert consume(options, topic, 2) == [b"one", b"two"]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_the_tls_listener_takes_known_users(kafka_broker: KafkaCluster, mechanism: str) -> None:
    topic = kafka_broker.create_topic()
    options = kafka_broker.sasl_options(mechanism)
    produce(options, topic, [b"secret"])
    assert consume(options, topic, 1) == [b"secret"]


def test_a_partition_gets_another_leader_when_its_broker_dies(kafka_cluster: KafkaCluster) -> None:
    options = kafka_cluster.sasl_options()  # SCRAM over TLS, on each of the brokers
    topic = kafka_cluster.create_topic()
    produce(options, topic, [b"before"])
    first = kafka_cluster.leader(topic)
    first.kill()
    try:
        wait_until(lambda: kafka_cluster.leader(topic) is not first, limit_s=60, what="another leader")
        assert consume(options, topic, 1) == [b"before"]
    finally:
        first.start()

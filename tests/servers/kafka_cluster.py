"""Apache Kafka for tests: one or more real brokers in KRaft mode on loopback, without ZooKeeper or Docker.

Every broker has three listeners, PLAINTEXT, SASL over TLS (SCRAM-SHA-256, SCRAM-SHA-512, PLAIN and unsecured
OAUTHBEARER) and TLS for client certificates, and is its own controller, so any broker may be stopped, killed or paused.
"""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from kafka.errors import KafkaError
from servers import build
from servers.certificates import CertificateAuthority
from servers.kafka_classes import LOG_FLAG, QUICK_FLAGS, class_archive
from servers.processes import ServerProcess, free_port
from servers.toolchains import java_command
from servers.waiting import wait_until

USER = "alice"
PASSWORD = "alice-secret"
# For benchmarks: the optimising compiler and more memory, at the price of a slower start.
THROUGHPUT_FLAGS = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Where one broker listens."""

    node_id: int
    plaintext: int
    sasl: int
    tls: int
    controller: int


class KafkaCluster:
    """Brokers that form one cluster; `kafka_broker` is this with one of them."""

    def __init__(self, folder: Path, *, num_brokers: int, java_flags: Sequence[str] = QUICK_FLAGS) -> None:
        self.folder = folder
        self.ports = [_choose_ports(node_id) for node_id in range(1, num_brokers + 1)]
        authority = CertificateAuthority(folder / "certificates")
        server = authority.issue("kafka", user="kafka")
        self.ca_file = authority.certificate
        self.client_certificate = authority.issue("client", user=USER)
        self._keystore = folder / "certificates" / "kafka.pem"
        self._keystore.write_bytes(server.key.read_bytes() + server.certificate.read_bytes())
        jars = build.kafka()
        self._java = [
            str(java_command()),
            *java_flags,
            f"-XX:SharedArchiveFile={class_archive(jars)}",
            LOG_FLAG,
            "-cp",
            f"{jars}/*",
        ]
        self.brokers = [self._broker(ports) for ports in self.ports]

    @property
    def bootstrap_servers(self) -> list[str]:
        """Addresses of the PLAINTEXT listeners."""
        return [f"127.0.0.1:{ports.plaintext}" for ports in self.ports]

    @property
    def client_ports(self) -> list[int]:
        """All ports that clients use: what a node agent forwards for its pods."""
        return [port for ports in self.ports for port in (ports.plaintext, ports.sasl, ports.tls)]

    @property
    def tls_servers(self) -> list[str]:
        """Addresses of the listeners that want a certificate of the client."""
        return [f"127.0.0.1:{ports.tls}" for ports in self.ports]

    def sasl_options(self, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        """Keyword arguments that make a kafka-python client use the SASL over TLS listeners."""
        return {
            "bootstrap_servers": [f"127.0.0.1:{ports.sasl}" for ports in self.ports],
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(self.ca_file),
            "sasl_mechanism": mechanism,
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }

    def start(self) -> None:
        """Start all brokers and wait until each is in the cluster."""
        if not (self.folder / "kafka-1").exists():
            self._format_all()
        for broker in self.brokers:
            broker.start(wait=False)
        for broker in self.brokers:
            broker.wait_healthy()

    def stop(self) -> None:
        """Kill all brokers: their data is thrown away anyway."""
        for broker in self.brokers:
            broker.kill()

    def recover(self) -> None:
        """Undo what a test may have left: every broker runs."""
        for broker in self.brokers:
            broker.recover()

    def create_topic(
        self, prefix: str = "topic", *, num_partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic of a new name, replicated to all brokers, wait for its leaders; return the name."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        topic = NewTopic(
            name=name,
            num_partitions=num_partitions,
            replication_factor=len(self.brokers),
            topic_configs=dict(config or {}),
        )
        admin = self.admin()
        try:
            admin.create_topics([topic])
        finally:
            admin.close()
        wait_until(lambda: self._has_leaders(name, num_partitions), limit_s=30, what=f"leaders of {name}")
        return name

    def leader(self, topic: str, partition: int = 0) -> ServerProcess:
        """Return the broker that leads a partition now, waiting for one while there is none."""

        def leader_id() -> int:
            found = self._partitions(topic).get(partition)
            return max(0, found["leader_id"]) if found else 0

        return self.brokers[wait_until(leader_id, limit_s=30, what=f"a leader of {topic}-{partition}") - 1]

    def admin(self) -> KafkaAdminClient:
        """Return an admin client of the brokers that answer; the caller closes it."""
        answering = [broker.running and not broker.paused for broker in self.brokers]
        servers = [server for server, answers in zip(self.bootstrap_servers, answering, strict=True) if answers]
        return KafkaAdminClient(bootstrap_servers=servers, request_timeout_ms=5_000)

    def _has_leaders(self, topic: str, num_partitions: int) -> bool:
        partitions = self._partitions(topic)
        return len(partitions) == num_partitions and all(p["leader_id"] > 0 for p in partitions.values())

    def _partitions(self, topic: str) -> dict[int, dict[str, Any]]:
        """Return what the cluster says of a topic's partitions; nothing when the broker asked is down."""
        admin = self.admin()
        try:
            (found,) = admin.describe_topics([topic])
        except KafkaError:
            return {}
        finally:
            admin.close()
        return {partition["partition_index"]: partition for partition in found["partitions"]}

    def _format_all(self) -> None:
        """Give every broker an empty data folder that knows the cluster and its users."""
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda ports: self._format(ports, cluster_id), self.ports))

    def _format(self, ports: Ports, cluster_id: str) -> None:
        users = [f"SCRAM-SHA-{bits}=[name={USER},password={PASSWORD}]" for bits in (256, 512)]
        command = [*self._java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}"]
        command += ["-c", str(self._properties_path(ports))]
        for user in users:
            command += ["--add-scram", user]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, f"formatting failed: {answer.stdout}{answer.stderr}"

    def _broker(self, ports: Ports) -> ServerProcess:
        name = f"kafka-{ports.node_id}"
        properties = _properties(ports, self.ports, folder=self.folder, keystore=self._keystore)
        self._properties_path(ports).write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        process = ServerProcess(
            name,
            [*self._java, "kafka.Kafka", str(self._properties_path(ports))],
            log_path=self.folder / f"{name}.log",
            is_healthy=lambda: process.has_logged("Kafka Server started"),
        )
        return process

    def _properties_path(self, ports: Ports) -> Path:
        return self.folder / f"kafka-{ports.node_id}.properties"


def _choose_ports(node_id: int) -> Ports:
    return Ports(node_id=node_id, plaintext=free_port(), sasl=free_port(), tls=free_port(), controller=free_port())


def _properties(ports: Ports, cluster: Sequence[Ports], *, folder: Path, keystore: Path) -> dict[str, str]:
    addresses = {"PLAIN_TCP": ports.plaintext, "SASL_TLS": ports.sasl, "MUTUAL_TLS": ports.tls}
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in addresses.items())
    replication = str(min(3, len(cluster)))
    return {
        "process.roles": "broker,controller",
        "node.id": str(ports.node_id),
        "controller.quorum.voters": ",".join(f"{p.node_id}@127.0.0.1:{p.controller}" for p in cluster),
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{ports.controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAIN_TCP:PLAINTEXT,SASL_TLS:SASL_SSL,MUTUAL_TLS:SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAIN_TCP",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / f"kafka-{ports.node_id}"),
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": replication,
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": replication,
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "log.retention.check.interval.ms": "1000",  # so that a test of retention need not wait 5 minutes
        "log.cleaner.backoff.ms": "200",  # of compaction likewise, 15 seconds
        "message.max.bytes": str(32 * 2**20),
        "replica.fetch.max.bytes": str(32 * 2**20),
        "controlled.shutdown.max.retries": "1",
        "broker.session.timeout.ms": "6000",  # a killed broker is noticed within this
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(keystore.with_name("ca.crt")),
        "listener.name.mutual_tls.ssl.client.auth": "required",
        **_sasl_properties(),
    }


def _sasl_properties() -> dict[str, str]:
    security = "org.apache.kafka.common.security"
    modules = {
        "scram-sha-256": f"{security}.scram.ScramLoginModule required;",
        "scram-sha-512": f"{security}.scram.ScramLoginModule required;",
        "plain": f'{security}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
        "oauthbearer": f"{security}.oauthbearer.OAuthBearerLoginModule required;",
    }
    properties = {f"listener.name.sasl_tls.{name}.sasl.jaas.config": module for name, module in modules.items()}
    properties["listener.name.sasl_tls.sasl.enabled.mechanisms"] = ",".join(name.upper() for name in modules)
    return properties

"""`make demo-kafka`: the main job on a real broker of this machine.

    PYTHONPATH=operator:trainer:tests python tests/demo/kafka_demo.py

Starts one Kafka broker (fetched by `make servers` the first time), makes a topic and runs `rap_trainer.demo` on it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from servers.kafka_cluster import KafkaCluster

PARTITIONS = 4


def main() -> int:
    """Returns the demo's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = KafkaCluster(Path(folder), num_brokers=1)
        try:
            cluster.start()
            topic = cluster.create_topic("clicks", num_partitions=PARTITIONS)
            servers = cluster.bootstrap_servers[0]
            print(f"[demo] a broker runs at {servers}; topic {topic} has {PARTITIONS} partitions", flush=True)
            command = [sys.executable, "-m", "rap_trainer.demo", "--kafka", servers, "--topic", topic]
            return subprocess.run([*command, *sys.argv[1:]], check=False).returncode
        finally:
            cluster.stop()


if __name__ == "__main__":
    sys.exit(main())

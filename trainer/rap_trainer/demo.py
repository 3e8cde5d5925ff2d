"""`make demo`: the main job on one laptop - a growing stream, two ranks, a killed rank, a report.

With `--kafka HOST:PORT --topic T` the stream is a topic of at least two partitions (`make demo-kafka` brings a broker).
Only what a user could type: `rap produce` and `rap run` as processes, and one kill -9 in between.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from rap_trainer.display.report import REPORT_NAME
from rap_trainer.rank import HISTORY_NAME

JOB = """\
apiVersion: rap.dev/v1alpha1
kind: RAPJob
metadata: {{name: demo}}
spec:
  source:
    {source}
  columns: {{label: int32, "int_{{0..12}}": float32, "cat_{{0..25}}": list<int64>}}
  label: label
  features:
  - {{columns: ["int_{{0..12}}"], ops: [{{fillNull: {{value: 0}}}}, {{log1p: {{min: 0}}}}]}}
  - columns: ["cat_{{0..25}}"]
    ops: [{{fillNull: {{value: 0}}}}, {{sigridHash: {{salt: 0}}}}, {{firstx: {{count: 1}}}}]
    table: {{rows: 5000, dim: 16}}
  - {{name: int_0_bucket, columns: [int_0], ops: [{{bucketize: {{borders: [0.5, 1.0, 1.5]}}}}], table: {{rows: 4, dim: 16}}}}
  model: {{dlrm: {{bottom: [64, 32, 16], top: [64, 32, 1]}}}}
  optimizer: {{dense: {{adagrad: {{lr: 0.02}}}}, embedding: {{rowwiseAdagrad: {{lr: 0.1}}}}}}
  trainer: {{processesPerNode: 2, batchSizePerGpu: 256, metricsPort: 0, maxSteps: {steps}}}
  checkpoint: {{path: {folder}/checkpoints, intervalSeconds: 5, keep: 3}}
  evaluation: {{windowRows: 50000}}
  restartPolicy: {{delaySeconds: 1}}
"""
FILES = "files: {{path: {folder}/events, format: parquet, follow: true, eventTime: {{column: ts}}}}"
KAFKA = "kafka: {{bootstrapServers: ['{servers}'], topic: {topic}, format: arrow, eventTime: {{column: ts}}}}"
STEP_ROWS, NO_LIMIT = 512, 10**9
COMMAND = [sys.executable, "-m", "rap_trainer.cli"]
FIRST_CHECKPOINT_S = 300.0  # importing TorchRec twice took over 120 s at a load of six a core
WHOLE_RUN_S = 600.0
LARGEST_ENTROPY = 0.95
"""The planted truth is learned well below this within the first 100,000 rows (0.89 here)."""


def main() -> int:
    """Runs the demo; returns the trainer's exit code, or 1 when the demo itself did not do its part."""
    options = _options()
    folder = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    job = folder / "job.yaml"
    job.write_text(document(folder, options.rows, servers=options.kafka, topic=options.topic))
    say(f"the job: {job}")
    producer = _start_producer(folder, options)
    trainer = subprocess.Popen([*COMMAND, "run", str(job), "--plain"])  # noqa: S603  # ourselves
    try:
        _wait_for_checkpoint(folder / "checkpoints", trainer)
        killed = _kill_rank(1, trainer.pid)
        say(f"kill -9 of rank 1 (process {killed}); the group restarts from its checkpoint")
        code = trainer.wait(timeout=WHOLE_RUN_S)
        if producer.wait(timeout=60):
            say("the producer failed")
            return 1
    finally:
        for process in (trainer, producer):
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=30)
    return code or _judge(folder)


def document(folder: Path, rows: int, *, servers: str | None = None, topic: str = "") -> str:
    """The demo's job as YAML: over `folder/events`, or over a topic, which has no end of its own."""
    if servers is None:
        return JOB.format(folder=folder, source=FILES.format(folder=folder), steps=NO_LIMIT)
    return JOB.format(folder=folder, source=KAFKA.format(servers=servers, topic=topic), steps=rows // STEP_ROWS)


def say(text: str) -> None:
    """A line of the demo's own, told apart from the trainer's."""
    print(f"[demo] {text}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".demo"))
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rate", type=int, default=6_000, help="rows a second")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="train from a topic of this broker instead of files")
    parser.add_argument("--topic", default="demo")
    return parser.parse_args()


def _start_producer(folder: Path, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    place = str(folder / "events") if options.kafka is None else f"topic {options.topic}"
    say(f"producing {options.rows:,} click events at {options.rate:,} rows/s into {place}")
    arguments = ["--rows", str(options.rows), "--rate", str(options.rate)]
    if options.kafka is None:
        arguments += ["--rows-per-file", "10000", "--out", str(folder / "events")]
    else:
        arguments += ["--kafka", options.kafka, "--topic", options.topic]
    return subprocess.Popen([*COMMAND, "produce", *arguments])  # noqa: S603  # ourselves


def _wait_for_checkpoint(folder: Path, trainer: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + FIRST_CHECKPOINT_S
    while not any(folder.glob("step-*")):
        if trainer.poll() is not None:
            raise SystemExit(f"the trainer ended with {trainer.returncode} before its first checkpoint")
        if time.monotonic() > deadline_s:
            raise SystemExit(f"no checkpoint within {FIRST_CHECKPOINT_S:.0f} s")
        time.sleep(0.2)


def _kill_rank(rank: int, trainer: int) -> int:
    """kill -9 of the process that trains `rank` under the process `trainer`; its process id."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _is_rank(entry, rank, trainer):
            os.kill(int(entry.name), signal.SIGKILL)
            return int(entry.name)
    raise SystemExit(f"rank {rank} of process {trainer} is not running")


def _is_rank(entry: Path, rank: int, trainer: int) -> bool:
    try:
        status = (entry / "status").read_text()
    except OSError:
        return False  # it ended meanwhile
    return f"Name:\trap-rank-{rank}\n" in status and f"\nPPid:\t{trainer}\n" in status


def _judge(folder: Path) -> int:
    lines = (folder / "checkpoints" / HISTORY_NAME).read_text().splitlines()
    last = json.loads(lines[-1])["last"]
    entropy, rows = last["life_normalized_entropy"], last["rows"]
    say(f"normalized entropy over all {rows:,} rows: {entropy:.4f} (1.0 is no better than the bare click rate)")
    say(f"report: {folder / 'checkpoints' / REPORT_NAME}")
    return 0 if entropy < LARGEST_ENTROPY else 1


if __name__ == "__main__":
    sys.exit(main())

"""One rank as a process: loads the job, builds its displays, trains, ends with the exit code of DESIGN 10.

Runs under whatever set torchrun's environment: `launch.py` here, torchrun in a pod.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rap_contract.job import RAPJob
from rap_contract.metrics import TRAINER
from rap_contract.pod import TERMINATION_FILE, ExitCode
from rap_contract.problem import InvalidDocument

from rap_trainer.display import Display, Sink
from rap_trainer.display.gauges import Gauges
from rap_trainer.display.history import History
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.display.metrics_server import MetricsServer, access_of
from rap_trainer.display.report import REPORT_NAME, Report
from rap_trainer.display.terminal import Form, terminal
from rap_trainer.jobfile import load_job
from rap_trainer.logs import begin_logging

log = logging.getLogger(__name__)

HISTORY_NAME = "history.jsonl"
BROKEN = 1
"""Python's own exit code for an uncaught exception."""


def run_rank(job_path: Path, form: Form) -> int:
    """Trains as the rank the environment names; gives the exit code. Never raises."""
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    begin_logging(f"rap[{rank}]" if size != "1" else "rap")
    message = ""
    try:
        code, message = _run(load_job(job_path), form)
    except InvalidDocument as invalid:
        code, message = ExitCode.INVALID, str(invalid)
        log.error("%s", invalid)
    except Exception as error:
        code, message = BROKEN, repr(error)
        traceback.print_exc()
    _leave_word(code, message)
    return int(code)


def end_process(code: int) -> None:
    """Ends this process at once: collectives with a lost peer, and their threads, are not waited for."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(job: RAPJob, form: Form) -> tuple[int, str]:
    rank = int(os.environ.get("RANK", "0"))
    port = job.spec.trainer.metrics_port
    store = MetricStore(TRAINER)
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))  # ranks of one pod share its address
    access = access_of(job.spec.trainer.metrics_secret_name if port else None)
    pages: dict[str, Callable[[], bytes]] = {}
    server = MetricsServer(store, port=port + local_rank if port else 0, access=access, pages=pages)
    from rap_trainer.program.host_memory import keep_freed_memory
    from rap_trainer.train import train  # TorchRec: slow to import, and not needed to refuse a job

    keep_freed_memory()
    gc.freeze()  # what is imported stays: looking through it for garbage would hold every thread for 0.4 s, once a minute
    try:
        ending = train(job, display=Display(_sinks(job, form, store, rank)), store=store, pages=pages)
    finally:
        server.close()
    return ending.code, "" if ending.code == ExitCode.DONE else ending.reason


def _sinks(job: RAPJob, form: Form, store: MetricStore, rank: int) -> list[Sink]:
    gauges = Gauges(store, rank=rank, version=_version())
    if rank != 0:
        return [gauges]
    directory = Path(job.spec.checkpoint.path)
    history = History(directory / HISTORY_NAME)
    return [terminal(sys.stdout, form), gauges, history, Report(history, directory / REPORT_NAME)]


def _version() -> str:
    try:
        return version("rap")
    except PackageNotFoundError:
        return "unknown"


def _leave_word(code: int, message: str) -> None:
    """Tells the kubelet why this rank ended: torchrun hides exit codes. The first rank that failed by itself is heard."""
    path = Path(TERMINATION_FILE)
    if code == ExitCode.DONE or not path.exists():
        return
    try:
        said = path.read_text().strip()
        if not said or (code != ExitCode.PEER_LOST and json.loads(said).get("exitCode") == ExitCode.PEER_LOST):
            path.write_text(json.dumps({"exitCode": int(code), "message": message[:1024]}))
    except (OSError, ValueError) as error:
        log.warning("cannot write %s: %s", path, error)

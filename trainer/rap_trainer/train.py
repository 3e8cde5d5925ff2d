"""Trains a job on the ranks of this attempt, from the newest checkpoint to the end of the source.

    code = train(job, display=Display([...]))

One call is one rank's part of one attempt; `launch.py` starts the ranks. The recipe: join the ranks, own the
checkpoint directory, build and shard the model, restore the state, open the source, loop, end in order.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import torch
import torch.distributed as dist
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob, RAPJobSpec
from rap_contract.metrics import TRAINER
from rap_contract.pod import PLANNING_PATH, ExitCode
from rap_contract.problem import InvalidDocument

from rap_trainer.batch import Positions
from rap_trainer.checkpoint.commit import clear_unfinished
from rap_trainer.checkpoint.errors import CheckpointError
from rap_trainer.checkpoint.fence import NOBODY, Claim, newest_claim, take
from rap_trainer.checkpoint.layout import JobIdentity
from rap_trainer.checkpoint.reader import Found, candidates, find
from rap_trainer.checkpoint.writer import CheckpointWriter
from rap_trainer.display import Display, Run
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.model.build import build_model
from rap_trainer.model.shard import shard_model
from rap_trainer.model.tables import embedding_bag_collection
from rap_trainer.plan.given import given_plan
from rap_trainer.plan_inputs import owners_of
from rap_trainer.replan.planning_page import PlanningPage, default_window
from rap_trainer.replan.profile_in_force import ProfileInForce
from rap_trainer.replan.remeasuring import Remeasuring, measure_again
from rap_trainer.replan.switcher import Switcher
from rap_trainer.serving.publisher import Publisher
from rap_trainer.step.choice import choose_runtime
from rap_trainer.step.ledger import ENV_LEDGER, Ledger
from rap_trainer.step.loop import Ending, Loop, Tools, exit_code_of
from rap_trainer.step.loss_watch import LossWatch
from rap_trainer.step.meters import Meters
from rap_trainer.step.reports import Reports
from rap_trainer.step.runtime import Runtime
from rap_trainer.step.saving import Saving
from rap_trainer.step.shown import Shown
from rap_trainer.step.signals import StopRequest
from rap_trainer.stream.files import FileSource, FileSourceOptions
from rap_trainer.stream.kafka.sharing import agree_on_sharing
from rap_trainer.stream.kafka.source import KafkaSource, KafkaSourceOptions
from rap_trainer.stream.node_sharing import sharing_on_node
from rap_trainer.stream.source import Source, SourceError
from rap_trainer.world import PeerLost, World, is_peer_loss, join_world, leave_world

log = logging.getLogger(__name__)


def train(
    job: RAPJob,
    *,
    display: Display | None = None,
    store: MetricStore | None = None,
    pages: dict[str, Callable[[], bytes]] | None = None,
) -> Ending:
    """Trains on this rank until the attempt ends; gives the exit code of DESIGN 10 and the reason.

    `pages` gets what this attempt serves beside its metrics.
    Raises InvalidDocument for a job that cannot be trained, and whatever was not foreseen. After PEER_LOST the
    process should end without further collectives (`os._exit`).
    """
    shown = Shown(display or Display(), began_s=time.time())
    orderly = False
    with StopRequest() as stop:
        try:
            world = join_world(use_gpu=job.spec.trainer.gpus_per_node > 0)
            orderly = world.size == 1
            ending = _attempt(job, world, stop, shown, store or MetricStore(TRAINER), {} if pages is None else pages)
            orderly = True
        except InvalidDocument:
            orderly = True  # every rank finds the same
            raise
        except CheckpointError as error:
            orderly = True
            ending = Ending(code=error.exit_code, reason=str(error))
        except (
            SourceError
        ) as error:  # outside the loop's own handling: opening it, or keeping dead letters at a checkpoint
            ending = Ending(code=exit_code_of(error), reason=str(error))
        except RuntimeError as error:
            if not is_peer_loss(error):
                raise
            ending = Ending(code=ExitCode.PEER_LOST, reason=f"another rank is gone: {error}")
        finally:
            if orderly:
                leave_world()
    if ending.code not in (ExitCode.DONE, ExitCode.TERMINATED):
        log.error("%s", ending.reason)
    shown.finish(ending)
    return ending


def _attempt(
    job: RAPJob,
    world: World,
    stop: StopRequest,
    shown: Shown,
    store: MetricStore,
    pages: dict[str, Callable[[], bytes]],
) -> Ending:
    spec, root, identity = job.spec, Path(job.spec.checkpoint.path), JobIdentity.of(job)
    claim, found = _own_directory(root, identity, world), find(root, identity, world)
    graph = _graph(spec)
    model = shard_model(build_model(spec, embedding_bag_collection(graph), num_dense=graph.dense_width), spec, world)
    evaluator = Evaluator(spec.evaluation, world.device)
    with ExitStack() as ending:
        saving = Saving(
            root,
            identity=identity,
            world=world,
            model=model,
            evaluator=evaluator,
            writer=CheckpointWriter(root, identity=identity, world=world, claim=claim, keep=spec.checkpoint.keep),
            publisher=_publisher(job, world, shown, store, ending),
        )
        step, rows, positions = _resume(found, saving, spec, world)
        source = _open_source(spec, world, positions)
        ending.callback(_close, source)
        runtime, runtime_name = choose_runtime(spec, graph, model, evaluator, world, plan=given_plan(os.environ))
        switcher = Switcher.watching_environment(os.environ, runtime, store, tell=shown.told("replan", world))
        ending.callback(switcher.close)
        profile = ProfileInForce(job, os.environ, store)
        window, owners = default_window(runtime_name, world), owners_of(model.plan)
        planning = PlanningPage(job, store, runtime, profile=profile, owners=owners, default_window=window)
        if world.rank == 0:
            pages[PLANNING_PATH] = planning
            ending.callback(pages.pop, PLANNING_PATH, None)
            profile.show()
        watch, meters = LossWatch(world.device), _meters(store, spec, runtime, found)
        reports = Reports(spec.evaluation, world, evaluator=evaluator, timer=runtime.timer, watch=watch, meters=meters)
        measure = measure_again(runtime, runtime_name, world, inline_seconds=planning.inline_seconds)
        tools = Tools(
            world=world,
            source=source,
            runtime=runtime,
            saving=saving,
            watch=watch,
            reports=reports,
            stop=stop,
            display=shown.display,
            meters=meters,
            attempt=claim.attempt,
            ledger=_ledger(world, claim.attempt, step, positions),
            switcher=switcher,
            remeasuring=Remeasuring(spec.replanning, store, profile, measure=measure, world=world),
        )
        loop = Loop(spec, tools, step=step, rows=rows)
        shown.start(
            _run(job, world, claim.attempt, step, runtime_name), loop, () if found is None else found.passed_over
        )
        return loop.run()


def _publisher(job: RAPJob, world: World, shown: Shown, store: MetricStore, ending: ExitStack) -> Publisher | None:
    """On the first rank, if the job publishes; closed with the attempt."""
    if job.spec.publish is None or world.rank != 0:
        return None
    publisher = Publisher(job, job.spec.publish, store, tell=shown.told("publish", world))
    ending.callback(publisher.close)
    return publisher


def _meters(store: MetricStore, spec: RAPJobSpec, runtime: Runtime, found: Found | None) -> Meters:
    meters = Meters(store, spec.features)
    meters.compare(lambda: runtime.plan)
    meters.fallbacks(0 if found is None else len(found.passed_over))
    return meters


def _close(source: Source) -> None:
    with suppress(Exception):  # the run's own error matters more
        source.close()


def _own_directory(root: Path, identity: JobIdentity, world: World) -> Claim:
    """Makes this attempt the only one that may write checkpoints. Collective. Raises OtherJob, Fenced, WriteFailed."""
    outcome: list[Claim | CheckpointError] = [NOBODY]
    if world.rank == 0:
        try:
            candidates(root, identity)  # another job's directory is left as it is
            claim = Claim.given(os.environ) or newest_claim(root).next(time.time())
            take(root, claim)
            clear_unfinished(root)
            outcome = [claim]
        except CheckpointError as error:
            outcome = [error]
    dist.broadcast_object_list(outcome, src=0, group=world.control_group)
    if isinstance(outcome[0], CheckpointError):
        raise outcome[0]
    return outcome[0]


def _graph(spec: RAPJobSpec) -> FeatureGraph:
    graph, problems = compile_features(spec)
    if graph is None:
        raise InvalidDocument(problems)
    return graph


def _resume(found: Found | None, saving: Saving, spec: RAPJobSpec, world: World) -> tuple[int, int, Positions]:
    """Step, rows and positions to go on from."""
    if found is None:
        torch.manual_seed(spec.trainer.seed + world.rank)
        return 0, 0, {}
    saving.restore(found)
    if len(found.ranks) == world.size:
        found.ranks[world.rank].restore_random_state()
    else:
        torch.manual_seed(spec.trainer.seed + world.rank + world.size * found.manifest.step)
    return found.manifest.step, found.manifest.rows, found.positions


def _open_source(spec: RAPJobSpec, world: World, positions: Positions) -> Source:
    if spec.source.files is not None:
        store = dist.PrefixStore("rap/files", dist.distributed_c10d._get_default_store())
        options = FileSourceOptions(sharing=sharing_on_node(world))
        return FileSource(spec, rank=world.rank, world_size=world.size, start=positions, store=store, options=options)
    assert spec.source.kafka is not None  # exactly one of them
    sharing = agree_on_sharing(spec.source.kafka, world)
    return KafkaSource(
        spec,
        rank=world.rank,
        world_size=world.size,
        start=positions,
        sharing=sharing,
        options=KafkaSourceOptions(device=world.device),
    )


def _ledger(world: World, attempt: int, step: int, positions: Positions) -> Ledger | None:
    directory = os.environ.get(ENV_LEDGER)
    if directory is None:
        return None
    return Ledger(Path(directory), rank=world.rank, attempt=attempt, resumed_step=step, start=positions)


def _run(job: RAPJob, world: World, attempt: int, step: int, runtime: str) -> Run:
    trainer, source = job.spec.trainer, job.spec.source
    on_gpu = world.device.type == "cuda"
    return Run(
        job=job.metadata.name,
        attempt=attempt,
        world=world.size,
        device=torch.cuda.get_device_name(world.device) if on_gpu else "cpu",
        runtime=runtime,
        batch_size=trainer.batch_size_per_gpu * world.size,
        source=source.files.path if source.files is not None else source.kafka.topic if source.kafka else "",
        checkpoint_path=job.spec.checkpoint.path,
        resumed_step=step,
        metrics_port=trainer.metrics_port + world.local_rank if trainer.metrics_port else 0,
        time_s=time.time(),
    )


__all__ = ["PeerLost", "train"]

"""What `rap plan` gives the planner: the job's fused kernels, the data's sizes, the ranks and a profile. Measures nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from rap_contract.json_text import MAX_SHOWN
from rap_contract.plan import FusedKernel, Plan
from rap_contract.problem import InvalidDocument, Problem
from rap_contract.profile import GroupWorkload, Profile, Workload
from rap_planner.task import Piece, Task
from rap_planner.work import Ranks, balanced_owners, task_of

from rap_trainer.evaluation.workload import group_columns

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingPlan

    from rap_trainer.fusion.groups import Groups
    from rap_trainer.plan.launch_work import LaunchWork

DEFAULT_PROFILE = "h200.json"
ANY_CPU = "cpu"
"""Device of a profile that is of no CPU in particular."""
MAX_BYTES = 64 * 2**20  # of a file; the reader of the contract has its own, smaller limit on text


def nullable_columns(graph: FeatureGraph) -> frozenset[str]:
    """Columns whose null flags kernels read."""
    return frozenset(name for name, each in graph.columns.items() if each.nullable and name != graph.label)


def single_columns(graph: FeatureGraph, workload: Workload) -> frozenset[str]:
    """List columns that hold one element a row: the captured runtime takes lists for single ids as long as they do."""
    return frozenset(
        name for name, kind in graph.columns.items() if kind.is_list and workload.of(name).mean_list_length <= 1
    )


def fused_groups(graph: FeatureGraph, workload: Workload) -> Groups:
    """The launches of the fused program, in order, as the captured runtime numbers them for such data."""
    from rap_trainer.fusion.groups import Tiles, group
    from rap_trainer.fusion.layout import OutputLayout
    from rap_trainer.fusion.lower import lower

    try:
        single = single_columns(graph, workload)
        OutputLayout.one_id_each([feature.name for feature in graph.sparse], single=single).check(graph)
        padded = True
    except ValueError:  # several ids a row: only the packed layout holds them
        padded = False
    return group(lower(graph, nullable_columns(graph), padded=padded), tiles=Tiles())


def fused_kernels(graph: FeatureGraph, workload: Workload) -> tuple[FusedKernel, ...]:
    """The same as a plan lists them."""
    return tuple(
        FusedKernel.model_validate(
            {"launch": number, "stage": launch.kernel, "wave": launch.wave, "features": launch.features}
        )
        for number, launch in enumerate(fused_groups(graph, workload).launches)
    )


def works_for(
    graph: FeatureGraph, *, rows: int, workload: Workload, fused: bool, on_gpu: bool
) -> tuple[LaunchWork, ...]:
    """What each kernel of a job does with so many rows: the fused launches, or the eager program as one piece."""
    from rap_trainer.plan.launch_work import Sizes, works_of  # Triton, and only for planning
    from rap_trainer.plan.program_work import program_work

    sizes = Sizes.of(graph, rows, workload, nullable_columns(graph))
    if not fused:
        return (program_work(graph, sizes, side_by_side=not on_gpu),)
    return works_of(fused_groups(graph, workload), sizes)


def pieces_of(works: Sequence[LaunchWork], features: Sequence[str]) -> dict[str, list[Piece]]:
    """The works by feature; what belongs to none (the label) goes to the first."""
    found: dict[str, list[Piece]] = {name: [] for name in features}
    for kernel, work in enumerate(works):
        for entry in work.entries:
            name = entry.feature if entry.feature in found else features[0]
            found[name].append(
                Piece(kernel=kernel, num_bytes=entry.num_bytes, ops=dict(entry.ops), num_tiles=entry.num_tiles)
            )
    return found


def runs_fused(job: RAPJob) -> bool:
    """Whether the job's preprocessing is the fused program: on GPUs, in either runtime."""
    return job.spec.trainer.gpus_per_node > 0


def task_for(job: RAPJob, profile: Profile, *, workload: Workload, owners: Mapping[str, int] | None = None) -> Task:
    """The job as the planner sees it. Raises InvalidDocument for features that do not compile.

    `owners`: rank of each table, as TorchRec's planner decided; without it tables are dealt by size.
    """
    graph, problems = compile_features(job.spec)
    if graph is None:
        raise InvalidDocument(problems)
    trainer, workload = job.spec.trainer, workload.shaped(profile.list_shape)
    num_ranks = trainer.nodes * (trainer.gpus_per_node or trainer.processes_per_node)
    tables = sum(profile.window(name).seconds or 0.0 for name in ("emb_fwd", "emb_bwd"))
    rows, fused = trainer.batch_size_per_gpu, runs_fused(job)
    works = works_for(graph, rows=rows, workload=workload, fused=fused, on_gpu=trainer.gpus_per_node > 0)
    names = tuple(feature.name for feature in graph.features)
    whole = FusedKernel(launch=0, stage="program", wave=0, features=names)
    return task_of(
        job.metadata.name,
        graph,
        fused_kernels(graph, workload) if fused else (whole,),
        pieces=pieces_of(works, names),
        batch_size=rows,
        workload=workload,
        ranks=Ranks(
            num_ranks=num_ranks,
            owners=balanced_owners(graph, num_ranks) if owners is None else owners,
            embedding_seconds=tables,
            memory_bytes=profile.device.memory_bytes,
        ),
    )


def group_name(job: RAPJob, index: str) -> str:
    """What people call a feature group: its name, or its first column."""
    group = job.spec.features[int(index)]
    return group.name or group.columns[0]


def workload_of(job: RAPJob, text: str | None, *, mean_length: float) -> Workload:
    """Sizes by column: from JSON of {group: {meanListLength, nullRatio}}, as the trainer exports them, else one mean."""
    default = GroupWorkload(mean_list_length=mean_length)
    if text is None:
        return Workload(default=default)
    from rap_contract.json_text import parse_json, read_document

    hint = 'give {"groups": {NAME: {"meanListLength": 20, "nullRatio": 0.1}}}'
    groups = parse_json(text, hint=hint)
    named = groups.get("groups") if isinstance(groups, dict) else None
    if not isinstance(named, dict):
        raise InvalidDocument([Problem(path=("groups",), message="required", hint=hint)])
    columns = group_columns(job.spec.features)
    unknown = [name for name in named if name not in columns]
    if unknown:
        message = f"no such feature group; known: {', '.join(columns)}"
        raise InvalidDocument([Problem(path=("groups", name), message=message, hint=hint) for name in unknown])
    found: dict[str, GroupWorkload] = {}
    for name, document in named.items():
        load = read_document(GroupWorkload, document, hint=hint)
        found.update(dict.fromkeys(columns[name], load))
    return Workload(default=default, columns=found)


def read_profile(path: Path | None, job: RAPJob) -> Profile:
    """A profile file, checked against the job's model; without a path the one of an H200 that comes with RAP."""
    if path is None:
        return Profile.from_json((resources.files("rap_trainer") / "profiles" / DEFAULT_PROFILE).read_text())
    with naming(path):
        profile = Profile.from_json(read_text(path))
    here = None if profile.device.name == ANY_CPU else _device_here(job)
    problems = profile.mismatches(device=here, model_hash=model_hash(job))
    if problems:
        raise InvalidDocument(problems)
    return profile


def _device_here(job: RAPJob) -> str | None:
    """The device the job would train on here; None where this machine has none of the kind."""
    from rap_trainer.profiling.device import name_of_device

    return name_of_device(gpu=job.spec.trainer.gpus_per_node > 0)


def read_owners(path: Path | None, job: RAPJob) -> dict[str, int] | None:
    """Ranks of tables, from JSON of {table: rank}. Raises InvalidDocument for tables or ranks that do not exist."""
    if path is None:
        return None
    from rap_contract.json_text import parse_json

    hint = 'give {"cat_0": 0, "cat_1": 1}: the rank that owns each table'
    with naming(path):
        document = parse_json(read_text(path), hint=hint)
    if not isinstance(document, dict):
        raise InvalidDocument([Problem(path=(), message=f"{path}: not a mapping of tables to ranks", hint=hint)])
    graph, problems = compile_features(job.spec)
    if graph is None:
        raise InvalidDocument(problems)
    trainer = job.spec.trainer
    ranks = trainer.nodes * (trainer.gpus_per_node or trainer.processes_per_node)
    known = {table.name for table in graph.tables}
    wrong = [
        Problem(
            path=(str(name),),
            message=f"no such table or no rank of 0 to {ranks - 1}",
            hint=hint,
            value=repr(rank)[:MAX_SHOWN],
        )
        for name, rank in document.items()
        if name not in known or not isinstance(rank, int) or not 0 <= rank < ranks
    ]
    if wrong:
        raise InvalidDocument(wrong)
    return {str(name): int(rank) for name, rank in document.items()}


def owners_of(plan: ShardingPlan) -> dict[str, int]:
    """The rank that owns each table whole, from TorchRec's sharding; tables that several share are left out."""
    found: dict[str, int] = {}
    for module in plan.plan.values():
        for name, sharding in module.items():
            if sharding.ranks is not None and len(sharding.ranks) == 1:
                found[name] = sharding.ranks[0]
    return found


def read_plan(path: Path) -> Plan:
    """A plan file. Raises InvalidDocument."""
    with naming(path):
        return Plan.from_json(read_text(path))


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """What is wrong with a file says which one it is."""
    try:
        yield
    except InvalidDocument as invalid:
        named = [
            each if str(path) in each.message else replace(each, hint=f"{each.hint}; it is in {path}")
            for each in invalid.problems
        ]
        raise InvalidDocument(named) from None


def read_text(path: Path) -> str:
    """A text file within limits. Raises InvalidDocument naming it."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidDocument([Problem(path=(), message=f"{path}: larger than {MAX_BYTES} bytes")])
        return path.read_text(encoding="utf-8")
    except OSError as error:
        hint = "give the path of a file that exists and may be read"
        raise InvalidDocument([Problem(path=(), message=f"{path}: {error.strerror}", hint=hint)]) from None
    except UnicodeDecodeError:
        raise InvalidDocument([Problem(path=(), message=f"{path}: not UTF-8")]) from None


def model_hash(job: RAPJob) -> str:
    """Of everything that decides the training step and its kernels: model, features, optimizers, batch, precision."""
    spec = job.spec
    trainer = spec.trainer
    content = {
        "model": spec.model.model_dump(mode="json"),
        "optimizer": spec.optimizer.model_dump(mode="json"),
        "features": [group.model_dump(mode="json", exclude={"name"}) for group in spec.features],
        "trainer": [trainer.nodes, trainer.gpus_per_node, trainer.processes_per_node, trainer.batch_size_per_gpu],
        "precision": trainer.precision,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

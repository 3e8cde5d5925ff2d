"""The `rap` command: one subcommand a job, each imported only when it is asked for."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rap_contract.job import RAPJob
from rap_contract.pod import ENV_PLAN_FILE, ExitCode
from rap_contract.problem import InvalidDocument, format_path

from rap_trainer.bench.cases import add_options
from rap_trainer.jobfile import load_job
from rap_trainer.logs import begin_logging


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code of DESIGN 10 (`rap_contract.pod.ExitCode`)."""
    options = _parser().parse_args(arguments)
    begin_logging("rap")
    try:
        return int(options.command(options))
    except InvalidDocument as invalid:
        return _report(invalid, as_json=getattr(options, "json", False))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rap", description="Continuous retraining of DLRMs on fresh events.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (
        _add_validate,
        _add_run,
        _add_preprocess,
        _add_score,
        _add_produce,
        _add_profile,
        _add_plan,
        _add_bench,
    ):
        add(commands)
    return parser


Commands = argparse._SubParsersAction  # argparse has no public name for it


def _add_validate(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("validate", help="every error of a job at once, with its place and a hint")
    parser.add_argument("job", type=Path, metavar="JOB.yaml")
    parser.add_argument("--print-crd-defaults", action="store_true", help="print the job completed with defaults")
    parser.add_argument("--json", action="store_true", help="problems as one JSON line each")
    parser.set_defaults(command=_validate)


def _add_run(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("run", help="train here; resume from the job's checkpoint")
    parser.add_argument("job", type=Path, metavar="JOB.yaml")
    parser.add_argument(
        "--nproc", type=int, default=None, metavar="N", help="ranks on this machine; default: the job's"
    )
    parser.add_argument("--plan", type=Path, default=None, metavar="P", help="the plan to run, from `rap plan --json`")
    parser.add_argument("--json", action="store_true", help="progress as JSON lines")
    parser.add_argument("--plain", action="store_true", help="progress as plain lines, also in a terminal")
    parser.set_defaults(command=_run)


def _add_profile(commands: Commands[argparse.ArgumentParser]) -> None:
    from rap_trainer.profile_command import add_arguments, run

    parser = commands.add_parser(
        "profile", help="measure this device with the job's own model: what `rap plan` plans from"
    )
    add_arguments(parser)
    parser.set_defaults(command=run)


def _add_plan(commands: Commands[argparse.ArgumentParser]) -> None:
    from rap_trainer.plan_command import add_arguments, run

    parser = commands.add_parser("plan", help="where and when a job's preprocessing runs, and why")
    add_arguments(parser)
    parser.set_defaults(command=run)


def _add_bench(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("bench", help="every way to train the paper's plans, measured on this machine's GPUs")
    add_options(parser)
    parser.set_defaults(command=_bench)


def _bench(options: argparse.Namespace) -> int:
    from rap_trainer.bench.command import bench

    return bench(options)


def _add_preprocess(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("preprocess", help="the job's chains over a file")
    parser.add_argument("job", type=Path, metavar="JOB.yaml")
    parser.add_argument("input", type=Path, metavar="IN")
    parser.add_argument("output", type=Path, metavar="OUT")
    parser.set_defaults(command=_preprocess)


def _add_produce(commands: Commands[argparse.ArgumentParser]) -> None:
    from rap_trainer.produce.command import add_arguments, run

    parser = commands.add_parser("produce", help="synthetic click events, or a Criteo file replayed")
    add_arguments(parser)
    parser.set_defaults(command=run)


def _validate(options: argparse.Namespace) -> ExitCode:
    job = load_job(options.job)
    if options.print_crd_defaults:
        _print_completed(job)
    elif not options.json:
        groups, columns = len(job.spec.features), len(job.spec.columns)
        print(f"{options.job}: valid ({job.metadata.name}: {groups} feature groups over {columns} column patterns)")
    return ExitCode.DONE


def _print_completed(job: RAPJob) -> None:
    import yaml

    document = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    print(yaml.safe_dump(document, sort_keys=False, width=120), end="")


def _run(options: argparse.Namespace) -> int:
    from rap_trainer.display.terminal import Form
    from rap_trainer.launch import launch

    if options.plan is not None:
        from rap_trainer.plan_inputs import read_plan

        read_plan(options.plan)  # refused here, before any rank starts
        os.environ[ENV_PLAN_FILE] = str(options.plan.resolve())
    form: Form = "json" if options.json else "plain" if options.plain else "auto"
    return launch(options.job, num_ranks=options.nproc, display=form)


def _add_score(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("score", help="click probabilities of a file's events, by a published model")
    parser.add_argument("model", type=Path, metavar="MODEL", help="a version's directory, or spec.publish.path")
    parser.add_argument("input", type=Path, metavar="IN")
    parser.add_argument("output", type=Path, metavar="OUT")
    parser.set_defaults(command=_score)


def _score(options: argparse.Namespace) -> int:
    from rap_trainer.serving.score_file import score_file

    return score_file(options.model, options.input, options.output)


def _preprocess(options: argparse.Namespace) -> int:
    from rap_trainer.preprocess import preprocess

    return preprocess(load_job(options.job), options.input, options.output)


def _report(invalid: InvalidDocument, *, as_json: bool) -> ExitCode:
    if as_json:
        for problem in invalid.problems:
            line = {
                "path": format_path(problem.path),
                "line": problem.line,
                "message": problem.message,
                "value": problem.value,
                "hint": problem.hint,
            }
            print(json.dumps(line))
    else:
        for problem in invalid.problems:
            print(problem, file=sys.stderr)
        count = len(invalid.problems)
        print(f"{count} problem{'s' if count != 1 else ''}", file=sys.stderr)
    return ExitCode.INVALID


if __name__ == "__main__":
    sys.exit(main())

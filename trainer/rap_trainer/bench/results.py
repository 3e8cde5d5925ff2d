"""The bench's JSON lines as groups to compare within: same plan, batch size, GPUs and run. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Result = Mapping[str, Any]
STOCK_IDEALS = ("loop", "pipeline-ideal")
PREPROCESSING = ("sequential", "pipeline", "compile", "cpu", "rap-eager")
"""Cases that preprocess and train on the stock step; those of ours begin with `rap:`."""
RUNGS = (
    ("loop", "stock TorchRec"),
    ("captured-modules", "its modules captured, inputs distributed statically"),
    ("captured:nccl+late+apart", "dense part written for the GPU"),
    ("captured:copy-engine+late+apart", "exchange on copy engines"),
    ("captured:copy-engine+apart", "ids sorted early"),
    ("captured:copy-engine", "rows looked up where they are read"),
)
"""The ablation with inputs ready; preprocessing comes after it."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Cases of one plan, batch size, number of GPUs and of nodes they are taken for."""

    plan: int
    batch: int
    gpus: int
    nodes: int
    cases: Mapping[str, Result]
    """Measured, by name, in the order they ran."""
    errors: Mapping[str, str]
    """Cases without a figure, and why."""

    @property
    def name(self) -> str:
        of_nodes = f" as {self.nodes} nodes" if self.nodes > 1 else ""
        return f"plan {self.plan}, batch {self.batch}, {self.gpus} GPU{'s' if self.gpus > 1 else ''}{of_nodes}"

    def ms(self, case: str) -> float | None:
        """Milliseconds a step of a case; None where it was not measured."""
        return float(self.cases[case]["ms"]) if case in self.cases else None

    @property
    def stock_ideal_ms(self) -> float | None:
        """Stock TorchRec's faster way with inputs ready."""
        return least(self.ms(case) for case in STOCK_IDEALS)

    @property
    def captured_ideal_ms(self) -> float | None:
        """Our captured step's fastest with inputs ready."""
        return least(self.ms(case) for case in self.cases if case.startswith("captured:"))

    def ideal_ms(self, case: str) -> float | None:
        """The ideal of the runtime a case trains with."""
        return self.captured_ideal_ms if case.startswith(("rap:", "captured:")) else self.stock_ideal_ms

    @property
    def rap(self) -> str | None:
        """Ours, with the window and grid that measured best, which is what a plan chooses."""
        found = [case for case in self.cases if case.startswith("rap:")]
        return min(found, key=lambda case: float(self.cases[case]["ms"]), default=None)

    def exposed_ms(self, case: str) -> float | None:
        """What preprocessing adds to a step over its ideal; None for cases that do not preprocess."""
        ideal = self.ideal_ms(case)
        if ideal is None or not (case in PREPROCESSING or case.startswith("rap:")):
            return None
        return float(self.cases[case]["ms"]) - ideal

    def over(self, base: str | None, case: str | None) -> float | None:
        """How many times faster `case` is than `base`."""
        slow = None if base is None else self.ms(base)
        fast = None if case is None else self.ms(case)
        return None if slow is None or fast is None else slow / fast

    def loss_gap(self, case: str) -> float | None:
        """Largest relative difference from the plain loop's losses over the same first steps."""
        mine, theirs = self.cases[case].get("losses") or (), self.cases.get("loop", {}).get("losses") or ()
        return max((abs(a - b) / abs(b) for a, b in zip(mine, theirs, strict=False)), default=None)


def least(values: Iterable[float | None]) -> float | None:
    """The least of what is known."""
    return min((value for value in values if value is not None), default=None)


def groups_of(lines: Iterable[Result]) -> tuple[Group, ...]:
    """Groups in order; a case measured twice counts with its last figure, one with a reason in `discarded` with none."""
    cases: dict[tuple[int, int, int, int], dict[str, Result]] = {}
    errors: dict[tuple[int, int, int, int], dict[str, str]] = {}
    for line in lines:
        if "plan" not in line or not ("ms" in line or "error" in line):
            continue
        key = (line["plan"], line["batch"], line["gpus"], line.get("nodes", 1))
        cases.setdefault(key, {})
        errors.setdefault(key, {})
        if "discarded" in line:
            errors[key][line["case"]] = f"discarded: {line['discarded']}"
        elif "ms" in line:
            cases[key][line["case"]] = line
            errors[key].pop(line["case"], None)
        else:
            errors[key].setdefault(line["case"], str(line["error"]).splitlines()[0])
    return tuple(
        Group(plan=key[0], batch=key[1], gpus=key[2], nodes=key[3], cases=cases[key], errors=errors[key])
        for key in sorted(cases)
    )


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of what is known."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def weak_scaling(groups: Sequence[Group], plan: int, batch: int) -> dict[int, float]:
    """By number of GPUs above one: the share of ours' speed a GPU that remains beside one GPU's, the batch a GPU the same."""
    return _shares(
        {group.gpus: group for group in groups if _is(group, plan) and group.batch == batch}, same_rows=False
    )


def strong_scaling(groups: Sequence[Group], plan: int, rows: int) -> dict[int, float]:
    """The same for `rows` of all GPUs together."""
    return _shares({g.gpus: g for g in groups if _is(g, plan) and g.batch * g.gpus == rows}, same_rows=True)


def _is(group: Group, plan: int) -> bool:
    return group.plan == plan and group.nodes == 1


def _shares(by_gpus: Mapping[int, Group], *, same_rows: bool) -> dict[int, float]:
    ms = {gpus: found for gpus, group in by_gpus.items() if (found := group.ms(group.rap or "")) is not None}
    if 1 not in ms:
        return {}
    return {gpus: ms[1] / ms[gpus] / (gpus if same_rows else 1) for gpus in sorted(ms) if gpus > 1}

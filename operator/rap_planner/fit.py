"""Least squares in pure Python: what kernels cost, from samples measured alone.

The terms are those of `kernel_cost.py`. Each launch of the profiled job is fitted by itself, for it is one compiled kernel;
kinds of kernels are fitted over all their launches, for jobs that were not profiled. Errors are relative ones.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rap_contract.problem import InvalidDocument, Problem
from rap_contract.profile import Coefficients, KernelSample, Narrow, Rates, Stage, TileWork

from rap_planner.kernel_cost import op_seconds, predicted, rounds_of, stretched

CRITERION = 0.10  # a kernel counts as predicted within 10 %, the criterion of the RAP paper (section 7)
QUANTILE = 0.9
FOLDS = 5
MIN_SAMPLES = 8
FULL_TILES = (
    1.0,
    32.0,
    64.0,
    132.0,
    264.0,
    528.0,
    1056.0,
    2112.0,
    4224.0,
)  # tried in turn: up to 32 tiles on each SM of an H200
AT_ONCE = (1.0, 4.0)  # tried in turn: the fused kernels' wide lane is four tiles
ALIKE = 1.15  # two counts whose largest ratio is no larger than so many times their smallest go together
ENOUGH = 1.5  # samples for each unknown
TINY = 1e-9  # of what is explained: less is rounding
ROUNDS = 3  # of the fit: the costliest tile is priced at the rates of the round before


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A sample and what was predicted without it."""

    sample: KernelSample
    seconds: float

    @property
    def error(self) -> float:
        """Relative."""
        return self.seconds / self.sample.seconds - 1


def fit(samples: Sequence[KernelSample], *, others: Sequence[KernelSample] = ()) -> Coefficients:
    """Rates with the error bar of samples left out of the fit. Raises InvalidDocument for too few samples.

    `others`: of other jobs' launches; with the job's own they are what a kind of kernel costs.
    """
    if len(samples) < MIN_SAMPLES:
        hint = "profile more op chains, widths and batches"
        message = f"at least {MIN_SAMPLES} kernel samples are needed"
        raise InvalidDocument([Problem(path=("samples",), message=message, hint=hint, value=str(len(samples)))])
    stages: dict[Stage, list[KernelSample]] = {}
    launches: dict[int, list[KernelSample]] = {}
    for sample in (*samples, *others):
        stages.setdefault(sample.stage, []).append(sample)
    for sample in samples:
        launches.setdefault(sample.launch, []).append(sample)
    complete = sorted(launches) == list(range(len(launches))) and all(
        len({sample.stage for sample in mine}) == 1 for mine in launches.values()
    )
    return Coefficients(
        stages={stage: rates_of(mine) for stage, mine in sorted(stages.items())},
        launches=tuple((launches[n][0].stage, rates_of(launches[n])) for n in sorted(launches)) if complete else (),
        error_ratio=_quantile([abs(each.error) for each in held_out(samples)]),
    )


def held_out(samples: Sequence[KernelSample]) -> list[HeldOut]:
    """Each sample predicted from the samples of its launch that are not in its fold."""
    found = []
    for launch in sorted({(sample.launch, sample.stage) for sample in samples}):
        mine = [sample for sample in samples if (sample.launch, sample.stage) == launch]
        found += _held_out(mine, like=_fitted(mine))
    return found


def share_within(found: Sequence[HeldOut], ratio: float = CRITERION) -> float:
    """Share of samples predicted within a ratio of what was measured."""
    return sum(abs(each.error) <= ratio for each in found) / max(len(found), 1)


def rates_of(samples: Sequence[KernelSample]) -> Rates:
    """Rates of samples that are alike, with their error bar."""
    rates = _fitted(samples)
    errors = [abs(each.error) for each in _held_out(samples, like=rates)]
    return rates.model_copy(update={"error_ratio": _quantile(errors)})


def _held_out(samples: Sequence[KernelSample], *, like: Rates) -> list[HeldOut]:
    """`like`: rates of all samples, whose number of tiles that fill the device is kept."""
    found = []
    for fold in range(FOLDS):
        train = [sample for n, sample in enumerate(samples) if n % FOLDS != fold]
        if not any(sample.programs is None for sample in train):
            continue
        rates = _fitted(train, like=like)
        found += [
            HeldOut(sample=sample, seconds=predicted(rates, sample))
            for n, sample in enumerate(samples)
            if n % FOLDS == fold
        ]
    return found


def _quantile(errors: Sequence[float]) -> float:
    ordered = sorted(errors)
    return min(ordered[min(len(ordered) - 1, int(QUANTILE * len(ordered)))], 10.0) if ordered else 10.0


def _fitted(samples: Sequence[KernelSample], *, like: Rates | None = None) -> Rates:
    """The best of the tried numbers of tiles that fill the device, without an error bar."""
    own = [sample for sample in samples if _own(sample)]
    bounded = [sample for sample in samples if not _own(sample)]
    fulls = FULL_TILES if like is None else (like.full_tiles,)
    candidates = [_own_rates(own or samples, full, rounds=rounds) for full in fulls for rounds in (1, ROUNDS)]
    rates = min(candidates, key=lambda each: _squares(each, own or samples))
    if len(bounded) >= MIN_SAMPLES:
        forms = [(number, whole) for number in AT_ONCE for whole in (True, False)]
        if like is not None and like.narrow is not None:
            forms = [(like.narrow.tiles_at_once, like.narrow.whole_rounds)]
        found = [_narrow_rates(bounded, *form, rounds=rounds) for form in forms for rounds in (1, ROUNDS)]
        tried = [rates.model_copy(update={"narrow": narrow}) for narrow in found]
        rates = min(tried, key=lambda each: _squares(each, bounded))
    return rates


def _own(sample: KernelSample) -> bool:
    return sample.programs is None or sample.programs >= sample.num_tiles


def _squares(rates: Rates, samples: Sequence[KernelSample]) -> float:
    return sum((predicted(rates, sample) / sample.seconds - 1) ** 2 for sample in samples)


def _groups(samples: Sequence[KernelSample], columns: int) -> list[list[str]]:
    """Element functions by rates of their own. Those whose counts keep one ratio share theirs; all do if there are too few samples."""
    names = sorted({name for sample in samples for name in sample.mean_tile.ops})
    groups: list[list[str]] = []
    for name in names:
        like = next((group for group in groups if _keep_one_ratio(samples, name, group[0])), None)
        if like is None:
            groups.append([name])
        else:
            like.append(name)
    return groups if len(samples) >= ENOUGH * (len(groups) + columns) else [names]


def _keep_one_ratio(samples: Sequence[KernelSample], name: str, other: str) -> bool:
    counts = [(sample.mean_tile.ops.get(name, 0.0), sample.mean_tile.ops.get(other, 0.0)) for sample in samples]
    if any((first > 0) != (second > 0) for first, second in counts):
        return False
    ratios = [first / second for first, second in counts if second > 0]
    return not ratios or max(ratios) <= ALIKE * min(ratios)


def _row(tile: TileWork, factor: float, groups: Sequence[Sequence[str]]) -> list[float]:
    """Bytes and element functions of a tile, so many times."""
    counts = [sum(tile.ops.get(name, 0.0) for name in group) for group in groups]
    return [factor * tile.num_bytes, *(factor * count for count in counts)]


def _own_rates(samples: Sequence[KernelSample], full: float, *, rounds: int) -> Rates:
    """In one round nothing is known of the costliest tile: all is launch, bytes and functions."""
    groups = _groups(samples, 3)
    rates: Rates | None = None
    for _ in range(rounds):
        rows = []
        for sample in samples:
            factor = sample.num_tiles * stretched(full, sample.num_tiles)
            row = [1.0, *_row(sample.mean_tile, factor, groups)]
            rows.append([*row, 0.0 if rates is None else _critical(rates, sample) * full])
        launch, per_byte, *per_op, imbalance = _relative(rows, samples)
        rates = Rates(
            launch_seconds=min(launch, 3600.0),
            seconds_per_byte=min(per_byte, 1.0),
            seconds_per_op=_mean_rate(samples, ops := _by_name(groups, per_op)),
            ops=ops if len(groups) > 1 else {},
            imbalance=min(imbalance, 1e4),
            full_tiles=full,
            error_ratio=0.0,
        )
    assert rates is not None
    return rates


def _critical(rates: Rates | Narrow, sample: KernelSample) -> float:
    """Seconds of the costliest tile at these rates."""
    tiles = (sample.mean_tile, sample.critical_tile)
    return max(tile.num_bytes * rates.seconds_per_byte + op_seconds(rates, tile.ops) for tile in tiles)


def _narrow_rates(samples: Sequence[KernelSample], at_once: float, whole: bool, *, rounds: int) -> Narrow:
    groups = _groups(samples, 3)
    narrow: Narrow | None = None
    for _ in range(rounds):
        rows = []
        for sample in samples:
            assert sample.programs is not None
            taken = max(1.0, sample.num_tiles / at_once)
            factor = sample.num_tiles / taken * rounds_of(taken, sample.programs, whole=whole)
            slowest = 0.0 if narrow is None else _critical(narrow, sample) * at_once
            rows.append([1.0, *_row(sample.mean_tile, factor, groups), slowest])
        launch, per_byte, *per_op, imbalance = _relative(rows, samples)
        narrow = Narrow(
            launch_seconds=min(launch, 3600.0),
            seconds_per_byte=min(per_byte, 1.0),
            seconds_per_op=_mean_rate(samples, ops := _by_name(groups, per_op)),
            ops=ops if len(groups) > 1 else {},
            imbalance=min(imbalance, 1e4),
            tiles_at_once=at_once,
            whole_rounds=whole,
        )
    assert narrow is not None
    return narrow


def _by_name(groups: Sequence[Sequence[str]], per_op: Sequence[float]) -> dict[str, float]:
    return {name: rate for group, rate in zip(groups, per_op, strict=True) for name in group}


def _mean_rate(samples: Sequence[KernelSample], ops: Mapping[str, float]) -> float:
    """Of an element function that was not met: the mean of those that were, by how often each was applied."""
    counts = {name: sum(each.mean_tile.ops.get(name, 0.0) * each.num_tiles for each in samples) for name in ops}
    total = sum(counts.values())
    return min(sum(count * ops[name] for name, count in counts.items()) / total, 1.0) if total else 0.0


def _relative(rows: Sequence[Sequence[float]], samples: Sequence[KernelSample]) -> tuple[float, ...]:
    """Coefficients with the least relative errors."""
    scaled = [[value / s.seconds for value in row] for row, s in zip(rows, samples, strict=True)]
    return non_negative(scaled, [1.0] * len(scaled))


def non_negative(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> tuple[float, ...]:
    """Least squares with no negative coefficient: the algorithm of Lawson and Hanson, columns scaled to length one."""
    width = len(rows[0])
    lengths = [math.sqrt(sum(row[c] ** 2 for row in rows)) or 1.0 for c in range(width)]
    scaled = [[row[c] / lengths[c] for c in range(width)] for row in rows]
    found, free, barred = [0.0] * width, set[int](), set[int]()
    for _ in range(3 * width):  # it ends by itself; rounding shall not keep it from that
        left = [target - sum(map(operator.mul, row, found)) for row, target in zip(scaled, targets, strict=True)]
        slopes = {c: sum(row[c] * rest for row, rest in zip(scaled, left, strict=True)) for c in range(width)}
        column = max((c for c in range(width) if c not in free | barred), key=lambda c: slopes[c], default=None)
        if column is None or slopes[column] <= TINY * math.sqrt(len(rows)):
            break
        free.add(column)
        barred.add(column)  # until another one helps: rounding may call it useful again and again
        while free:
            columns = sorted(free)
            solved = least_squares([[row[c] for c in columns] for row in scaled], targets)
            wanted = dict(zip(columns, solved, strict=True))
            if min(solved) > 0:
                found = [wanted.get(c, 0.0) for c in range(width)]
                barred &= {column} - free
                break
            blocked = [c for c in columns if wanted[c] <= 0]
            share = min(found[c] / (found[c] - wanted[c]) if found[c] > wanted[c] else 0.0 for c in blocked)
            found = [value + share * (wanted.get(c, 0.0) - value) for c, value in enumerate(found)]
            free = {c for c in columns if wanted[c] > 0 or found[c] > TINY}
            found = [value if c in free else 0.0 for c, value in enumerate(found)]
    return tuple(value / length for value, length in zip(found, lengths, strict=True))


def least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Solution of the normal equations, columns scaled to one; columns that others explain get zero."""
    width = len(rows[0])
    scales = [max((abs(row[c]) for row in rows), default=0.0) or 1.0 for c in range(width)]
    scaled = [[row[c] / scales[c] for c in range(width)] for row in rows]
    matrix = [[sum(row[a] * row[b] for row in scaled) for b in range(width)] for a in range(width)]
    right = [sum(row[a] * target for row, target in zip(scaled, targets, strict=True)) for a in range(width)]
    return [value / scale for value, scale in zip(_solve(matrix, right), scales, strict=True)]


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss-Jordan with pivots on the diagonal; a vanishing pivot fixes its unknown at zero."""
    width = len(right)
    grid = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    tiny = 1e-12 * max(matrix[i][i] for i in range(width))
    used: list[int] = []
    for _ in range(width):
        pivot = max((i for i in range(width) if i not in used), key=lambda i: grid[i][i])
        if grid[pivot][pivot] <= tiny:
            break
        used.append(pivot)
        divisor = grid[pivot][pivot]
        grid[pivot] = [value / divisor for value in grid[pivot]]
        for other in range(width):
            if other != pivot and grid[other][pivot]:
                factor = grid[other][pivot]
                grid[other] = [a - factor * b for a, b in zip(grid[other], grid[pivot], strict=True)]
    return [grid[i][width] if i in used else 0.0 for i in range(width)]

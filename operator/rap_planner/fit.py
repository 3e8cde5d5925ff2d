"""Least squares in pure Python: the coefficients of a fused kernel's latency from measured samples.

The model: launch + (bytes, ops, bytes of the largest feature) each at its own rate, the
last three divided by the share of the full bandwidth that the grid reaches. Errors are relative ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from rap_contract.problem import InvalidDocument, Problem
from rap_contract.profile import Coefficients, KernelSample

CRITERION = 0.10  # a kernel counts as predicted within 10 %, the criterion of the RAP paper (section 7)
QUANTILE = 0.9
FOLDS = 5
GRIDS = tuple(16 * 2 ** (step / 4) for step in range(29))  # programs at full bandwidth: 16 to 2048, tried in turn
NUM_TERMS = 4


def fit(samples: Sequence[KernelSample]) -> Coefficients:
    """Coefficients with the error bar of samples left out of the fit. Raises InvalidDocument for fewer than 8."""
    if len(samples) < 2 * NUM_TERMS:
        hint = "profile more op chains, widths and batches"
        message = f"at least {2 * NUM_TERMS} kernel samples are needed"
        raise InvalidDocument([Problem(path=("samples",), message=message, hint=hint, value=str(len(samples)))])
    full_programs = _full_programs(samples)
    errors = sorted(held_out_errors(samples, full_programs))
    return _coefficients(samples, full_programs, errors[min(len(errors) - 1, int(QUANTILE * len(errors)))])


def held_out_errors(samples: Sequence[KernelSample], full_programs: float) -> list[float]:
    """Relative errors, each sample predicted by coefficients fitted without its fold."""
    errors = []
    for fold in range(FOLDS):
        train = [s for n, s in enumerate(samples) if n % FOLDS != fold]
        fitted = _coefficients(train, full_programs, 0.0)
        errors += [abs(predict(s, fitted) / s.seconds - 1) for n, s in enumerate(samples) if n % FOLDS == fold]
    return errors


def share_within(samples: Sequence[KernelSample], coefficients: Coefficients, ratio: float = CRITERION) -> float:
    """Share of samples predicted within a ratio of what was measured."""
    within = sum(abs(predict(sample, coefficients) / sample.seconds - 1) <= ratio for sample in samples)
    return within / max(len(samples), 1)


def predict(sample: KernelSample, coefficients: Coefficients) -> float:
    """Seconds the coefficients predict for a sample's kernel."""
    row = _row(sample, coefficients.full_programs)
    rates = (
        coefficients.launch_seconds,
        coefficients.seconds_per_byte,
        coefficients.seconds_per_op,
        coefficients.imbalance_seconds_per_byte,
    )
    return sum(value * rate for value, rate in zip(row, rates, strict=True))


def _row(sample: KernelSample, full_programs: float) -> tuple[float, ...]:
    share = 1.0 if sample.programs is None else min(1.0, sample.programs / full_programs)
    largest_bytes = sample.num_bytes * sample.largest_share
    return (1.0, sample.num_bytes / share, sample.num_ops / share, largest_bytes / share)


def _full_programs(samples: Sequence[KernelSample]) -> float:
    if all(sample.programs is None for sample in samples):
        return 1.0

    def squares(candidate: float) -> float:
        fitted = _coefficients(samples, candidate, 0.0)
        return sum((predict(sample, fitted) / sample.seconds - 1) ** 2 for sample in samples)

    return min(GRIDS, key=squares)


def _coefficients(samples: Sequence[KernelSample], full_programs: float, error_ratio: float) -> Coefficients:
    rows = [tuple(value / s.seconds for value in _row(s, full_programs)) for s in samples]
    launch, per_byte, per_op, imbalance = non_negative(rows, [1.0] * len(rows))
    return Coefficients(
        launch_seconds=launch,
        seconds_per_byte=per_byte,
        seconds_per_op=per_op,
        imbalance_seconds_per_byte=imbalance,
        full_programs=full_programs,
        error_ratio=min(error_ratio, 10.0),
    )


def non_negative(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> tuple[float, ...]:
    """Least squares with no negative coefficient: the most negative one is set to zero until none is left."""
    active = list(range(len(rows[0])))
    while active:
        solution = least_squares([[row[column] for column in active] for row in rows], targets)
        worst = min(range(len(active)), key=lambda place: solution[place])
        if solution[worst] >= 0:
            found = dict(zip(active, solution, strict=True))
            return tuple(found.get(column, 0.0) for column in range(len(rows[0])))
        del active[worst]
    return (0.0,) * len(rows[0])


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

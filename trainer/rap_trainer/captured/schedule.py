"""Where the next batch's preprocessing runs inside the captured step. A value.

A window is a place of the training step at which a parallel branch forks; the branch carries fused
kernels, each with its number of programs. Which window and how many programs cost least is
measured, never assumed: see `rap profile` and the planner.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rap_contract.plan import OWN_ROWS, Plan


class Window(StrEnum):
    """Places of the step, in the order in which they begin; the planner's names (`rap_contract.windows`)."""

    INLINE = "inline"
    """On the training stream itself, before everything else: no overlap, the reference of a schedule."""
    EMB_FWD = "emb_fwd"
    """Beside the table lookup."""
    OUTPUT_DIST = "output_dist"
    """Beside the exchange of lookup outputs."""
    MLP_FWD = "mlp_fwd"
    """Beside interaction and top MLP."""
    MLP_BWD = "mlp_bwd"
    """Beside the dense backward chain."""
    GRAD_DIST = "grad_dist"
    """Beside the exchange of embedding gradients and the weight gradients."""
    EMB_BWD = "emb_bwd"
    """Beside the tables' backward and update, and the all-reduce of the dense gradients."""

    @property
    def rank(self) -> int:
        """Position in the step."""
        return list(Window).index(self)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One fused kernel in one window."""

    kernel: int
    """Index among the program's fused kernels, in their order of execution."""
    window: Window
    programs: int | None = None
    """Programs of the launch (grid size); None: the kernel's own full grid."""

    def __post_init__(self) -> None:
        if self.programs is not None and self.programs < 1:
            raise ValueError(f"programs must be at least 1, got {self.programs}")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Every fused kernel with its window."""

    placements: tuple[Placement, ...] = ()
    parts: tuple[tuple[str, ...], ...] = ()
    """Features of each kernel, where a plan names them: launches may be cut in several. Empty: the program's own launches."""

    def __post_init__(self) -> None:
        kernels = [placement.kernel for placement in self.placements]
        if kernels != list(range(len(kernels))):
            raise ValueError(f"placements must list kernels 0..{len(kernels) - 1} in order, got {kernels}")
        ranks = [placement.window.rank for placement in self.placements]
        if ranks != sorted(ranks):
            raise ValueError("a kernel cannot run in an earlier window than the kernel before it")

    @classmethod
    def uniform(cls, num_kernels: int, window: Window, programs: int | None = None) -> Schedule:
        """All kernels in one window."""
        return cls(placements=tuple(Placement(kernel=k, window=window, programs=programs) for k in range(num_kernels)))

    def at(self, window: Window) -> tuple[Placement, ...]:
        """What forks at a window."""
        return tuple(placement for placement in self.placements if placement.window is window)

    @property
    def last_window(self) -> Window:
        """The window in which the last kernel runs."""
        return self.placements[-1].window if self.placements else Window.INLINE


def schedule_of(plan: Plan) -> Schedule:
    """A planner's schedule as the captured runtime runs it. Raises ValueError for a mapping it does not run."""
    moved = sorted(name for name, rank in plan.mapping.items() if rank is not OWN_ROWS)
    if moved:
        raise ValueError(
            f"the plan preprocesses {len(moved)} features on their tables' owners, first {moved[0]}; "
            "the captured runtime preprocesses every feature on its own rows"
        )
    return Schedule(
        placements=tuple(
            Placement(kernel=number, window=Window(each.window), programs=each.programs)
            for number, each in enumerate(plan.schedule)
        ),
        parts=tuple(kernel.features for kernel in plan.kernels),
    )

"""Which draws of samples selections share, and whose picks are found by them. Pure and deterministic."""

from __future__ import annotations

from collections import Counter

from rap_trainer.fusion.stages import Comparison, Draw, Lane, Lowered, Selection, Stage, operands_of


def shared_draws(lowered: Lowered, least: int) -> tuple[Draw, ...]:
    """Draws that so many selections take at least, in order of the first: made once for each row and position."""
    taken = Counter(selection.draw for selection in _readers(lowered) if selection.draw is not None)
    return tuple(draw for draw, number in taken.items() if number >= least)


def selected_by_row(lowered: Lowered, draws: tuple[Draw, ...]) -> frozenset[Selection]:
    """Selections of a shared draw and nothing else, of which only stages read that keep the picks: a row's draw tells where each pick lies."""
    return frozenset(
        selection
        for selection, readers in _readers(lowered).items()
        if selection.draw in draws
        and selection.mode == "none"
        and all(isinstance(reader, Stage) and reader.keeps_picks for reader in readers)
    )


def _readers(lowered: Lowered) -> dict[Selection, list[Lane | Stage | Comparison]]:
    found: dict[Selection, list[Lane | Stage | Comparison]] = {}
    for wave in lowered.waves:
        for fusion in wave:
            for operand in operands_of(fusion):
                if operand.selection is not None:
                    found.setdefault(operand.selection, []).append(fusion)
    return found

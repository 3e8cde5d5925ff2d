"""Which draws of samples selections share, and whose picks are found without being written down. Pure and deterministic."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from rap_trainer.fusion.stages import Comparison, Draw, Lane, Lowered, Selection, Stage, operands_of

Found = Literal["by_row", "by_place"]


def shared_draws(lowered: Lowered, least: int) -> tuple[Draw, ...]:
    """Draws that so many selections take at least, in order of the first: made once for each row and position."""
    taken = Counter(selection.draw for selection in _readers(lowered) if selection.draw is not None)
    return tuple(draw for draw, number in taken.items() if number >= least)


def ways_to_find(lowered: Lowered, draws: tuple[Draw, ...]) -> dict[Selection, Found]:
    """How picks are found that need not be written down, if rows are short enough for their draw and the only nulls are lists of one null.

    by_row: by stages that take the picks of a group in order, which look for the row of each; with a shared draw the row's draw tells its place.
    by_place: by anything else, where no sample is drawn: a row's picks are all its elements.
    """
    found: dict[Selection, Found] = {}
    for selection, readers in _readers(lowered).items():
        in_order = [isinstance(reader, Stage) and reader.keeps_picks for reader in readers]
        if selection.mode == "propagate" or (selection.draw is not None and selection.draw not in draws):
            continue
        if selection.packs and all(in_order):
            found[selection] = "by_row"
        elif selection.packs and selection.draw is None and not any(in_order):
            found[selection] = "by_place"
    return found


def _readers(lowered: Lowered) -> dict[Selection, list[Lane | Stage | Comparison]]:
    found: dict[Selection, list[Lane | Stage | Comparison]] = {}
    for wave in lowered.waves:
        for fusion in wave:
            for operand in operands_of(fusion):
                if operand.selection is not None:
                    found.setdefault(operand.selection, []).append(fusion)
    return found

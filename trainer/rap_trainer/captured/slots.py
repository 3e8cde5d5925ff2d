"""What a step trains on, as fixed buffers: two slots, one trained on while the other is filled.

B rows, F features, T features that are sent (those of split tables several times), D1 columns of the dense input (padding included), P blocks of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rap_trainer.captured.blocks import Blocks
from rap_trainer.captured.exchange import Exchange
from rap_trainer.captured.input_dist import OneHotInputs, Ownership
from rap_trainer.captured.jagged_inputs import JaggedInputs
from rap_trainer.captured.list_exchange import Lists
from rap_trainer.captured.pointwise import Outcome, Targets, num_blocks
from rap_trainer.captured.raw_layout import ALIGNMENT_BYTES, HEADER_BYTES


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One batch's inputs and what came of it."""

    index: int
    dense: torch.Tensor
    """[B, D1] float32; columns past the features are zero."""
    ids_FB: torch.Tensor
    """int64, this rank's rows, features as in `Blocks.order`: what preprocessing writes. Where a feature is absent, any row of its table."""
    present_BS: torch.Tensor | None
    """int8: which features a row has, in the same order; None where every row has every one."""
    header: torch.Tensor
    """`targets.num_rows` and `targets.scale` as bytes, laid out as in a raw buffer."""
    targets: Targets
    inputs: OneHotInputs | JaggedInputs
    """The lookup's input, filled by the exchange."""
    outcome: Outcome
    sent_TB: torch.Tensor
    """What the exchange sends of `ids_FB`, rank-major: its first rows, or a copy that holds those of split tables once for each part."""
    sent_T: torch.Tensor | None
    """Rows of `ids_FB` to copy; None: `sent_TB` are its first rows."""
    replicated: OneHotInputs | JaggedInputs | None = None
    """The input of the lookup of tables of which every rank has a copy."""
    lists: Lists | None = None
    """What preprocessing writes in place of `ids_FB` where rows hold several ids."""

    def to_send(self) -> torch.Tensor:
        """`sent_TB`, as preprocessing has left it."""
        if self.sent_T is not None:
            torch.index_select(self.ids_FB, 0, self.sent_T, out=self.sent_TB)
        return self.sent_TB


def jagged(slot: Slot) -> JaggedInputs:
    """The lookup's input of a slot with lists."""
    assert isinstance(slot.inputs, JaggedInputs)
    return slot.inputs


def make_slots(
    blocks: Blocks, ownership: Ownership, exchange: Exchange, *, dense_width: int, optional: bool = True
) -> tuple[Slot, Slot]:
    """Both slots. `optional`: features may be absent in a row."""
    first, second = (_slot(i, blocks, ownership, exchange, dense_width, optional) for i in range(2))
    return first, second


def _slot(
    index: int, blocks: Blocks, ownership: Ownership, exchange: Exchange, dense_width: int, optional: bool
) -> Slot:
    B, F = blocks.batch_size, len(blocks.order)
    ids_N = exchange.ids(index)
    device = ids_N.device
    ids_FB = torch.zeros(F, B, dtype=torch.int64, device=device)
    sent = blocks.sent
    in_place = sent == tuple(range(len(sent)))
    header = torch.zeros(HEADER_BYTES, dtype=torch.uint8, device=device)
    return Slot(
        index=index,
        dense=torch.zeros(B, dense_width, device=device),
        ids_FB=ids_FB,
        sent_TB=ids_FB[: len(sent)] if in_place else ids_FB.new_zeros(len(sent), B),
        sent_T=None if in_place else torch.tensor(sent, device=device),
        present_BS=torch.ones(B, F, dtype=torch.int8, device=device) if optional else None,
        header=header,
        targets=Targets(
            labels_B=torch.zeros(B, device=device),
            scale=header[ALIGNMENT_BYTES:].view(torch.float32),
            num_rows=header[:4].view(torch.int32),
        ),
        inputs=OneHotInputs(ownership.owned[blocks.rank], ids_N, rows=B * blocks.world_size),
        replicated=OneHotInputs(ownership.replicated, ids_FB[F - blocks.num_replicated :].view(-1), rows=B)
        if blocks.num_replicated
        else None,
        outcome=Outcome(
            logits_B=torch.zeros(B, device=device),
            losses_P=torch.zeros(num_blocks(B), device=device),
            loss_share=torch.zeros(1, device=device),
            loss_sum=torch.zeros(1, device=device),
        ),
    )

"""Names of the places of a training step where preprocessing may run; the captured runtime forks at the same ones."""

from __future__ import annotations

INLINE = "inline"
"""On the training stream, before everything else: no overlap, the reference of every schedule."""
INPUT_DIST = "input_dist"
"""The exchange of ids between ranks. Measured and priced, but nothing is placed in it: it follows preprocessing."""
OPTIMIZER = "optimizer"
"""The dense optimizer's update. It runs beside the tables' update, so what is placed in `emb_bwd` runs beside it."""
HOST_GAPS = "host_gaps"
"""Between two steps: the device waits for the host. Capacity for free, but no step's branch can begin there."""
PLACES = ("emb_fwd", "output_dist", "mlp_fwd", "mlp_bwd", "grad_dist", "emb_bwd")
"""Where a branch may fork, in the order of the step."""
ORDER = {name: number for number, name in enumerate((INLINE, *PLACES))}
"""Position of each place of a schedule; a kernel never runs before its predecessor."""

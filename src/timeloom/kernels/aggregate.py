"""The sum of what a node's neighbours send, forward and backward, without atomics and without a tensor per edge.

On a CPU, numbers of single and double precision go through compiled loops (`loops.py`), which multiply by the diagonals
of a norm while they sum; shorter ones are made single for them. Everything else goes through torch's ``embedding_bag``:
other devices, and sums that torch itself shall differentiate.

Shape letters: E edges, N nodes, F features, M = N + 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from timeloom.kernels.edges import Edges, Rows
from timeloom.kernels.loops import has_loops, is_short, sum_scaled
from timeloom.kernels.norms import Scales

_UNSCALED = Scales(None, None, None)


def bag(table_NF: Tensor, indices_E: Tensor, starts_M: Tensor, weights_E: Tensor | None) -> Tensor:
    """Return, for each row v, the weighted sum of ``table[indices[starts[v]:starts[v + 1]]]``; an empty row is 0."""
    return sum_rows(Rows(starts_M, indices_E, weights_E), table_NF)


def sum_rows(rows: Rows, table_NF: Tensor) -> Tensor:
    """Return the weighted sum of each row's neighbours."""
    if has_loops(rows, table_NF):
        return sum_scaled(rows, _UNSCALED, table_NF)
    if not table_NF.shape[1] or not len(rows.neighbours_E):
        return table_NF.new_zeros(len(rows.starts_M) - 1, table_NF.shape[1])
    weights = None if rows.weights_E is None else rows.weights_E.to(table_NF.dtype)
    table_NF, indices_E = table_NF.contiguous(), rows.neighbours_E
    return embedding_bag(
        indices_E, table_NF, rows.starts_M, mode="sum", include_last_offset=True, per_sample_weights=weights
    )


def _scaled_sum(rows: Rows, scales: Scales, x_NF: Tensor) -> Tensor:
    if has_loops(rows, x_NF):
        return sum_scaled(rows, scales, x_NF)
    if scales.source_N is not None:
        x_NF = x_NF * scales.source_N.to(x_NF.dtype)[:, None]
    summed_NF = sum_rows(rows, x_NF)
    if scales.loop_N is not None:
        summed_NF = summed_NF + x_NF * scales.loop_N.to(x_NF.dtype)[:, None]
    return summed_NF if scales.target_N is None else summed_NF * scales.target_N.to(x_NF.dtype)[:, None]


class _Aggregate(torch.autograd.Function):
    """Forward reads the edges by target; backward reads the same edges by source. Both are sums in a fixed order."""

    @staticmethod
    def forward(ctx: Any, x_NF: Tensor, rows: Rows, back: Rows, scales: Scales) -> Tensor:
        ctx.rows, ctx.back, ctx.scales = rows, back, scales
        return _scaled_sum(rows, scales, x_NF)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        turned = Scales(ctx.scales.target_N, ctx.scales.source_N, ctx.scales.loop_N)
        gradient: Tensor = _Aggregate.apply(gradients[0], ctx.back, ctx.rows, turned)  # type: ignore[no-untyped-call]
        return gradient, None, None, None


def neighbour_sum(edges: Edges, x_NF: Tensor) -> Tensor:
    """Return, for each node, the weighted sum of the rows of the nodes that have an edge to it."""
    return aggregate(edges, _UNSCALED, x_NF)


def aggregate(edges: Edges, scales: Scales, x_NF: Tensor) -> Tensor:
    """Return ``L (A + I) R X``."""
    if len(x_NF) != edges.num_nodes:
        raise ValueError(f"rows of {edges.num_nodes} nodes are to be aggregated, but {len(x_NF)} were given")
    if is_short(x_NF):
        return aggregate(edges, scales, x_NF.float()).to(x_NF.dtype)
    summed: Tensor = _Aggregate.apply(x_NF, edges.into, edges.out_of, scales)  # type: ignore[no-untyped-call]
    return summed

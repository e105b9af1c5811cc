"""The sum of what a node's neighbours send, forward and backward, without atomics and without a tensor per edge.

Shape letters: E edges, N nodes, F features, M = N + 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from timeloom.kernels.edges import Edges, Rows
from timeloom.kernels.norms import Scales


def bag(table_NF: Tensor, indices_E: Tensor, starts_M: Tensor, weights_E: Tensor | None) -> Tensor:
    """Return, for each row v, the weighted sum of ``table[indices[starts[v]:starts[v + 1]]]``; an empty row is 0."""
    if not table_NF.shape[1] or not len(indices_E):
        return table_NF.new_zeros(len(starts_M) - 1, table_NF.shape[1])
    weights = None if weights_E is None else weights_E.to(table_NF.dtype)
    return embedding_bag(
        indices_E, table_NF.contiguous(), starts_M, mode="sum", include_last_offset=True, per_sample_weights=weights
    )


def sum_rows(rows: Rows, table_NF: Tensor) -> Tensor:
    """Return the weighted sum of each row's neighbours."""
    return bag(table_NF, rows.neighbours_E, rows.starts_M, rows.weights_E)


class _NeighbourSum(torch.autograd.Function):
    """Forward reads the edges by target; backward reads the same edges by source. Both are sums in a fixed order."""

    @staticmethod
    def forward(ctx: Any, x_NF: Tensor, edges: Edges) -> Tensor:
        ctx.edges = edges
        return sum_rows(edges.into, x_NF)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return sum_rows(ctx.edges.out_of, gradients[0]), None


def neighbour_sum(edges: Edges, x_NF: Tensor) -> Tensor:
    """Return, for each node, the weighted sum of the rows of the nodes that have an edge to it."""
    if not x_NF.requires_grad:
        return sum_rows(edges.into, x_NF)
    summed: Tensor = _NeighbourSum.apply(x_NF, edges)  # type: ignore[no-untyped-call]
    return summed


def aggregate(edges: Edges, scales: Scales, x_NF: Tensor) -> Tensor:
    """Return ``L (A + I) R X``."""
    if scales.source_N is not None:
        x_NF = x_NF * scales.source_N.to(x_NF.dtype)[:, None]
    summed_NF = neighbour_sum(edges, x_NF)
    if scales.loop_N is not None:
        summed_NF = summed_NF + x_NF * scales.loop_N.to(x_NF.dtype)[:, None]
    return summed_NF if scales.target_N is None else summed_NF * scales.target_N.to(x_NF.dtype)[:, None]

"""How far an aggregation may depart from the exact norm so that less of it changes, and by how much it then does.

With norm `sym` (or `both`, or `push`) one new edge changes a node's source scale, and with it every message of that
node. `lazy_source` and `static_source` change the *definition* of the source scale so that it moves seldom or never;
put into `Scales`, any aggregation is then exact by that definition. `sym_approx_chain` is REAL's Eq. 4, which leaves
every message alone whose own edge did not change; it is here to reproduce the paper.

Shape letters: N nodes, F features, X messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from timeloom.kernels.aggregate import aggregate, sum_rows
from timeloom.kernels.edges import Edges, Rows
from timeloom.kernels.incremental import ChainStep, spread
from timeloom.kernels.norms import Scales

LAZY_EPS = 0.01  # under 1e-3 of the exact rows on a power-law graph of which 2 % of the edges change a snapshot


def lazy_source(before_N: Tensor, exact_N: Tensor, eps: float = LAZY_EPS) -> Tensor:
    """Return the source scales of a snapshot: those in use before it, the exact ones where they differ by over ``eps``.

    A scale that is 0 or becomes 0 is never kept. With ``eps=0`` all are exact. See `lazy_error` for what it costs.
    """
    near_N = (exact_N - before_N).abs() <= eps * before_N.abs()
    return torch.where(near_N & (exact_N != 0), before_N, exact_N)


def lazy_error(eps: float) -> float:
    """Return the bound of ``|lazy - exact|`` in shares of ``L (|A| + I) R |X|``, the sum of the messages' sizes.

    A kept scale r is within ``eps`` of itself of the exact one, so it is off by at most ``eps / (1 - eps)`` of that.
    """
    return eps / (1.0 - eps)


def static_source(reference_N: Tensor, exact_N: Tensor) -> Tensor:
    """Return the frozen source scales of a snapshot (`sym-static-src`): the reference, the exact ones where it is 0.

    What comes back is the reference of the next snapshot, so that a node without one keeps the scale of the snapshot
    in which it first has an edge. Go through the snapshots from the first one on, not from where a group starts:
    otherwise two groups would give one node two scales.
    """
    return torch.where(reference_N != 0, reference_N, exact_N)


def deviation(approx: Tensor, exact: Tensor) -> float:
    """Return ``||approx - exact|| / ||exact||`` (0 where both are 0)."""
    apart = torch.linalg.vector_norm((approx - exact).detach(), dtype=torch.float64)
    size = torch.linalg.vector_norm(exact.detach(), dtype=torch.float64)
    return float(apart / size) if apart > 0 else 0.0


def sym_approx_step(
    before: Edges, after: Edges, scales_before: Scales, scales_after: Scales, *, dtype: torch.dtype = torch.float64
) -> ChainStep:
    """Return what Eq. 4 of REAL adds: ``w L_t R_t`` for an edge that comes, ``- w L_{t-1} R_{t-1}`` for one that goes.

    An edge whose weight changes goes and comes. Removed edges take the coefficients of the snapshot that still had
    them, as the paper prints; loops come with births and go with deaths. The cost is a sort of all edges.
    """
    was, now = _messages(before, scales_before), _messages(after, scales_after)
    keys_X, places = torch.unique(torch.cat([was[0], now[0]]), return_inverse=True)
    none_X = torch.zeros(len(keys_X), dtype=torch.float64, device=keys_X.device)
    old_X = none_X.index_add(0, places[: len(was[0])], was[1])
    new_X = none_X.index_add(0, places[len(was[0]) :], now[1])
    changed_X = torch.nonzero(old_X != new_X)[:, 0]
    keys_X, old_X, new_X = (part.index_select(0, changed_X) for part in (keys_X, old_X, new_X))
    targets_X, sources_X = keys_X // after.num_nodes, keys_X % after.num_nodes
    signed_X = _scaled(new_X, targets_X, sources_X, scales_after) - _scaled(old_X, targets_X, sources_X, scales_before)
    nodes_A, counts_A = torch.unique_consecutive(targets_X, return_counts=True)
    starts_M, signed_X = torch.nn.functional.pad(counts_A.cumsum(0), (1, 0)).int(), signed_X.to(dtype)
    signed = Rows(starts_M, sources_X.int(), signed_X)
    return ChainStep(nodes_A[:0], Rows(starts_M[:1], signed.neighbours_E[:0], signed_X[:0]), nodes_A, signed)


def _messages(edges: Edges, scales: Scales) -> tuple[Tensor, Tensor]:
    """Return ``target * N + source`` and the weight of each edge and each loop."""
    rows = edges.into
    nodes = torch.arange(edges.num_nodes, device=rows.starts_M.device)
    weights_E = torch.ones(len(edges), device=nodes.device) if rows.weights_E is None else rows.weights_E
    loop_N = torch.zeros(len(nodes), device=nodes.device) if scales.loop_N is None else scales.loop_N
    keys_E = rows.row_of_edges.long() * edges.num_nodes + rows.neighbours_E
    return torch.cat([keys_E, nodes * (edges.num_nodes + 1)]), torch.cat([weights_E.double(), loop_N.double()])


def _scaled(values_X: Tensor, targets_X: Tensor, sources_X: Tensor, scales: Scales) -> Tensor:
    for scale_N, nodes_X in ((scales.target_N, targets_X), (scales.source_N, sources_X)):
        values_X = values_X if scale_N is None else values_X * scale_N.index_select(0, nodes_X).double()
    return values_X


def sym_approx_chain(first: Edges, steps: Sequence[ChainStep], scales: Scales, x_NF: Tensor) -> list[Tensor]:
    """Return Eq. 4's *approximation* of ``L_t (A_t + I) R_t X`` for each snapshot of a chain (exact for the first).

    ``scales`` are the first snapshot's; the others are in the steps. Log `deviation` where this is used.
    """
    made = [aggregate(first, scales, x_NF.to(torch.promote_types(x_NF.dtype, torch.float32)))]
    for step in steps:
        made.append(_Amended.apply(made[-1], x_NF.to(made[0].dtype), step))  # type: ignore[no-untyped-call]
    return [out_NF.to(x_NF.dtype) for out_NF in made]


class _Amended(torch.autograd.Function):
    """A snapshot's rows and what a step adds to them."""

    @staticmethod
    def forward(ctx: Any, rows_NF: Tensor, x_NF: Tensor, step: ChainStep) -> Tensor:
        ctx.step = step
        return rows_NF.index_add(0, step.amended_A, sum_rows(step.signed, x_NF))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        d_x_NF = torch.zeros_like(gradients[0])
        spread(ctx.step, gradients[0], d_x_NF)
        return gradients[0], d_x_NF, None

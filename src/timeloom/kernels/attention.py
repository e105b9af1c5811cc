"""Attention over a node's incoming edges: a softmax a row, several heads, forward and backward.

The gradient is written by hand, so that nothing of the size edges x features is ever kept, and the sums run in a fixed
order. Weights of edges are not used; parallel edges count as several neighbours. On a CPU, numbers of single and double
precision go through compiled loops (`attention_forward.py`, `attention_backward.py`), shorter ones are made single for
them; other devices go through torch's own operators.

Shape letters: E edges, N nodes, H heads, D features of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag, leaky_relu

from timeloom.kernels.aggregate import bag
from timeloom.kernels.attention_backward import look_back
from timeloom.kernels.attention_forward import Looked, look
from timeloom.kernels.edges import Edges
from timeloom.kernels.loops import has_loops, is_short


def attend(
    edges: Edges, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, *, loop_N: Tensor | None, slope: float
) -> Tensor:
    """Return, for each node, the mean of its neighbours' values weighed by softmax(leaky_relu(sent + received)).

    ``loop_N`` is 1 where a node also attends to itself. A node that attends to nobody gets 0.
    """
    shape = (edges.num_nodes, value_NHD.shape[1])
    if not shape == tuple(value_NHD.shape[:2]) == tuple(sent_NH.shape) == tuple(received_NH.shape):
        found = [tuple(part.shape) for part in (value_NHD, sent_NH, received_NH)]
        raise ValueError(f"attention of {shape[0]} nodes needs [N, H, D], [N, H] and [N, H], but was given {found}")
    if is_short(value_NHD):
        inputs = (part.float() for part in (value_NHD, sent_NH, received_NH))
        return attend(edges, *inputs, loop_N=loop_N, slope=slope).to(value_NHD.dtype)
    sent_NH, received_NH = sent_NH.to(value_NHD.dtype), received_NH.to(value_NHD.dtype)
    loops = value_NHD.new_zeros(edges.num_nodes) if loop_N is None else loop_N.to(value_NHD.dtype)
    # Inside the function torch differentiates nothing, so loops may do it.
    parts = (value_NHD.detach(), sent_NH.detach(), received_NH.detach())
    run: Any = _ByLoops if has_loops(edges.into, *parts) else _ByTorch
    seen: Tensor = run.apply(value_NHD, sent_NH, received_NH, edges, loops, slope)
    return seen


class _ByLoops(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, edges: Edges, loop_N: Tensor, slope: float
    ) -> Tensor:
        looked = look(edges, value_NHD, sent_NH, received_NH, loop_N=loop_N, slope=slope)
        ctx.edges, ctx.slope = edges, slope
        ctx.save_for_backward(
            value_NHD, sent_NH, received_NH, looked.seen_NHD, looked.most_NH, looked.inverse_NH, looked.own_NH
        )
        return looked.seen_NHD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        value_NHD, sent_NH, received_NH, *looked = ctx.saved_tensors
        inputs = (value_NHD, sent_NH, received_NH)
        return *look_back(ctx.edges, Looked(*looked), gradients[0], inputs, slope=ctx.slope), None, None, None


class _ByTorch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, edges: Edges, loop_N: Tensor, slope: float
    ) -> Tensor:
        source, target = edges.into.neighbours_E, edges.into.row_of_edges
        logit_EH = sent_NH.index_select(0, source) + received_NH.index_select(0, target)
        own_NH = leaky_relu(sent_NH + received_NH, slope)
        logit_EH = leaky_relu(logit_EH, slope)
        most_NH = _row_maxima(edges, logit_EH, own_NH, loop_N)
        share_EH = torch.exp(logit_EH - most_NH.index_select(0, target))
        # A node without a loop gets no share of its own, however large its own logit is.
        own_share_NH = torch.where(loop_N[:, None] > 0, torch.exp(own_NH - most_NH), 0.0)
        total_NH = _sum_by_target(edges, share_EH) + own_share_NH
        inverse_NH = torch.where(total_NH > 0, 1.0 / total_NH, 0.0)
        share_EH = share_EH * inverse_NH.index_select(0, target)
        own_share_NH = own_share_NH * inverse_NH
        seen_NHD = _weighed(edges, value_NHD, share_EH) + own_share_NH[:, :, None] * value_NHD
        ctx.edges, ctx.slope = edges, slope
        ctx.save_for_backward(value_NHD, sent_NH, received_NH, share_EH, own_share_NH, seen_NHD)
        return seen_NHD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (grad_NHD,) = gradients
        value_NHD, sent_NH, received_NH, share_EH, own_share_NH, seen_NHD = ctx.saved_tensors
        edges: Edges = ctx.edges
        source, target = edges.into.neighbours_E, edges.into.row_of_edges
        # d softmax: share * (what this neighbour would add - what was seen), both along the gradient.
        along_NH = (grad_NHD * seen_NHD).sum(2)
        along_EH = torch.stack(
            [_dot(grad_NHD[:, head], target, value_NHD[:, head], source) for head in range(value_NHD.shape[1])], 1
        )
        d_logit_EH = share_EH * (along_EH - along_NH.index_select(0, target))
        d_own_NH = own_share_NH * ((grad_NHD * value_NHD).sum(2) - along_NH)
        raw_EH = sent_NH.index_select(0, source) + received_NH.index_select(0, target)
        d_logit_EH = torch.where(raw_EH > 0, d_logit_EH, d_logit_EH * ctx.slope)
        d_own_NH = torch.where(sent_NH + received_NH > 0, d_own_NH, d_own_NH * ctx.slope)
        d_value_NHD = _weighed_back(edges, grad_NHD, share_EH) + own_share_NH[:, :, None] * grad_NHD
        d_sent_NH = bag(d_logit_EH, edges.order_E, edges.out_of.starts_M, None) + d_own_NH
        d_received_NH = _sum_by_target(edges, d_logit_EH) + d_own_NH
        return d_value_NHD, d_sent_NH, d_received_NH, None, None, None


def _sum_by_target(edges: Edges, values_EH: Tensor) -> Tensor:
    return bag(values_EH, edges.places, edges.into.starts_M, None)


def _row_maxima(edges: Edges, logit_EH: Tensor, own_NH: Tensor, loop_N: Tensor) -> Tensor:
    """Return the largest logit of each row, its own included where it attends to itself (0 for an empty row)."""
    if not len(edges):
        return torch.where(loop_N[:, None] > 0, own_NH, 0.0)
    starts = edges.into.starts_M
    most_NH = embedding_bag(edges.places, logit_EH.contiguous(), starts, mode="max", include_last_offset=True)
    empty_N1 = (starts[1:] == starts[:-1])[:, None]
    with_own_NH = torch.where(empty_N1, own_NH, torch.maximum(most_NH, own_NH))
    return torch.where(loop_N[:, None] > 0, with_own_NH, most_NH)


def _weighed(edges: Edges, value_NHD: Tensor, share_EH: Tensor) -> Tensor:
    rows = edges.into
    heads = [
        bag(value_NHD[:, head], rows.neighbours_E, rows.starts_M, share_EH[:, head].contiguous())
        for head in range(value_NHD.shape[1])
    ]
    return torch.stack(heads, 1)


def _weighed_back(edges: Edges, grad_NHD: Tensor, share_EH: Tensor) -> Tensor:
    rows, share_EH = edges.out_of, share_EH.index_select(0, edges.order_E)
    heads = [
        bag(grad_NHD[:, head], rows.neighbours_E, rows.starts_M, share_EH[:, head].contiguous())
        for head in range(grad_NHD.shape[1])
    ]
    return torch.stack(heads, 1)


def _dot(left_ND: Tensor, left_E: Tensor, right_ND: Tensor, right_E: Tensor) -> Tensor:
    return (left_ND.index_select(0, left_E) * right_ND.index_select(0, right_E)).sum(1)

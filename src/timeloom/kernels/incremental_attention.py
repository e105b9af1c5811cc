"""How attention over one snapshot's edges becomes that of the next, at the cost of what has changed (SPEC 3.3, 3.4).

Per row and head we keep the sum D of ``p = exp(logit - m)`` and the sum M of ``p`` times the neighbours' values; what
is seen is M / D. An edge that comes or goes adds or takes its ``p``. The reference m stays while it serves: a row is
refreshed, that is summed anew with its largest logit as m, when so little is left of the mass P that was ever added
to it that rounding would show (D < tau P), or when an added logit lies far above m. One head that asks for it refreshes
the row for all heads. REAL's own form (Eq. 5-8) keeps no reference and gives NaN for ordinary logits in single
precision.

Weights of edges are not used; parallel edges count as several neighbours; a loop is an edge from a node to itself.

Shape letters: N nodes, H heads, D features of a head, X entries of a step, K rows (R rewritten, A amended).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag, leaky_relu, pad

from timeloom.kernels.aggregate import bag
from timeloom.kernels.edges import Edges, Rows
from timeloom.kernels.incremental import ChainStep, build_step, side

FAR_ABOVE = 30.0  # an added logit may exceed its row's reference by this much (SPEC 3.3)
TAU = {torch.float32: 0.1, torch.float64: 1e-6}  # what must be left of a row's mass (SPEC 3.3)

DOTS_AT_ONCE = 4096


def attention_start(edges: Edges, loop_N: Tensor | None) -> ChainStep:
    """Return the first step of a chain: from nothing to its first snapshot."""
    nothing = Rows(torch.zeros_like(edges.into.starts_M), edges.into.neighbours_E[:0], None)
    return _step(nothing, edges.into, None, loop_N)


def attention_step(
    before: Edges, after: Edges, loop_before_N: Tensor | None, loop_after_N: Tensor | None
) -> ChainStep:  # fmt: skip
    """Return by how many edges each pair of nodes differs; it depends on no parameter and lasts from epoch to epoch."""
    return _step(before.into, after.into, loop_before_N, loop_after_N)


def _step(before: Rows, after: Rows, loop_before_N: Tensor | None, loop_after_N: Tensor | None) -> ChainStep:
    sides = [
        side(Rows(rows.starts_M, rows.neighbours_E, None), None, None if loop_N is None else loop_N > 0)
        for rows, loop_N in ((before, loop_before_N), (after, loop_after_N))
    ]
    return build_step(*sides, device=after.starts_M.device, dtype=torch.float32)


def attend_chain(
    edges: Sequence[Edges], value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor,
    *, steps: Sequence[ChainStep], loops: Sequence[Tensor] | None, slope: float, tau: float | None = None,
) -> list[Tensor]:  # fmt: skip
    """Return what ``attend`` returns on each snapshot of a chain.

    ``steps`` begins with an ``attention_start``; ``loops[t]`` is 1 where a node also attends to itself. A larger
    ``tau`` refreshes earlier; None takes 0.1 in single and 1e-6 in double precision. Sums are kept in single at least.
    """
    assert len(steps) == len(edges)
    shape = (edges[0].num_nodes, value_NHD.shape[1])
    if not shape == tuple(value_NHD.shape[:2]) == tuple(sent_NH.shape) == tuple(received_NH.shape):
        found = [tuple(part.shape) for part in (value_NHD, sent_NH, received_NH)]
        raise ValueError(f"attention of {shape[0]} nodes needs [N, H, D], [N, H] and [N, H], but was given {found}")
    wide = torch.promote_types(value_NHD.dtype, torch.float32)
    chain = _Chain(edges, steps, loops, slope, TAU[wide] if tau is None else tau)
    parts = (part.to(wide) for part in (value_NHD, sent_NH, received_NH))
    seen: tuple[Tensor, ...] = _AttendChain.apply(*parts, chain)  # type: ignore[no-untyped-call]
    return [seen_NHD.to(value_NHD.dtype) for seen_NHD in seen]


@dataclass(frozen=True, slots=True)
class _Chain:
    edges: Sequence[Edges]
    steps: Sequence[ChainStep]
    loops: Sequence[Tensor] | None
    slope: float
    tau: float


@dataclass(frozen=True, slots=True)
class _Messages:
    """What nodes send to each other; the values head by head, so that a head is one table."""

    value_HND: Tensor
    sent_NH: Tensor
    received_NH: Tensor
    slope: float

    def raw_logits(self, sources_X: Tensor, targets_X: Tensor) -> Tensor:
        return self.sent_NH.index_select(0, sources_X) + self.received_NH.index_select(0, targets_X)

    def logits(self, sources_X: Tensor, targets_X: Tensor) -> Tensor:
        return leaky_relu(self.raw_logits(sources_X, targets_X), self.slope)

    def weighed(self, rows: Rows, share_XH: Tensor, head: int) -> Tensor:
        return bag(self.value_HND[head], rows.neighbours_E, rows.starts_M, share_XH[:, head].contiguous())


@dataclass(frozen=True, slots=True)
class _Sums:
    """The running sums, changed in place: m, D, P and M of SPEC 3.3."""

    reference_NH: Tensor
    total_NH: Tensor
    mass_NH: Tensor
    weighed_HND: Tensor


class _AttendChain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, chain: _Chain) -> tuple[Tensor, ...]:
        messages = _Messages(value_NHD.transpose(0, 1).contiguous(), sent_NH, received_NH, chain.slope)
        sums = _Sums(*(torch.zeros_like(part) for part in (*[sent_NH] * 3, messages.value_HND)))
        done: list[tuple[ChainStep, Tensor, Tensor]] = []
        seen: list[Tensor] = []
        for t, edges in enumerate(chain.edges):
            step = chain.steps[t]
            total_AH, mass_AH, share_XH = _signed(step, sums, messages)
            worn_A = ~(total_AH >= chain.tau * mass_AH).all(1)
            if worn_A.any():
                step = _refreshing(step, worn_A, edges, None if chain.loops is None else chain.loops[t])
                total_AH, mass_AH, share_XH = _signed(step, sums, messages)
            _amend(step, sums, messages, total_AH=total_AH, mass_AH=mass_AH, share_XH=share_XH)
            share_XH = torch.cat([_rewrite(step, sums, messages), share_XH])
            inverse_NH = torch.where(sums.total_NH > 0, 1.0 / sums.total_NH, 0.0)
            seen.append(torch.empty_like(value_NHD, memory_format=torch.contiguous_format))
            torch.mul(sums.weighed_HND.transpose(0, 1), inverse_NH[:, :, None], out=seen[t])
            done.append((step, share_XH, inverse_NH))
        ctx.chain, ctx.done = chain, done if any(ctx.needs_input_grad) else []
        ctx.save_for_backward(value_NHD, sent_NH, received_NH, *seen)
        return tuple(seen)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        value_NHD, sent_NH, received_NH, *seen = ctx.saved_tensors
        messages = _Messages(value_NHD.transpose(0, 1).contiguous(), sent_NH, received_NH, ctx.chain.slope)
        back = _Back(*(torch.zeros_like(part) for part in (*[messages.value_HND] * 2, *[sent_NH] * 3)))
        for t in range(len(seen) - 1, -1, -1):
            step, share_XH, inverse_NH = ctx.done[t]
            scaled_NHD = gradients[t] * inverse_NH[:, :, None]
            back.d_weighed_HND.add_(scaled_NHD.transpose(0, 1))
            back.d_total_NH.sub_((scaled_NHD * seen[t]).sum(2))
            _give_back(step, share_XH, messages, back)
            # What a row was before it was summed anew is of no consequence for what follows.
            back.d_weighed_HND.index_fill_(1, step.rewritten_R, 0.0)
            back.d_total_NH.index_fill_(0, step.rewritten_R, 0.0)
        return back.d_value_HND.transpose(0, 1), back.d_sent_NH, back.d_received_NH, None


@dataclass(frozen=True, slots=True)
class _Back:
    """Gradients, changed in place: those of the running sums, from the last snapshot to this one, and of the inputs."""

    d_weighed_HND: Tensor
    d_value_HND: Tensor
    d_total_NH: Tensor
    d_sent_NH: Tensor
    d_received_NH: Tensor


def _signed(step: ChainStep, sums: _Sums, messages: _Messages) -> tuple[Tensor, Tensor, Tensor]:
    """Return D and P of the amended rows after a step, and what each of their entries adds to D."""
    rows, nodes_A = step.signed, step.amended_A
    targets_X = nodes_A.index_select(0, rows.row_of_edges)
    gap_XH = messages.logits(rows.neighbours_E, targets_X) - sums.reference_NH.index_select(0, targets_X)
    share_XH = _times(rows, torch.exp(gap_XH.clamp(max=FAR_ABOVE)))
    # What lies far above the reference has a mass beyond all bounds: whatever is left in the row, it is too little.
    added_XH = share_XH.clamp(min=0).masked_fill(gap_XH > FAR_ABOVE, torch.inf)
    total_AH = sums.total_NH.index_select(0, nodes_A) + _row_sums(rows, share_XH)
    return total_AH, sums.mass_NH.index_select(0, nodes_A) + _row_sums(rows, added_XH), share_XH


def _amend(
    step: ChainStep, sums: _Sums, messages: _Messages, *, total_AH: Tensor, mass_AH: Tensor, share_XH: Tensor
) -> None:
    """Add what the signed entries of a step change."""
    sums.total_NH.index_copy_(0, step.amended_A, total_AH)
    sums.mass_NH.index_copy_(0, step.amended_A, mass_AH)
    for head, weighed_ND in enumerate(sums.weighed_HND):
        weighed_ND.index_add_(0, step.amended_A, messages.weighed(step.signed, share_XH, head))


def _rewrite(step: ChainStep, sums: _Sums, messages: _Messages) -> Tensor:
    """Sum the rewritten rows anew; return what each of their entries adds to D."""
    rows, nodes_R = step.whole, step.rewritten_R
    row_X = rows.row_of_edges
    logit_XH = messages.logits(rows.neighbours_E, nodes_R.index_select(0, row_X))
    most_RH = _row_maxima(rows, logit_XH)
    share_XH = _times(rows, torch.exp(logit_XH - most_RH.index_select(0, row_X)))
    total_RH = _row_sums(rows, share_XH)
    for sums_NH, rows_RH in ((sums.reference_NH, most_RH), (sums.total_NH, total_RH), (sums.mass_NH, total_RH)):
        sums_NH.index_copy_(0, nodes_R, rows_RH)
    for head, weighed_ND in enumerate(sums.weighed_HND):
        weighed_ND.index_copy_(0, nodes_R, messages.weighed(rows, share_XH, head))
    return share_XH


def _give_back(step: ChainStep, share_XH: Tensor, messages: _Messages, back: _Back) -> None:
    """Add what the entries of a step carry back."""
    by_source, sources_X, targets_X = step.by_source, step.sources, step.targets
    senders_S, rows, order_X = by_source.senders_S, by_source.rows, by_source.order_X
    ordered_XH = share_XH.index_select(0, order_X)
    along: list[Tensor] = []
    for head, d_weighed_ND in enumerate(back.d_weighed_HND):
        d_value_SD = bag(d_weighed_ND, rows.neighbours_E, rows.starts_M, ordered_XH[:, head].contiguous())
        back.d_value_HND[head].index_add_(0, senders_S, d_value_SD)
        along.append(_dots(d_weighed_ND, targets_X, messages.value_HND[head], sources_X))
    d_logit_XH = share_XH * (torch.stack(along, 1) + back.d_total_NH.index_select(0, targets_X))
    rising_XH = messages.raw_logits(sources_X, targets_X) > 0
    d_logit_XH = torch.where(rising_XH, d_logit_XH, d_logit_XH * messages.slope)
    back.d_sent_NH.index_add_(0, senders_S, bag(d_logit_XH, order_X, rows.starts_M, None))
    cut = len(step.whole.neighbours_E)
    back.d_received_NH.index_add_(0, step.rewritten_R, _row_sums(step.whole, d_logit_XH[:cut]))
    back.d_received_NH.index_add_(0, step.amended_A, _row_sums(step.signed, d_logit_XH[cut:]))


def _dots(left_ND: Tensor, left_X: Tensor, right_ND: Tensor, right_X: Tensor) -> Tensor:
    """Return the product of each pair of rows, on a CPU in blocks that stay in its cache (several times as fast)."""
    products_X = left_ND.new_empty(len(left_X))
    at_once = DOTS_AT_ONCE if products_X.is_cpu else max(len(left_X), 1)
    for start in range(0, len(left_X), at_once):
        left, right = left_X[start : start + at_once], right_X[start : start + at_once]
        products = left_ND.index_select(0, left) * right_ND.index_select(0, right)
        torch.sum(products, 1, out=products_X[start : start + at_once])
    return products_X


def _refreshing(step: ChainStep, worn_A: Tensor, edges: Edges, loop_N: Tensor | None) -> ChainStep:
    """Return the step in which the worn rows are rewritten instead of amended."""
    kept_K, nodes_K = torch.nonzero(~worn_A)[:, 0], step.amended_A.index_select(0, torch.nonzero(worn_A)[:, 0])
    whole, signed, lists = step.whole, step.signed, _in_lists(edges, nodes_K, loop_N)
    assert whole.weights_E is not None
    assert signed.weights_E is not None
    begin_K = signed.starts_M.index_select(0, kept_K)
    starts_M, _, places_X = _places(begin_K, signed.starts_M.index_select(0, kept_K + 1) - begin_K)
    neighbours_X, weights_X = (part.index_select(0, places_X) for part in (signed.neighbours_E, signed.weights_E))
    rewritten = Rows(
        torch.cat([whole.starts_M, lists.starts_M[1:] + whole.starts_M[-1]]),
        torch.cat([whole.neighbours_E, lists.neighbours_E]),
        torch.cat([whole.weights_E, torch.ones_like(lists.neighbours_E, dtype=whole.weights_E.dtype)]),
    )
    return ChainStep(
        torch.cat([step.rewritten_R, nodes_K]), rewritten,
        step.amended_A.index_select(0, kept_K), Rows(starts_M, neighbours_X, weights_X),
    )  # fmt: skip


def _in_lists(edges: Edges, nodes_K: Tensor, loop_N: Tensor | None) -> Rows:
    """Return the sources of some nodes, each node's own loop last."""
    rows = edges.into
    begin_K, end_K = (rows.starts_M.index_select(0, nodes) for nodes in (nodes_K, nodes_K + 1))
    sizes_K = end_K - begin_K
    if loop_N is not None:
        sizes_K = sizes_K + (loop_N.index_select(0, nodes_K) > 0).int()
    starts_M, row_X, places_X = _places(begin_K, sizes_K)
    # A row that changes by less than it holds has an edge, so there is one.
    sources_X = rows.neighbours_E.index_select(0, places_X.clamp(max=len(edges) - 1))
    is_loop_X = places_X == end_K.index_select(0, row_X)
    return Rows(starts_M, torch.where(is_loop_X, nodes_K.index_select(0, row_X).int(), sources_X), None)


def _places(begin_K: Tensor, sizes_K: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return starts, row and place of every entry of rows of which row k is at ``begin[k], begin[k] + 1, ...``."""
    starts_M = pad(sizes_K.cumsum(0), (1, 0)).int()
    row_X = torch.repeat_interleave(sizes_K.long())
    places_X = torch.arange(len(row_X), device=row_X.device) + (begin_K - starts_M[:-1]).index_select(0, row_X)
    return starts_M, row_X, places_X


def _times(rows: Rows, share_XH: Tensor) -> Tensor:
    """Return the shares, each as often as its edge is there (or is gone: then it is negative)."""
    assert rows.weights_E is not None
    return share_XH * rows.weights_E.to(share_XH.dtype)[:, None]


def _row_sums(rows: Rows, values_XH: Tensor) -> Tensor:
    return bag(values_XH, _own_places(rows), rows.starts_M, None)


def _row_maxima(rows: Rows, logit_XH: Tensor) -> Tensor:
    """Return the largest logit of each row, 0 for an empty one."""
    if not len(logit_XH):
        return logit_XH.new_zeros(len(rows.starts_M) - 1, logit_XH.shape[1])
    return embedding_bag(_own_places(rows), logit_XH, rows.starts_M, mode="max", include_last_offset=True)


def _own_places(rows: Rows) -> Tensor:
    return torch.arange(len(rows.neighbours_E), dtype=torch.int32, device=rows.starts_M.device)

"""How the sums over neighbours of one snapshot become those of the next, at the cost of what has changed.

A chain is a run of consecutive snapshots with the same nodes and the same features. With ``S_t = A_t R_t X`` (SPEC 3.1)
and static X, the difference of two snapshots is a sparse matrix ``A_t R_t - A_{t-1} R_{t-1}`` without parameters. A row
of it that is no shorter than the row of ``A_t R_t`` itself is not worth adding: such a row is summed anew. So a step
never costs more than a full pass, and a row that has become empty is exactly 0. A row is also summed anew when the
coefficients that change outweigh those that it then has: rounding grows by at most a factor of 2 at a step, however
heavy the edges were that have gone.

Shape letters: N nodes, F features, R rewritten rows, A amended rows, X entries of a step, S sending nodes, M rows + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from timeloom.jit import kernel
from timeloom.kernels.aggregate import aggregate, sum_rows
from timeloom.kernels.edges import Edges, Rows
from timeloom.kernels.norms import Scales

Int32s = NDArray[np.int32]
Float64s = NDArray[np.float64]
Int8s = NDArray[np.int8]
Side = tuple[Int32s, Int32s, Float64s, Float64s]
"""A sparse matrix: row starts, columns, values, and what is added on the diagonal."""


@dataclass(frozen=True, slots=True)
class BySource:
    """The entries of a step by the node that sends them."""

    senders_S: Tensor
    rows: Rows
    """Each sender's targets (nodes) and coefficients."""
    order_X: Tensor
    """Where each entry lies in the step: first those of ``whole``, then those of ``signed``."""


@dataclass(frozen=True)
class ChainStep:
    """What turns the sums of one snapshot into the next one's; rows that it does not name stay as they are."""

    rewritten_R: Tensor
    whole: Rows
    """All sources of each rewritten row, with what the next snapshot multiplies them by."""
    amended_A: Tensor
    signed: Rows
    """What each amended row gains or loses: sources, and the differences of what they are multiplied by."""

    @property
    def num_entries(self) -> int:
        """The number of rows of features that the step reads: its cost, to be held against the number of edges."""
        return len(self.whole.neighbours_E) + len(self.signed.neighbours_E)

    @property
    def sources(self) -> Tensor:
        """The node that each entry comes from."""
        return torch.cat([self.whole.neighbours_E, self.signed.neighbours_E])

    @property
    def targets(self) -> Tensor:
        """The node that each entry goes to."""
        pairs = ((self.rewritten_R, self.whole), (self.amended_A, self.signed))
        return torch.cat([nodes.index_select(0, rows.row_of_edges).int() for nodes, rows in pairs])

    @cached_property
    def by_source(self) -> BySource:
        """The same entries by source; made when a gradient first asks for them."""
        assert self.whole.weights_E is not None
        assert self.signed.weights_E is not None
        sources_X, order_X = torch.sort(self.sources, stable=True)
        senders_S, counts_S = torch.unique_consecutive(sources_X, return_counts=True)
        starts_M = torch.nn.functional.pad(counts_S.cumsum(0), (1, 0)).int()
        weights_X = torch.cat([self.whole.weights_E, self.signed.weights_E])
        rows = Rows(starts_M, self.targets.index_select(0, order_X), weights_X.index_select(0, order_X))
        return BySource(senders_S.long(), rows, order_X.int())


def collect(step: ChainStep, sums_NF: Tensor, x_NF: Tensor) -> None:
    """Turn the sums of one snapshot into those of the next, in place."""
    sums_NF.index_copy_(0, step.rewritten_R, sum_rows(step.whole, x_NF))
    sums_NF.index_add_(0, step.amended_A, sum_rows(step.signed, x_NF))


def spread(step: ChainStep, d_sums_NF: Tensor, d_x_NF: Tensor) -> None:
    """Add to ``d_x`` what the entries of a step carry back from the gradient of its sums."""
    d_x_NF.index_add_(0, step.by_source.senders_S, sum_rows(step.by_source.rows, d_sums_NF))


def aggregate_chain(
    first: Edges, steps: Sequence[ChainStep], scales: Sequence[Scales], x_NF: Tensor
) -> list[Tensor]:  # fmt: skip
    """Return ``L_t (A_t + I) R_t X`` for each snapshot of a chain; ``first`` is where it starts.

    There is one step less than there are scales. Sums are kept in single precision at least.
    """
    assert len(scales) == len(steps) + 1
    wide_NF = x_NF.to(torch.promote_types(x_NF.dtype, torch.float32))
    made: tuple[Tensor, ...] = _Chain.apply(wide_NF, first, steps, scales)  # type: ignore[no-untyped-call]
    return [out_NF.to(x_NF.dtype) for out_NF in made]


class _Chain(torch.autograd.Function):
    """Forward walks the chain; backward walks it from its end with the gradient of the running sums (SPEC 3.4).

    The sums are linear in X, so nothing is kept for the backward but the steps themselves.
    """

    @staticmethod
    def forward(
        ctx: Any, x_NF: Tensor, first: Edges, steps: Sequence[ChainStep], scales: Sequence[Scales]
    ) -> tuple[Tensor, ...]:
        ctx.first, ctx.steps, ctx.scales = first, steps, scales
        sums_NF = aggregate(first, Scales(scales[0].source_N, None, None), x_NF)
        made = [_finished(sums_NF, x_NF, scales[0])]
        for step, now in zip(steps, scales[1:], strict=True):
            collect(step, sums_NF, x_NF)
            made.append(_finished(sums_NF, x_NF, now))
        return tuple(made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_x_NF, d_sums_NF = torch.zeros_like(gradients[0]), torch.zeros_like(gradients[0])
        for t in range(len(gradients) - 1, -1, -1):
            _add_scaled(d_sums_NF, gradients[t], ctx.scales[t].target_N)
            own_N = _own(ctx.scales[t])
            if own_N is not None:
                _add_scaled(d_x_NF, gradients[t], own_N)
            if t > 0:
                spread(ctx.steps[t - 1], d_sums_NF, d_x_NF)
                d_sums_NF.index_fill_(0, ctx.steps[t - 1].rewritten_R, 0.0)
        _add_scaled(d_x_NF, sum_rows(ctx.first.out_of, d_sums_NF), ctx.scales[0].source_N)
        return d_x_NF, None, None, None


def _finished(sums_NF: Tensor, x_NF: Tensor, scales: Scales) -> Tensor:
    """Return ``L (S + loop R X)`` in memory of its own."""
    target_N = scales.target_N
    out_NF = sums_NF.clone() if target_N is None else sums_NF * target_N.to(sums_NF.dtype)[:, None]
    own_N = _own(scales)
    if own_N is not None:
        _add_scaled(out_NF, x_NF, own_N)
    return out_NF


def _own(scales: Scales) -> Tensor | None:
    """Return what a node's own row is multiplied by, or None where there are no self loops."""
    if scales.loop_N is None:
        return None
    own_N = scales.loop_N
    for scale_N in (scales.source_N, scales.target_N):
        own_N = own_N if scale_N is None else own_N * scale_N
    return own_N


def _add_scaled(into_NF: Tensor, rows_NF: Tensor, scale_N: Tensor | None) -> None:
    if scale_N is None:
        into_NF.add_(rows_NF)
    else:
        into_NF.addcmul_(rows_NF, scale_N.to(rows_NF.dtype)[:, None])


def step_between(
    before: Edges, after: Edges, scales_before: Scales, scales_after: Scales, *, dtype: torch.dtype = torch.float32
) -> ChainStep:
    """Return what turns the sums ``A R X`` of one snapshot into those of the next; one pass over the edges of both.

    It depends on no parameter, so it can be kept from epoch to epoch.
    """
    sides = (side(before.into, scales_before.source_N, None), side(after.into, scales_after.source_N, None))
    return build_step(*sides, device=after.into.starts_M.device, dtype=dtype)


def side(rows: Rows, source_N: Tensor | None, loop_N: Tensor | None) -> Side:
    """Return the operator ``A R + loop`` of a snapshot for the loop that compares two of them."""
    starts, sources = (part.cpu().contiguous().numpy() for part in (rows.starts_M, rows.neighbours_E))
    values = np.ones(len(sources)) if rows.weights_E is None else _doubles(rows.weights_E)
    if source_N is not None:
        values = values * _doubles(source_N)[sources]
    return starts, sources, values, np.zeros(len(starts) - 1) if loop_N is None else _doubles(loop_N)


def _doubles(values: Tensor) -> Float64s:
    doubles: Float64s = values.detach().to("cpu", torch.float64).contiguous().numpy()
    return doubles


def build_step(before: Side, after: Side, *, device: torch.device, dtype: torch.dtype) -> ChainStep:
    """Return the step between two operators."""
    num_nodes, most_after = len(after[0]) - 1, len(after[1]) + len(after[0])
    if len(before[0]) - 1 != num_nodes:
        raise ValueError(f"the snapshots of a chain have the same nodes, not {len(before[0]) - 1} and then {num_nodes}")
    kinds_N, sizes_N = np.empty(num_nodes, np.int8), np.empty(num_nodes, np.int32)
    # Room for the worst case costs nothing where it is not written to.
    whole, signed = (
        (np.empty(most, np.int32), np.empty(most))
        for most in (most_after, most_after + len(before[1]))
    )  # fmt: skip
    _compare(*before, *after, kinds_N, sizes_N, *whole, *signed)
    parts: list[tuple[Tensor, Rows]] = []
    for kind, (sources, values) in ((_REWRITTEN, whole), (_AMENDED, signed)):
        nodes = np.flatnonzero(kinds_N == kind)
        starts = np.zeros(len(nodes) + 1, np.int32)
        np.cumsum(sizes_N[nodes], out=starts[1:])
        weights = torch.from_numpy(values[: starts[-1]]).to(device, dtype, copy=True)
        neighbours = torch.from_numpy(sources[: starts[-1]]).to(device, copy=True)
        parts.append(
            (torch.from_numpy(nodes).to(device), Rows(torch.from_numpy(starts).to(device), neighbours, weights))
        )
    return ChainStep(*parts[0], *parts[1])


_KEPT, _REWRITTEN, _AMENDED = 0, 1, 2
_NOBODY = 2**31 - 1


@kernel(
    "void(int32[::1], int32[::1], float64[::1], float64[::1], int32[::1], int32[::1], float64[::1], float64[::1], "
    "int8[::1], int32[::1], int32[::1], float64[::1], int32[::1], float64[::1])"
)
def _compare(
    old_starts: Int32s, old_sources: Int32s, old_values: Float64s, old_loops: Float64s,
    new_starts: Int32s, new_sources: Int32s, new_values: Float64s, new_loops: Float64s,
    kinds: Int8s, sizes: Int32s,
    whole_sources: Int32s, whole_values: Float64s, signed_sources: Int32s, signed_values: Float64s,
) -> None:  # fmt: skip
    whole_end, signed_end = 0, 0
    for v in range(len(kinds)):
        i, j, i_end, j_end = old_starts[v], new_starts[v], old_starts[v + 1], new_starts[v + 1]
        own = old_loops[v] != 0.0 or new_loops[v] != 0.0
        n, present, moved, left = signed_end, 0, 0.0, 0.0
        while own or i < i_end or j < j_end:
            u = v if own else _NOBODY
            if i < i_end:
                u = min(u, old_sources[i])
            if j < j_end:
                u = min(u, new_sources[j])
            old, new = 0.0, 0.0
            if own and u == v:
                old, new, own = old_loops[v], new_loops[v], False
            while i < i_end and old_sources[i] == u:
                old += old_values[i]
                i += 1
            while j < j_end and new_sources[j] == u:
                new += new_values[j]
                j += 1
            present += new != 0.0
            moved += abs(new - old)
            left += abs(new)
            if old != new:
                signed_sources[n], signed_values[n] = u, new - old
                n += 1
        if n == signed_end:
            kinds[v], sizes[v] = _KEPT, 0
        elif n - signed_end < present and moved < left:
            kinds[v], sizes[v] = _AMENDED, n - signed_end
            signed_end = n
        else:
            n = whole_end
            for j in range(new_starts[v], j_end):
                whole_sources[n], whole_values[n] = new_sources[j], new_values[j]
                n += 1
            if new_loops[v] != 0.0:
                whole_sources[n], whole_values[n] = v, new_loops[v]
                n += 1
            kinds[v], sizes[v] = _REWRITTEN, n - whole_end
            whole_end = n

"""What a window's nodes see: rows of a table, taken through a short list of affine maps, block by block and back.

The last map is multiplied together with the state (`blocked_cells`), so its input lies beside the state in `x_BK`.

Shape letters: N nodes, R rows of a table, A its columns, B rows of a block, Z columns that the last map sees, I and O
columns of a map, G of the last one, K = Z + H.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from timeloom.kernels.products import Kinds, Products
from timeloom.kernels.workspace import Lease


@dataclass(frozen=True, slots=True)
class Affine:
    """``x W + b``, or ``relu(x) W + b``."""

    weight_IO: Tensor
    bias_O: Tensor | None
    relu: bool = False


def mapped(rows_NI: Tensor, maps: tuple[Affine, ...]) -> Tensor:
    """Return what rows become, map by map."""
    for step in maps:
        rows_NI = torch.relu(rows_NI) if step.relu else rows_NI
        bias = step.bias_O
        rows_NI = rows_NI @ step.weight_IO if bias is None else torch.addmm(bias, rows_NI, step.weight_IO)
    return rows_NI


@dataclass(frozen=True, slots=True)
class Sight:
    """What the nodes see of one snapshot: node v sees ``rows[index[v]]``."""

    rows_RA: Tensor
    index_N: Tensor | None
    """None where node v sees row v."""
    alive_N: Tensor | None
    """bool: where it is false the state is held and the output is 0. None where all go on."""


def rows_seen(sight: Sight, block: slice, out_BA: Tensor) -> Tensor:
    """Return what a block's nodes see, with the dtype of `out`: the table's own memory if it will do, else `out`."""
    if sight.index_N is None:
        rows = sight.rows_RA[block]
        return rows if rows.dtype == out_BA.dtype else out_BA.copy_(rows)
    index = sight.index_N[block]
    if sight.rows_RA.dtype == out_BA.dtype:
        return torch.index_select(sight.rows_RA, 0, index, out=out_BA)
    return out_BA.copy_(sight.rows_RA.index_select(0, index))


class Front:
    """The maps of one pass with one worker's memory; there is at least one map.

    `inner` are the inputs of the maps between the first and the last, kept from forward to backward.
    """

    def __init__(self, maps: tuple[Affine, ...], most_rows: int, kinds: Kinds, lease: Lease) -> None:
        self._maps = maps
        self._weights = [step.weight_IO.to(kinds.factor) for step in maps]
        self._biases = [None if step.bias_O is None else step.bias_O.to(kinds.exact) for step in maps]
        widths = [step.weight_IO.shape[0] for step in maps]
        self._exact = [lease.take((most_rows, width), kinds.exact, kinds.device) for width in widths]
        self._factor = [lease.take((most_rows, width), kinds.factor, kinds.device) for width in widths]
        self.weight_sums = [torch.zeros_like(step.weight_IO, dtype=kinds.exact) for step in maps]
        self.bias_sums = [self.weight_sums[0].new_zeros(step.weight_IO.shape[1]) for step in maps[:-1]]

    def _first(self, sight: Sight, block: slice) -> Tensor:
        out = self._factor[0][: block.stop - block.start]
        rows = rows_seen(sight, block, out)
        return torch.clamp_min(rows, 0.0, out=out) if self._maps[0].relu else rows

    def forward(self, sight: Sight, block: slice, x_BK: Tensor, *, inner: tuple[Tensor, ...], do: Products) -> None:
        """Write the input of the last map into the first columns of `x`, and those of the maps before it."""
        now = self._first(sight, block)
        last = x_BK[:, : self._exact[-1].shape[1]]
        if len(self._maps) == 1:
            last.copy_(now)
            return
        for place, out in enumerate((*inner, last)):
            exact = out if out.dtype == self._exact[0].dtype else self._exact[place + 1][: len(out)]
            do.put(now, self._weights[place], self._biases[place], exact)
            if self._maps[place + 1].relu:
                exact.clamp_min_(0.0)
            now = exact if exact is out else out.copy_(exact)

    def backward(
        self, sight: Sight, block: slice, x_BK: Tensor, d_seen_BG: Tensor, *, inner: tuple[Tensor, ...], do: Products
    ) -> Tensor | None:
        """Add the gradients of the maps, given that of the last one's output as a factor; return that of the rows.

        The last bias is left out: its gradient is that of the gates. None where the rows need no gradient.
        """
        last = x_BK[:, : self._exact[-1].shape[1]]
        inputs = (last,) if len(self._maps) == 1 else (self._first(sight, block), *inner, last)
        now = d_seen_BG
        for place in reversed(range(len(self._maps))):
            seen = inputs[place]
            do.add(seen.t(), now, self.weight_sums[place])
            if not place and not sight.rows_RA.requires_grad:
                return None
            if not place:
                exact = self._exact[0][: len(now)]
                do.put(now, self._weights[0].t(), None, exact)
                return _past_relu(exact, seen) if self._maps[0].relu else exact
            # The first map's input may lie in its memory for factors, the others' do not.
            now = torch.mm(now, self._weights[place].t(), out=self._factor[place][: len(now)])
            now = _past_relu(now, seen) if self._maps[place].relu else now
            self.bias_sums[place - 1].add_(now.sum(0, dtype=self.bias_sums[place - 1].dtype))
        raise AssertionError("there is at least one map")


def _past_relu(d_BI: Tensor, seen_BI: Tensor) -> Tensor:
    """Let gradients through, in place, where what was seen is above 0 (many times as fast as filling by a mask)."""
    if d_BI.dtype != seen_BI.dtype:
        return d_BI.mul_(seen_BI > 0)
    passed: Tensor = torch.ops.aten.threshold_backward.grad_input(d_BI, seen_BI, 0, grad_input=d_BI)
    return passed

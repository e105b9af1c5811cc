"""The layers that models are made of.

Shape letters: N nodes, F features, H hidden size, D size of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from timeloom.kernels import blocked_cells, cells
from timeloom.kernels.front import Affine, mapped
from timeloom.kernels.norms import Norm
from timeloom.nn.model import View


def glorot(*shape: int) -> nn.Parameter:
    """Return a weight [in, out] drawn as Glorot and Bengio do."""
    weight = torch.empty(shape)
    nn.init.xavier_uniform_(weight)
    return nn.Parameter(weight)


def spread(size: int, *shape: int) -> nn.Parameter:
    """Return a weight drawn evenly from +-1/sqrt(size), as torch's recurrent cells do."""
    bound = 1.0 / math.sqrt(size)
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


def convolved(
    view: View, x_NF: Tensor, norm: Norm, affine: Affine, *, project: Callable[[Tensor], Tensor]
) -> tuple[Tensor, tuple[Affine, ...]]:
    """Return the rows of ``P_t X W + b``, and what they are yet to be multiplied by; ``project`` multiplies by W."""
    num_in, num_out = affine.weight_IO.shape
    if num_in <= num_out or view.knows(x_NF, norm):
        return view.aggregate(x_NF, norm), (affine,)
    rows_NF = view.aggregate(view.once(x_NF, project), norm)
    return rows_NF if affine.bias_O is None else rows_NF + affine.bias_O, ()


class Convolution(nn.Module):
    """``P_t X W + b``. It multiplies by W first where that makes rows shorter (SPEC D2.5); both orders are exact.

    Where ``P_t X`` is at hand there is nothing to aggregate, so it is multiplied last.
    """

    def __init__(self, num_in: int, num_out: int, norm: Norm) -> None:
        super().__init__()
        self.weight = glorot(num_in, num_out)
        self.bias = nn.Parameter(torch.zeros(num_out))
        self.norm = norm

    def forward(self, view: View, x_NF: Tensor) -> Tensor:
        """Return the convolved rows."""
        return mapped(*self.parts(view, x_NF))

    def parts(self, view: View, x_NF: Tensor) -> tuple[Tensor, tuple[Affine, ...]]:
        """Return rows, and what they are yet to be multiplied by."""
        return convolved(view, x_NF, self.norm, Affine(self.weight, self.bias), project=self.project)

    def project(self, x_NF: Tensor) -> Tensor:
        """Return ``X W``."""
        return x_NF @ self.weight


class GraphAttention(nn.Module):
    """Graph attention (GAT) with self loops; the heads lie one beside the other in the output."""

    def __init__(self, num_in: int, num_out: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.weight = glorot(num_in, num_out)
        self.sent = glorot(heads, num_out // heads)
        self.received = glorot(heads, num_out // heads)
        self.bias = nn.Parameter(torch.zeros(num_out))

    def parts(self, view: View, x_NF: Tensor) -> tuple[Tensor, tuple[Affine, ...]]:
        """Return the attended rows; nothing is left to multiply them by."""
        seen_NHD = view.attend(*view.once(x_NF, self.project), self_loops=True, slope=0.2)
        return seen_NHD.flatten(1) + self.bias, ()

    def project(self, x_NF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what each node has to say, and how much it makes of itself as a source and as a target.

        A head's own weights are multiplied into the projection, so that all of it is one product: two more columns a
        head cost next to nothing beside the others, and several times as much by themselves.
        """
        heads = len(self.sent)
        by_head_FHD = self.weight.view(-1, heads, self.sent.shape[1])
        ends = [(by_head_FHD * part).sum(2) for part in (self.sent, self.received)]
        rows = x_NF @ torch.cat([self.weight, *ends], 1)
        value, sent_NH, received_NH = torch.split(rows, [self.weight.shape[1], heads, heads], 1)
        return value.reshape(len(rows), *self.sent.shape), sent_NH, received_NH


class Gru(nn.Module):
    """A GRU in two parts: `see` (the input side, which snapshots may share), and `step` or `cell`."""

    def __init__(self, num_in: int, hidden: int) -> None:
        super().__init__()
        self.weight_in, self.bias_in = spread(hidden, num_in, 3 * hidden), spread(hidden, 3 * hidden)
        self.weight_h, self.bias_h = spread(hidden, 3 * hidden, hidden), spread(hidden, 3 * hidden)

    def see(self, *, relu: bool) -> Affine:
        """Return the map that makes the input side of the gates."""
        return Affine(self.weight_in, self.bias_in, relu)

    def step(self, seen_NG: Tensor, h_NH: Tensor) -> Tensor:
        """Return the new state."""
        return cells.gru(seen_NG, h_NH, self.weight_h, self.bias_h)

    def cell(self) -> blocked_cells.Gru:
        """Return the same, for blocks of nodes."""
        return blocked_cells.Gru(self.weight_h, self.bias_h)


class Lstm(nn.Module):
    """An LSTM in two parts: `see` (the input side, which snapshots may share), and `step` or `cell`."""

    def __init__(self, num_in: int, hidden: int) -> None:
        super().__init__()
        self.weight_in, self.bias = spread(hidden, num_in, 4 * hidden), spread(hidden, 4 * hidden)
        self.weight_h = spread(hidden, 4 * hidden, hidden)

    def see(self, *, relu: bool) -> Affine:
        """Return the map that makes the input side of the gates."""
        return Affine(self.weight_in, self.bias, relu)

    def step(self, seen_NG: Tensor, h_NH: Tensor, c_NH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new output and the new memory."""
        return cells.lstm(seen_NG, h_NH, c_NH, self.weight_h)

    def cell(self) -> blocked_cells.Lstm:
        """Return the same, for blocks of nodes."""
        return blocked_cells.Lstm(self.weight_h)

"""The layers that models are made of.

Shape letters: N nodes, F features, H hidden size, D size of a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from timeloom.kernels import cells
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


class Convolution(nn.Module):
    """``P_t X W + b``. It multiplies by W first where that makes rows shorter (SPEC D2.5); both orders are exact."""

    def __init__(self, num_in: int, num_out: int, norm: Norm) -> None:
        super().__init__()
        self.weight = glorot(num_in, num_out)
        self.bias = nn.Parameter(torch.zeros(num_out))
        self.norm = norm

    def forward(self, view: View, x_NF: Tensor) -> Tensor:
        """Return the convolved rows."""
        num_in, num_out = self.weight.shape
        if num_in <= num_out:
            return torch.addmm(self.bias, view.aggregate(x_NF, self.norm), self.weight)
        return view.aggregate(x_NF @ self.weight, self.norm) + self.bias


class GraphAttention(nn.Module):
    """Graph attention (GAT) with self loops; the heads lie one beside the other in the output."""

    def __init__(self, num_in: int, num_out: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.weight = glorot(num_in, num_out)
        self.sent = glorot(heads, num_out // heads)
        self.received = glorot(heads, num_out // heads)
        self.bias = nn.Parameter(torch.zeros(num_out))

    def forward(self, view: View, x_NF: Tensor) -> Tensor:
        """Return the attended rows."""
        value_NHD = (x_NF @ self.weight).view(len(x_NF), self._heads, -1)
        sent_NH, received_NH = (value_NHD * self.sent).sum(2), (value_NHD * self.received).sum(2)
        seen_NHD = view.attend(value_NHD, sent_NH, received_NH, self_loops=True, slope=0.2)
        return seen_NHD.reshape(len(seen_NHD), -1) + self.bias


class Gru(nn.Module):
    """A GRU in two parts: `see` (the input side, which snapshots may share) and `step`."""

    def __init__(self, num_in: int, hidden: int) -> None:
        super().__init__()
        self.weight_in, self.bias_in = spread(hidden, num_in, 3 * hidden), spread(hidden, 3 * hidden)
        self.weight_h, self.bias_h = spread(hidden, 3 * hidden, hidden), spread(hidden, 3 * hidden)

    def see(self, x_NF: Tensor) -> Tensor:
        """Return the input side of the gates."""
        return torch.addmm(self.bias_in, x_NF, self.weight_in)

    def step(self, seen_NG: Tensor, h_NH: Tensor) -> Tensor:
        """Return the new state."""
        return cells.gru(seen_NG, h_NH, self.weight_h, self.bias_h)


class Lstm(nn.Module):
    """An LSTM in two parts: `see` (the input side, which snapshots may share) and `step`."""

    def __init__(self, num_in: int, hidden: int) -> None:
        super().__init__()
        self.weight_in, self.bias = spread(hidden, num_in, 4 * hidden), spread(hidden, 4 * hidden)
        self.weight_h = spread(hidden, 4 * hidden, hidden)

    def see(self, x_NF: Tensor) -> Tensor:
        """Return the input side of the gates."""
        return torch.addmm(self.bias, x_NF, self.weight_in)

    def step(self, seen_NG: Tensor, h_NH: Tensor, c_NH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new output and the new memory."""
        return cells.lstm(seen_NG, h_NH, c_NH, self.weight_h)

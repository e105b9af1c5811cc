"""What turns the rows of nodes into predictions: of nodes, or of pairs of nodes.

Shape letters: N nodes, H the model's output size, P pairs, K outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from timeloom.nn.layers import glorot


class NodeHead(nn.Module):
    """A linear map of each node's row."""

    def __init__(self, num_in: int, num_out: int, *, dropout: float) -> None:
        super().__init__()
        self._dropout = dropout
        self.linear = nn.Linear(num_in, num_out)

    def forward(self, out_NH: Tensor) -> Tensor:
        """Return [N, K]."""
        predicted: Tensor = self.linear(dropout(out_NH, self._dropout, self.training))
        return predicted


class PairHead(nn.Module):
    """A small network of both ends' rows and their product. What belongs to one end is computed once a node."""

    def __init__(self, num_in: int, num_out: int, *, dropout: float) -> None:
        super().__init__()
        self._dropout = dropout
        width = max(16, min(num_in, 64))
        self.source, self.target = glorot(num_in, width), glorot(num_in, width)
        self.product = glorot(num_in, width)
        self.bias = nn.Parameter(torch.zeros(width))
        self.last = nn.Linear(width, num_out)

    def ends(self, out_NH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `score` needs of the nodes."""
        out_NH = dropout(out_NH, self._dropout, self.training)
        return torch.addmm(self.bias, out_NH, self.source), out_NH @ self.target, out_NH

    def score(self, ends: tuple[Tensor, Tensor, Tensor], source_P: Tensor, target_P: Tensor) -> Tensor:
        """Return [P, K]."""
        as_source, as_target, out_NH = ends
        both_PH = out_NH.index_select(0, source_P) * out_NH.index_select(0, target_P)
        apart = as_source.index_select(0, source_P) + as_target.index_select(0, target_P)
        scored: Tensor = self.last(torch.relu(torch.addmm(apart, both_PH, self.product)))
        return scored


class DotHead(nn.Module):
    """The product of both ends' rows, after a linear map for each end: the score of a pair depends on its direction."""

    def __init__(self, num_in: int, *, dropout: float) -> None:
        super().__init__()
        self._dropout = dropout
        self.source, self.target = glorot(num_in, num_in), glorot(num_in, num_in)
        self.bias = nn.Parameter(torch.zeros(1))

    def ends(self, out_NH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `score` needs of the nodes."""
        out_NH = dropout(out_NH, self._dropout, self.training)
        return out_NH @ self.source, out_NH @ self.target, out_NH

    def score(self, ends: tuple[Tensor, Tensor, Tensor], source_P: Tensor, target_P: Tensor) -> Tensor:
        """Return [P, 1]."""
        both_PH = ends[0].index_select(0, source_P) * ends[1].index_select(0, target_P)
        return both_PH.sum(1, keepdim=True) + self.bias


Head = NodeHead | PairHead | DotHead

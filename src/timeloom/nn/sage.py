"""`sage_linear` and `sage_attention`: GraphSAGE on every snapshot, then a look over the last few (DistDy).

Shape letters: N nodes, F features, H hidden size, S snapshots of the span, A heads, D size of a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from timeloom.kernels.norms import Norm
from timeloom.nn.layers import glorot, spread
from timeloom.nn.model import LayeredModel, Memory, PerNode, Rows, State, View
from timeloom.nn.settings import ModelSettings

_MEAN = Norm("mean", self_loops=False)


class SageConvolution(nn.Module):
    """``X W_own + mean_t(X) W_near + b``."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.own, self.near = glorot(num_in, num_out), glorot(num_in, num_out)
        self.bias = nn.Parameter(torch.zeros(num_out))

    def forward(self, view: View, x_NF: Tensor) -> Tensor:
        """Return the convolved rows."""
        own_NH = torch.addmm(self.bias, x_NF, self.own)
        if self.near.shape[0] <= self.near.shape[1] or view.knows(x_NF, _MEAN):
            return torch.addmm(own_NH, view.aggregate(x_NF, _MEAN), self.near)
        return own_NH + view.aggregate(view.once(x_NF, self.project), _MEAN)

    def combine(self, x_NF: Tensor, mean_NF: Tensor) -> Tensor:
        """Return the convolved rows where the means are at hand."""
        return torch.addmm(torch.addmm(self.bias, x_NF, self.own), mean_NF, self.near)

    def project(self, x_NF: Tensor) -> Tensor:
        """Return what neighbours are told."""
        return x_NF @ self.near


class _Sage(nn.Module):
    """Convolutions on top of each other, relu after each."""

    def __init__(self, num_in: int, settings: ModelSettings) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            SageConvolution(settings.hidden if place else num_in, settings.hidden) for place in range(settings.layers)
        )

    def forward(self, view: View, x_NF: Tensor) -> Tensor:
        """Return the embeddings; those of nodes that are not there are 0."""
        for layer in self.layers:
            x_NF = torch.relu(layer(view, x_NF))
        return x_NF if view.all_alive else torch.where(view.alive_N[:, None], x_NF, 0.0)

    def layer(self, depth: int, x_NF: Tensor, mean_NF: Tensor) -> Tensor:
        """Return what one convolution gives, relu included."""
        convolution = self.layers[depth]
        assert isinstance(convolution, SageConvolution)
        return torch.relu(convolution.combine(x_NF, mean_NF))


class _SageModel(LayeredModel):
    """What both have in common."""

    sage: _Sage

    def encode(self, view: View, x_NF: Tensor) -> Rows:
        """Return the embeddings."""
        return (self.sage(view, x_NF),)

    def layer(self, depth: int, x_NF: Tensor, mean_NF: Tensor) -> Tensor:
        """Return what a convolution gives."""
        return self.sage.layer(depth, x_NF, mean_NF)


class SageLinear(_SageModel):
    """A linear map of the embeddings of the last `span` snapshots, zeros where a node was absent."""

    def __init__(self, num_in: int, settings: ModelSettings) -> None:
        super().__init__()
        self._span, self.out_size, self.hops = settings.span, settings.hidden, settings.layers
        self.sage = _Sage(num_in, settings)
        self.weight, self.bias = glorot(self._span * self.out_size, self.out_size), spread(self.out_size, self.out_size)

    def memory(self) -> Memory:
        """Return the embeddings before this snapshot, oldest first. They grow old also while a node is absent."""
        return (PerNode("past", (self._span - 1, self.out_size), holds=False),)

    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Return the mapped embeddings, and those to remember."""
        all_NSH = torch.cat([state[0], rows[0][:, None].to(state[0].dtype)], 1)
        return torch.addmm(self.bias, all_NSH.flatten(1), self.weight), (all_NSH[:, 1:],)


class SageAttention(_SageModel):
    """The newest embedding, plus what it attends to among those of the last `span` snapshots (DySAT's, causal)."""

    def __init__(self, num_in: int, settings: ModelSettings) -> None:
        super().__init__()
        self._span, self._heads = settings.span, settings.heads
        self.out_size, self.hops = settings.hidden, settings.layers
        self.sage = _Sage(num_in, settings)
        self.position = spread(settings.hidden, settings.span, settings.hidden)
        self.query, self.key, self.value = (glorot(settings.hidden, settings.hidden) for _ in range(3))

    def memory(self) -> Memory:
        """Return the embeddings before this snapshot, oldest first, and which of them there are."""
        past = PerNode("past", (self._span - 1, self.out_size), holds=False)
        return past, PerNode("there", (self._span - 1,), holds=False)

    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Return what the newest embedding attends to; a node that was never there gets 0."""
        all_NSH = torch.cat([state[0], rows[0][:, None].to(state[0].dtype)], 1)
        there_NS = torch.cat([state[1], view.alive_N[:, None].to(state[1].dtype)], 1)
        placed_NSH = all_NSH + self.position
        query_NAD = self._by_head(placed_NSH[:, -1] @ self.query)
        key_NSAD, value_NSAD = self._by_head(placed_NSH @ self.key), self._by_head(placed_NSH @ self.value)
        logit_NSA = (key_NSAD * query_NAD[:, None]).sum(3) / math.sqrt(query_NAD.shape[2])
        logit_NSA = logit_NSA.masked_fill(there_NS[:, :, None] == 0, -1e9)
        share_NSA = torch.softmax(logit_NSA, 1) * there_NS[:, :, None]
        seen_NH = (share_NSA[:, :, :, None] * value_NSAD).sum(1).flatten(1)
        return seen_NH + all_NSH[:, -1], (all_NSH[:, 1:], there_NS[:, 1:])

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:-1], self._heads, rows.shape[-1] // self._heads)

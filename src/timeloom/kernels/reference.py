"""The slow, obvious versions of the kernels, for tests.

Shape letters: E edges, N nodes, M messages (the edges, then every node's own), F features, H heads, D size of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from timeloom.kernels.norms import Norm


@dataclass(frozen=True, slots=True)
class EdgeList:
    """Edges ``source[i] -> target[i]`` in any order; an edge that is there twice counts twice."""

    source_E: Tensor
    target_E: Tensor
    weight_E: Tensor | None
    """None where every weight is 1."""
    alive_N: Tensor
    """bool: which nodes are there."""

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return len(self.alive_N)

    @property
    def reversed(self) -> EdgeList:
        """The same edges, each the other way round."""
        return EdgeList(self.target_E, self.source_E, self.weight_E, self.alive_N)

    def matrix(self, dtype: torch.dtype, *, absolute: bool = False) -> Tensor:
        """Return the [target, source] matrix of summed weights, or of their sizes."""
        weight_E = torch.ones(len(self.source_E)) if self.weight_E is None else self.weight_E
        matrix_NN = torch.zeros(self.num_nodes, self.num_nodes, dtype=dtype)
        for source, target, weight in zip(
            self.source_E.tolist(), self.target_E.tolist(), weight_E.tolist(), strict=True
        ):
            matrix_NN[target, source] += abs(weight) if absolute else weight
        return matrix_NN


def operator(edges: EdgeList, norm: Norm, dtype: torch.dtype) -> Tensor:
    """Return the [N, N] matrix P of which ``aggregate`` is the product ``P x``."""
    if norm.reverse:
        edges = edges.reversed
    loops_NN = torch.diag(edges.alive_N.to(dtype)) * norm.self_loops
    size_NN = edges.matrix(dtype, absolute=True) + loops_NN
    into_N, out_of_N = size_NN.sum(1), size_NN.sum(0)
    ones_N = torch.ones_like(into_N)
    left_N, right_N = {
        "sym": (_inverse(into_N).sqrt(), _inverse(into_N).sqrt()),
        "both": (_inverse(into_N).sqrt(), _inverse(out_of_N).sqrt()),
        "mean": (_inverse(into_N), ones_N),
        "push": (ones_N, _inverse(out_of_N)),
        "sum": (ones_N, ones_N),
    }[norm.kind]
    return torch.diag(left_N) @ (edges.matrix(dtype) + loops_NN) @ torch.diag(right_N)


def _inverse(degrees_N: Tensor) -> Tensor:
    return torch.tensor([1.0 / degree if degree else 0.0 for degree in degrees_N.tolist()], dtype=degrees_N.dtype)


def aggregate(edges: EdgeList, norm: Norm, x_NF: Tensor) -> Tensor:
    """Return ``P x``."""
    return operator(edges, norm, x_NF.dtype) @ x_NF


def attend(
    edges: EdgeList, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, *, self_loops: bool, slope: float
) -> Tensor:
    """Return the neighbours' values weighed by a masked softmax over all messages of the graph."""
    nodes = torch.arange(edges.num_nodes)
    own = nodes[edges.alive_N] if self_loops else nodes[:0]
    source_M, target_M = torch.cat([edges.source_E, own]), torch.cat([edges.target_E, own])
    mask_NM1 = (target_M == nodes[:, None])[:, :, None]
    logit_NMH = sent_NH[source_M] + received_NH[:, None]
    logit_NMH = torch.where(logit_NMH > 0, logit_NMH, slope * logit_NMH).masked_fill(~mask_NM1, -1e300)
    # The softmax over an empty row means nothing; the mask makes it 0.
    share_NMH = torch.softmax(logit_NMH, 1) * mask_NM1
    return torch.einsum("nmh,mhd->nhd", share_NMH, value_NHD[source_M])


def gru(seen_NG: Tensor, h_NH: Tensor, weight_GH: Tensor, bias_G: Tensor) -> Tensor:
    """Return ``(1 - u) c + u h`` (Cho et al., with torch's place of the reset gate)."""
    size = h_NH.shape[1]
    seen = [seen_NG[:, gate * size : (gate + 1) * size] for gate in range(3)]
    was = [h_NH @ weight_GH[gate * size : (gate + 1) * size].T + bias_G[gate * size :][:size] for gate in range(3)]
    reset, update = 1 / (1 + torch.exp(-seen[0] - was[0])), 1 / (1 + torch.exp(-seen[1] - was[1]))
    return (1 - update) * torch.tanh(seen[2] + reset * was[2]) + update * h_NH


def lstm(seen_NG: Tensor, h_NH: Tensor, c_NH: Tensor, weight_GH: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``o tanh(c')`` and ``c' = f c + i g`` (Hochreiter and Schmidhuber, with forget gates)."""
    size = h_NH.shape[1]
    gates = [
        seen_NG[:, gate * size : (gate + 1) * size] + h_NH @ weight_GH[gate * size : (gate + 1) * size].T
        for gate in range(4)
    ]
    enter, forget, leave = (1 / (1 + torch.exp(-gates[place])) for place in (0, 1, 3))
    memory_NH = forget * c_NH + enter * torch.tanh(gates[2])
    return leave * torch.tanh(memory_NH), memory_NH

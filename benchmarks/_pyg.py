"""Training loops as people write them with torch_geometric, one for each model that is measured against them.

Shape letters: N nodes, E edges, H hidden size.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from timeloom.nn.evolvegcn import WeightGru

with warnings.catch_warnings():
    # It warns of parts of torch that it uses.
    warnings.simplefilter("ignore")
    from torch_geometric.nn import GATConv, GCNConv
    from torch_geometric.nn.conv.gcn_conv import gcn_norm


@dataclass(frozen=True)
class Seen:
    """A snapshot: its edges, and the same with self loops and the weights of a GCN, made once by a careful user."""

    index_2E: Tensor
    normed_2E: Tensor
    weights_E: Tensor


def seen(index_2E: Tensor, num_nodes: int) -> Seen:
    """Return a snapshot for all loops."""
    normed_2E, weights_E = gcn_norm(index_2E, None, num_nodes)
    return Seen(index_2E, normed_2E, weights_E)


class Loop(nn.Module):
    """A model over a window: every snapshot in turn, as `forward` of most tutorials."""

    def __init__(self, num_in: int, hidden: int) -> None:
        super().__init__()
        self.hidden, self.head = hidden, nn.Linear(hidden, 1)

    def run(self, x_NF: Tensor, snapshots: Sequence[Seen]) -> Tensor:
        raise NotImplementedError

    def forward(self, x_NF: Tensor, snapshots: Sequence[Seen]) -> Tensor:
        predicted: Tensor = self.head(self.run(x_NF, snapshots))[:, 0]
        return predicted


class GcnGru(Loop):
    """GCNConv + GRUCell with precomputed norms: the careful user's T-GCN."""

    def __init__(self, num_in: int, hidden: int) -> None:
        super().__init__(num_in, hidden)
        self.conv, self.cell = GCNConv(num_in, hidden, normalize=False), nn.GRUCell(hidden, hidden)

    def run(self, x_NF: Tensor, snapshots: Sequence[Seen]) -> Tensor:
        h = x_NF.new_zeros(len(x_NF), self.hidden)
        for one in snapshots:
            h = self.cell(torch.relu(self.conv(x_NF, one.normed_2E, one.weights_E)), h)
        return h


class PygTemporalTgcn(Loop):
    """T-GCN as PyTorch Geometric Temporal describes it: a GCNConv for every gate, which normalises at every call."""

    def __init__(self, num_in: int, hidden: int) -> None:
        super().__init__(num_in, hidden)
        self.convs = nn.ModuleList(GCNConv(num_in, hidden) for _ in range(3))
        self.linears = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(3))

    def run(self, x_NF: Tensor, snapshots: Sequence[Seen]) -> Tensor:
        h = x_NF.new_zeros(len(x_NF), self.hidden)
        for one in snapshots:
            update, reset = (
                torch.sigmoid(linear(torch.cat([conv(x_NF, one.index_2E), h], 1)))
                for conv, linear in zip(list(self.convs)[:2], list(self.linears)[:2], strict=True)
            )
            c = torch.tanh(self.linears[2](torch.cat([self.convs[2](x_NF, one.index_2E), h * reset], 1)))
            h = update * h + (1 - update) * c
        return h


class WdGcn(Loop):
    """GCNConv + LSTMCell with precomputed norms."""

    def __init__(self, num_in: int, hidden: int) -> None:
        super().__init__(num_in, hidden)
        self.conv, self.cell = GCNConv(num_in, hidden, normalize=False), nn.LSTMCell(hidden, hidden)

    def run(self, x_NF: Tensor, snapshots: Sequence[Seen]) -> Tensor:
        state = (x_NF.new_zeros(len(x_NF), self.hidden), x_NF.new_zeros(len(x_NF), self.hidden))
        for one in snapshots:
            state = self.cell(torch.relu(self.conv(x_NF, one.normed_2E, one.weights_E)), state)
        return state[0]


class GatLstm(Loop):
    """GATConv of four heads + LSTMCell."""

    def __init__(self, num_in: int, hidden: int) -> None:
        super().__init__(num_in, hidden)
        self.conv, self.cell = GATConv(num_in, hidden // 4, heads=4), nn.LSTMCell(hidden, hidden)

    def run(self, x_NF: Tensor, snapshots: Sequence[Seen]) -> Tensor:
        state = (x_NF.new_zeros(len(x_NF), self.hidden), x_NF.new_zeros(len(x_NF), self.hidden))
        for one in snapshots:
            state = self.cell(torch.relu(self.conv(x_NF, one.index_2E)), state)
        return state[0]


class EvolveGcnO(Loop):
    """A weight that evolves by itself, and a convolution by it in every snapshot; norms are precomputed."""

    def __init__(self, num_in: int, hidden: int) -> None:
        super().__init__(num_in, hidden)
        self.first, self.gru = nn.Parameter(torch.randn(num_in, hidden) * 0.1), WeightGru(num_in, hidden)
        self.conv = GCNConv(hidden, hidden, normalize=False, bias=False)
        self.conv.lin = nn.Identity()

    def run(self, x_NF: Tensor, snapshots: Sequence[Seen]) -> Tensor:
        weight, h = self.first, x_NF
        for one in snapshots:
            weight = self.gru(weight, weight)
            h = torch.relu(self.conv(x_NF @ weight, one.normed_2E, one.weights_E))
        return h


LOOPS: dict[str, tuple[type[Loop], ...]] = {
    "gcn_gru": (GcnGru, PygTemporalTgcn), "tgcn": (GcnGru, PygTemporalTgcn), "wdgcn": (WdGcn,),
    "evolvegcn_o": (EvolveGcnO,), "gat_lstm": (GatLstm,),
}  # fmt: skip


def iteration(loop: Loop, x_NF: Tensor, snapshots: Sequence[Seen], wanted_N: Tensor) -> Callable[[], object]:
    """Return one update: forward, backward, Adam."""
    optimizer = torch.optim.Adam(loop.parameters())

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(loop(x_NF, snapshots), wanted_N)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return run

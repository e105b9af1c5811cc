"""Layers of PyTorch Geometric in a model: `timeloom train GRAPH --model examples/pyg_layers.py:GatGru --out RUN`.

Any layer that takes `edge_index` and `edge_weight` works as the spatial part; the memory is ours as ever.
(`pip install 'timeloom[pyg]'`)
"""

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv, GraphConv

import timeloom


class GatGru(timeloom.Model):
    """A weighted convolution and an attention of PyTorch Geometric, then a GRU for every node."""

    hops = 2

    def __init__(self, num_in: int, settings: timeloom.ModelSettings) -> None:
        super().__init__()
        self.out_size = settings.hidden
        self.near = GraphConv(num_in, settings.hidden)
        self.attention = GATv2Conv(settings.hidden, settings.hidden // settings.heads, heads=settings.heads)
        self.gru = nn.GRUCell(settings.hidden, settings.hidden)

    def memory(self) -> tuple[timeloom.PerNode, ...]:
        """Return what is remembered: a row for every node."""
        return (timeloom.PerNode("h", (self.out_size,)),)

    def encode(self, view: timeloom.View, x: Tensor) -> tuple[Tensor, ...]:
        """Return what one snapshot shows."""
        seen = torch.relu(self.near(x, view.edge_index, view.edge_weight))
        return (torch.relu(self.attention(seen, view.edge_index)),)

    def recur(
        self, view: timeloom.View, rows: tuple[Tensor, ...], state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the output and the new state."""
        h = self.gru(rows[0], state[0])
        return h, (h,)

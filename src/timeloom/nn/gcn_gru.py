"""`gcn_gru`: a graph convolution, then a GRU for every node: what REAL and DyGNeX call T-GCN (SPEC section 2, (d))."""

from __future__ import annotations

import torch
from torch import Tensor

from timeloom.kernels.norms import Norm
from timeloom.nn.layers import Convolution, Gru
from timeloom.nn.model import Memory, Model, PerNode, Rows, State, View


class GcnGru(Model):
    """``h_t = GRU(relu(P_t X W + b), h_{t-1})``."""

    def __init__(self, num_in: int, hidden: int, norm: Norm) -> None:
        super().__init__()
        self.out_size = hidden
        self.convolution = Convolution(num_in, hidden, norm)
        self.gru = Gru(hidden, hidden)

    def memory(self) -> Memory:
        """Return the hidden state."""
        return (PerNode("h", (self.out_size,)),)

    def encode(self, view: View, x_NF: Tensor) -> Rows:
        """Return the input side of the gates."""
        return (self.gru.see(torch.relu(self.convolution(view, x_NF))),)

    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Return the new hidden state, twice."""
        h = self.gru.step(rows[0], state[0])
        return h, (h,)

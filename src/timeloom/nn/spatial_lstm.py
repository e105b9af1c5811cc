"""`wdgcn` and `gat_lstm`: a convolution or graph attention, then an LSTM for every node."""

from __future__ import annotations

from torch import Tensor

from timeloom.kernels.blocked_cells import Cell
from timeloom.kernels.front import Affine
from timeloom.kernels.norms import Norm
from timeloom.nn.layers import Convolution, GraphAttention, Lstm
from timeloom.nn.model import Memory, Model, PerNode, RowModel, Rows, State, View


class SpatialLstm(RowModel):
    """``h_t = LSTM(relu(spatial(X_t)), h_{t-1})``: WD-GCN with a convolution, GAT-LSTM with graph attention."""

    def __init__(self, near: Convolution | GraphAttention, hidden: int) -> None:
        super().__init__()
        self.out_size = hidden
        self.near = near
        self.lstm = Lstm(hidden, hidden)

    def memory(self) -> Memory:
        """Return the LSTM's output and memory."""
        return PerNode("h", (self.out_size,)), PerNode("c", (self.out_size,))

    def spatial(self, view: View, x_NF: Tensor) -> tuple[Tensor, tuple[Affine, ...]]:
        """Return what is heard of the neighbours, and the input side of the gates."""
        rows, maps = self.near.parts(view, x_NF)
        return rows, (*maps, self.lstm.see(relu=True))

    def cell(self) -> Cell:
        """Return the LSTM."""
        return self.lstm.cell()

    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Return the LSTM's output, and its new state."""
        h, c = self.lstm.step(rows[0], *state)
        return h, (h, c)


def wdgcn(num_in: int, hidden: int, norm: Norm) -> Model:
    """Return one layer of WD-GCN."""
    return SpatialLstm(Convolution(num_in, hidden, norm), hidden)


def gat_lstm(num_in: int, hidden: int, heads: int) -> Model:
    """Return one layer of GAT-LSTM (REAL's reading: attention with heads side by side, then an LSTM)."""
    return SpatialLstm(GraphAttention(num_in, hidden, heads), hidden)

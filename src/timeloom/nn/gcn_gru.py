"""`gcn_gru`: a graph convolution, then a GRU for every node: what REAL and DyGNeX call T-GCN (SPEC section 2, (d))."""

from __future__ import annotations

from torch import Tensor

from timeloom.kernels.blocked_cells import Cell
from timeloom.kernels.front import Affine
from timeloom.kernels.norms import Norm
from timeloom.nn.layers import Convolution, Gru
from timeloom.nn.model import Memory, PerNode, RowModel, Rows, State, View


class GcnGru(RowModel):
    """``h_t = GRU(relu(P_t X W + b), h_{t-1})``."""

    def __init__(self, num_in: int, hidden: int, norm: Norm) -> None:
        super().__init__()
        self.out_size = hidden
        self.convolution = Convolution(num_in, hidden, norm)
        self.gru = Gru(hidden, hidden)

    def memory(self) -> Memory:
        """Return the hidden state."""
        return (PerNode("h", (self.out_size,)),)

    def spatial(self, view: View, x_NF: Tensor) -> tuple[Tensor, tuple[Affine, ...]]:
        """Return the convolved rows, and the input side of the gates."""
        rows, maps = self.convolution.parts(view, x_NF)
        return rows, (*maps, self.gru.see(relu=True))

    def cell(self) -> Cell:
        """Return the GRU."""
        return self.gru.cell()

    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Return the new hidden state, twice."""
        h = self.gru.step(rows[0], state[0])
        return h, (h,)

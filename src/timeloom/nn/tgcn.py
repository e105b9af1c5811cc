"""`tgcn`: one graph convolution for each gate of a GRU, as PyTorch Geometric Temporal and DynaHB have it (SPEC (c))."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from timeloom.kernels import blocked_cells, cells
from timeloom.kernels.blocked_cells import Cell
from timeloom.kernels.front import Affine
from timeloom.kernels.norms import Norm
from timeloom.nn.layers import Convolution, convolved, glorot, spread
from timeloom.nn.model import Memory, Model, PerNode, RowModel, Rows, State, View


class Tgcn(RowModel):
    """Gates ``s(W [P_t X W_gate + b_gate, h])``; ``h' = u h + (1 - u) c`` with ``c`` made of ``r h``.

    The three convolutions are one of three times the width: their sum over neighbours is the same. Nothing bends rows
    between a gate's convolution and its W, so their product is made first: one multiplication of rows instead of two.
    """

    def __init__(self, num_in: int, hidden: int, norm: Norm) -> None:
        super().__init__()
        self.out_size = hidden
        self._norm = norm
        # Of all gates, side by side.
        self.weight_in, self.bias_in = glorot(num_in, 3 * hidden), nn.Parameter(torch.zeros(3 * hidden))
        # Of update, reset and candidate: what is seen and what was, each [3, in, out].
        self.weight_seen, self.weight_h = spread(2 * hidden, 3, hidden, hidden), spread(2 * hidden, 3, hidden, hidden)
        self.bias = spread(2 * hidden, 3, hidden)

    def memory(self) -> Memory:
        """Return the hidden state."""
        return (PerNode("h", (self.out_size,)),)

    def spatial(self, view: View, x_NF: Tensor) -> tuple[Tensor, tuple[Affine, ...]]:
        """Return what each gate sees."""
        return convolved(view, x_NF, self._norm, self._map(), project=self.project)

    def project(self, x_NF: Tensor) -> Tensor:
        """Return the rows times the weights of all gates."""
        return x_NF @ self._map().weight_IO

    def _map(self) -> Affine:
        """Return the convolutions and what each gate makes of its own, in one."""
        weights, biases = self.weight_in.chunk(3, 1), self.bias_in.chunk(3)
        return Affine(
            torch.cat([weight @ seen for weight, seen in zip(weights, self.weight_seen, strict=True)], 1),
            torch.cat([bias @ seen for bias, seen in zip(biases, self.weight_seen, strict=True)]) + self.bias.flatten(),
        )

    def cell(self) -> Cell:
        """Return what `recur` computes, for blocks of nodes."""
        return blocked_cells.Tgcn(self.weight_h)

    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Return the new hidden state, twice."""
        h = cells.tgcn(rows[0], state[0], self.weight_h)
        return h, (h,)


class TgcnIntegrated(Model):
    """`tgcn_integrated`: gates ``s(P_t [X, h] W + b)``, as in the official code of T-GCN (SPEC (b)).

    The convolution reads the state, so only its X half depends on the snapshot alone.
    """

    mixes_states = True
    hops = 2  # the candidate sends r h, and r has already heard of the neighbours

    def __init__(self, num_in: int, hidden: int, norm: Norm) -> None:
        super().__init__()
        self.out_size = hidden
        self._norm = norm
        self.seen = Convolution(num_in, 3 * hidden, norm)  # of update, reset and candidate
        self.weight_gates = spread(num_in + hidden, hidden, 2 * hidden)
        self.weight_candidate = spread(num_in + hidden, hidden, hidden)
        # The official code opens the gates at the start.
        nn.init.ones_(self.seen.bias[: 2 * hidden])

    def memory(self) -> Memory:
        """Return the hidden state."""
        return (PerNode("h", (self.out_size,)),)

    def encode(self, view: View, x_NF: Tensor) -> Rows:
        """Return the X half of the gates."""
        return (self.seen(view, x_NF),)

    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Return the new hidden state, twice."""
        (h,) = state
        see_gates, see_c = torch.split(rows[0], [2 * self.out_size, self.out_size], 1)
        update, reset = torch.sigmoid(see_gates + view.aggregate(h, self._norm) @ self.weight_gates).chunk(2, 1)
        candidate = torch.tanh(see_c + view.aggregate(reset * h, self._norm) @ self.weight_candidate)
        h = update * h + (1.0 - update) * candidate
        return h, (h,)

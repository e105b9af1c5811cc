"""`tgcn`: one graph convolution for each gate of a GRU, as PyTorch Geometric Temporal and DynaHB have it (SPEC (c))."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from timeloom.kernels.norms import Norm
from timeloom.nn.layers import Convolution, spread
from timeloom.nn.model import Memory, Model, PerNode, Rows, State, View


class Tgcn(Model):
    """Gates ``s(W [P_t X W_gate + b_gate, h])``; ``h' = u h + (1 - u) c`` with ``c`` made of ``r h``.

    The three convolutions are one of three times the width: their sum over neighbours is the same.
    """

    def __init__(self, num_in: int, hidden: int, norm: Norm) -> None:
        super().__init__()
        self.out_size = hidden
        self.convolution = Convolution(num_in, 3 * hidden, norm)
        # Of update, reset and candidate: what is seen and what was, each [3, in, out].
        self.weight_seen, self.weight_h = spread(2 * hidden, 3, hidden, hidden), spread(2 * hidden, 3, hidden, hidden)
        self.bias = spread(2 * hidden, 3, hidden)

    def memory(self) -> Memory:
        """Return the hidden state."""
        return (PerNode("h", (self.out_size,)),)

    def encode(self, view: View, x_NF: Tensor) -> Rows:
        """Return what each gate sees."""
        seen = self.convolution(view, x_NF).chunk(3, 1)
        return (torch.cat([torch.addmm(self.bias[gate], seen[gate], self.weight_seen[gate]) for gate in range(3)], 1),)

    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Return the new hidden state, twice."""
        (h,) = state
        see_u, see_r, see_c = rows[0].chunk(3, 1)
        update = torch.sigmoid(see_u + h @ self.weight_h[0])
        reset = torch.sigmoid(see_r + h @ self.weight_h[1])
        candidate = torch.tanh(see_c + (reset * h) @ self.weight_h[2])
        h = update * h + (1.0 - update) * candidate
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

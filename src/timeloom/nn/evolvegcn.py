"""`evolvegcn_o` and `evolvegcn_h`: a graph convolution whose weight is what a GRU remembers (Pareja et al.).

The equations are those of the authors' code: a GRU over the columns of the weight, also for -O. The weight is evolved
before it is used, and starts from the learnt first weight in every window (SPEC D2.1). Rows are aggregated before the
weight comes in, so that they can be shared (SPEC D2.5).

Shape letters: N nodes, F features, H hidden size; a weight is [F, H].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from timeloom.kernels.norms import Norm
from timeloom.nn.layers import glorot, spread
from timeloom.nn.model import Memory, Model, Rows, Shared, State, View


class WeightGru(nn.Module):
    """A GRU whose state is a weight matrix and whose input is a matrix of the same shape."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        # Of update, reset and candidate.
        self.see, self.was = spread(num_in, 3, num_in, num_in), spread(num_in, 3, num_in, num_in)
        self.bias = nn.Parameter(torch.zeros(3, num_in, num_out))

    def forward(self, weight_FH: Tensor, seen_FH: Tensor) -> Tensor:
        """Return the evolved weight."""
        see_u, see_r, see_c = (self.see @ seen_FH + self.bias).unbind(0)
        update = torch.sigmoid(see_u + self.was[0] @ weight_FH)
        reset = torch.sigmoid(see_r + self.was[1] @ weight_FH)
        candidate = torch.tanh(see_c + self.was[2] @ (reset * weight_FH))
        return (1.0 - update) * weight_FH + update * candidate


class EvolveGcnO(Model):
    """The weight evolves by itself: ``Q_t = GRU(Q_{t-1}, Q_{t-1})``; ``H_t = relu(P_t X_t Q_t)``."""

    def __init__(self, num_in: int, hidden: int, norm: Norm) -> None:
        super().__init__()
        self.out_size = hidden
        self._norm = norm
        self.first_weight = glorot(num_in, hidden)
        self.gru = WeightGru(num_in, hidden)

    def memory(self) -> Memory:
        """Return the weight."""
        return (Shared("weight", self.first_weight),)

    def encode(self, view: View, x_NF: Tensor) -> Rows:
        """Return the aggregated rows."""
        return (view.aggregate(x_NF, self._norm),)

    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Evolve the weight, then use it."""
        weight = self.gru(state[0], state[0])
        return torch.relu(rows[0] @ weight), (weight,)


class EvolveGcnH(Model):
    """The weight evolves with a summary of the nodes: the H rows that score highest along a learnt direction."""

    sees_all = asks_view = True

    def __init__(self, num_in: int, hidden: int, norm: Norm) -> None:
        super().__init__()
        self.out_size = hidden
        self._norm = norm
        self.first_weight = glorot(num_in, hidden)
        self.gru = WeightGru(num_in, hidden)
        self.direction = spread(num_in, num_in)

    def memory(self) -> Memory:
        """Return the weight."""
        return (Shared("weight", self.first_weight),)

    def encode(self, view: View, x_NF: Tensor) -> Rows:
        """Return the aggregated rows, and the summary."""
        return view.aggregate(x_NF, self._norm), self._summary(view, x_NF)

    def _summary(self, view: View, x_NF: Tensor) -> Tensor:
        """Return the [F, H] summary: the best rows of nodes that are there, scaled by tanh(score).

        With fewer than H such nodes the last of them fills the rest; with none the summary is 0.
        """
        scores_N = (x_NF @ self.direction) / self.direction.norm()
        rows_CF, scores_C = view.best(x_NF, scores_N, self.out_size)
        if not len(rows_CF):
            return torch.zeros_like(self.first_weight)
        filled = torch.arange(self.out_size, device=rows_CF.device).clamp(max=len(rows_CF) - 1)
        return (rows_CF * torch.tanh(scores_C)[:, None]).index_select(0, filled).t()

    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Evolve the weight, then use it."""
        weight = self.gru(state[0], rows[1].to(state[0].dtype))
        return torch.relu(rows[0] @ weight), (weight,)

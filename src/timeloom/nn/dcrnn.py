"""`dcrnn`: a GRU whose gates are diffusion convolutions over both directions of the edges (Li et al.).

Shape letters: N nodes, F features, H hidden size, W walks = 2 K + 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from timeloom.kernels.norms import Norm
from timeloom.nn.layers import glorot
from timeloom.nn.model import Memory, Model, PerNode, Rows, State, View
from timeloom.nn.settings import ModelSettings


class Dcrnn(Model):
    """Gates ``s(sum_k walk_k([X, h]) theta_k)``, walks of up to K hops along and against the edges.

    `pull` (the paper): a node takes the weighted mean over the nodes its edges lead to, or come from; constants stay
    constant. `push` is the other reading, in which a node deals its row out along its edges. A node without edges in
    a direction gets 0 from it. The walk of length 0 is there once.
    """

    mixes_states = True

    def __init__(self, num_in: int, settings: ModelSettings) -> None:
        super().__init__()
        hidden = settings.hidden
        kind: Norm = Norm(kind="mean" if settings.walk == "pull" else "push", self_loops=False)
        # Out of D_O^-1 W a node takes from the targets of its own edges: messages run against them.
        self._walks = (Norm(kind.kind, self_loops=False, reverse=settings.walk == "pull"),
                       Norm(kind.kind, self_loops=False, reverse=settings.walk == "push"))  # fmt: skip
        self._hops, self.out_size = settings.hops, hidden
        self.hops = 2 * settings.hops  # the candidate walks over r h, and r has already walked
        num_walks = 2 * settings.hops + 1
        self.weight_seen = glorot(num_walks * num_in, 3 * hidden)  # of reset, update and candidate
        self.weight_gates = glorot(num_walks * hidden, 2 * hidden)
        self.weight_candidate = glorot(num_walks * hidden, hidden)
        self.bias = nn.Parameter(torch.cat([torch.ones(2 * hidden), torch.zeros(hidden)]))

    def memory(self) -> Memory:
        """Return the hidden state."""
        return (PerNode("h", (self.out_size,)),)

    def _diffuse(self, view: View, x_NF: Tensor) -> Tensor:
        """Return the walks of every length, one beside the other."""
        walked = [x_NF]
        for norm in self._walks:
            far = x_NF
            for _ in range(self._hops):
                far = view.aggregate(far, norm)
                walked.append(far)
        return torch.cat(walked, 1)

    def encode(self, view: View, x_NF: Tensor) -> Rows:
        """Return the X half of the gates."""
        return (torch.addmm(self.bias, self._diffuse(view, x_NF), self.weight_seen),)

    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Return the new hidden state, twice."""
        (h,) = state
        see_gates, see_c = torch.split(rows[0], [2 * self.out_size, self.out_size], 1)
        reset, update = torch.sigmoid(see_gates + self._diffuse(view, h) @ self.weight_gates).chunk(2, 1)
        candidate = torch.tanh(see_c + self._diffuse(view, reset * h) @ self.weight_candidate)
        h = update * h + (1.0 - update) * candidate
        return h, (h,)

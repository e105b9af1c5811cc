"""`mpnn_lstm`: convolutions on top of each other, then two LSTMs (Panagopoulos et al.; FlareDTDG's model)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from timeloom.kernels.front import mapped
from timeloom.kernels.norms import Norm
from timeloom.nn.layers import Convolution, Lstm
from timeloom.nn.model import Memory, Model, PerNode, Rows, State, View
from timeloom.nn.settings import ModelSettings


class AliveNorm(nn.Module):
    """Batch normalisation over the nodes that are there; the others neither count nor change."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(size)

    def forward(self, view: View, x_NF: Tensor) -> Tensor:
        """Return the normalised rows. Of fewer than two nodes there are no statistics: those so far are used."""
        there = torch.arange(len(x_NF), device=x_NF.device) if view.all_alive else view.alive_N.nonzero()[:, 0]
        norm = self.norm
        rows = nn.functional.batch_norm(
            x_NF.index_select(0, there), norm.running_mean, norm.running_var, norm.weight, norm.bias,
            training=self.training and len(there) > 1, momentum=norm.momentum or 0.0, eps=norm.eps,
        )  # fmt: skip
        return rows if view.all_alive else x_NF.index_copy(0, there, rows.to(x_NF.dtype))


class MpnnLstm(Model):
    """``x_i = BN(relu(P_t x_{i-1} W_i))``, then ``[x_1, x_2, ..] -> LSTM -> LSTM``; output ``[h_1, h_2, X]``.

    `jump`, `skip` and `batch_norm` are as in the authors' code when true; FlareDTDG's public code has none of them.
    """

    def __init__(self, num_in: int, settings: ModelSettings, norm: Norm) -> None:
        super().__init__()
        hidden, depth = settings.hidden, settings.layers
        self._jump, self._skip, self._hidden = settings.jump, settings.skip, hidden
        self.hops = depth
        self.sees_all = settings.batch_norm
        self.out_size = 2 * hidden + (num_in if settings.skip else 0)
        self.convolutions = nn.ModuleList(
            Convolution(hidden if place else num_in, hidden, norm) for place in range(depth)
        )
        self.norms = nn.ModuleList(AliveNorm(hidden) for _ in range(depth if settings.batch_norm else 0))
        self.first = Lstm(hidden * depth if settings.jump else hidden, hidden)
        self.second = Lstm(hidden, hidden)

    def memory(self) -> Memory:
        """Return output and memory of both LSTMs."""
        return tuple(PerNode(name, (self._hidden,)) for name in ("h1", "c1", "h2", "c2"))

    def encode(self, view: View, x_NF: Tensor) -> Rows:
        """Return the input side of the first LSTM's gates, and what is skipped to the output."""
        seen: list[Tensor] = []
        h = x_NF
        for depth, convolution in enumerate(self.convolutions):
            h = torch.relu(convolution(view, h))
            h = self.norms[depth](view, h) if len(self.norms) else h
            seen.append(h)
        return mapped(torch.cat(seen, 1) if self._jump else h, (self.first.see(relu=False),)), x_NF

    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Return both LSTMs' outputs beside the skipped features, and their new states."""
        h1, c1 = self.first.step(rows[0], state[0], state[1])
        h2, c2 = self.second.step(mapped(h1, (self.second.see(relu=False),)), state[2], state[3])
        return torch.cat([h1, h2, rows[1].to(h1.dtype)] if self._skip else [h1, h2], 1), (h1, c1, h2, c2)

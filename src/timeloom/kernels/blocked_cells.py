"""How each recurrent cell goes over a block of nodes, one snapshot at a time, and back.

A node that is held gets gates that keep its state to the bit (update 1; or input 0 and forget 1), so that backward
needs no mask but for the output of an LSTM.

Shape letters: B rows of a block, H hidden size, G gates x H, D columns of the gradients of the gates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from timeloom.kernels import pointwise
from timeloom.kernels.block import Back, Cell, Moment, Weights, part_of, see, see_with_state
from timeloom.kernels.pointwise import LstmGates
from timeloom.kernels.products import Products


@dataclass(frozen=True, slots=True)
class Gru(Cell):
    """`cells.gru`: gates reset, update and candidate."""

    weight_GH: Tensor
    bias_G: Tensor
    num_gates = 3
    num_back = 4  # what was of the candidate; then reset, update and candidate
    kept = (2, 1, 1)  # reset and update; candidate; what was of the candidate
    num_states = 1

    @property
    def hidden(self) -> int:
        """The hidden size."""
        return self.weight_GH.shape[1]

    def parameters(self) -> tuple[Tensor, ...]:
        """Return weight and bias."""
        return self.weight_GH, self.bias_G

    def state_weight(self) -> Tensor:
        """Return the weight of the state."""
        return self.weight_GH.t()

    def back_weight(self) -> Tensor:
        """Return the same the other way, its candidate first."""
        return self.weight_GH.roll(self.hidden, 0)

    def state_bias(self) -> Tensor | None:
        """Return the bias."""
        return self.bias_G

    def sum_shapes(self) -> tuple[tuple[int, int], ...]:
        """Return the shape of the weight's gradient, its candidate first."""
        return ((self.hidden, 3 * self.hidden),)

    def forward(self, at: Moment, weights: Weights, do: Products) -> None:
        """Write the gates and the state after."""
        size = self.hidden
        pair, candidate, was = at.gates
        last = slice(2 * size, 3 * size)
        see_with_state(at, weights, do, gates=slice(2 * size), out=pair)
        do.put(at.h, weights.state_HG[:, last], part_of(weights.state_bias_G, last), was)
        see(at, weights, do, gates=last, out=candidate)
        pointwise.gru(pair, candidate, was, held_B=at.held_B, before=at.before, after=at.after)

    def backward(self, at: Moment, weights: Weights, back: Back, do: Products) -> None:
        """Write the gradients of the gates, add those of the weights, and go back to the state before."""
        size = self.hidden
        pair, candidate, was = at.gates
        pointwise.gru_back(back.d_h_BH, pair, candidate, was, before=at.before, d_gates_BD=back.d_BD)
        d_BD = back.factors(slice(4 * size))
        do.add(at.h.t(), d_BD[:, : 3 * size], back.sums[0])
        do.add(d_BD[:, : 3 * size], weights.back_GH, back.d_h_BH)

    def gradients(self, sums: tuple[Tensor, ...], d_bias_D: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of weight and bias."""
        size = self.hidden
        return sums[0].roll(-size, 1).t(), d_bias_D[: 3 * size].roll(-size)


@dataclass(frozen=True, slots=True)
class Tgcn(Cell):
    """`cells.tgcn`: gates update, reset and candidate; the candidate sees the state through the reset gate."""

    weight_3HH: Tensor
    num_gates = 3
    num_back = 3
    kept = (2, 1)  # update and reset; candidate
    num_states = 1

    @property
    def hidden(self) -> int:
        """The hidden size."""
        return self.weight_3HH.shape[1]

    def parameters(self) -> tuple[Tensor, ...]:
        """Return the weight."""
        return (self.weight_3HH,)

    def state_weight(self) -> Tensor:
        """Return the three weights side by side."""
        return torch.cat(tuple(self.weight_3HH), 1)

    def back_weight(self) -> Tensor:
        """Return the three weights, each the other way, one below the other."""
        return self.weight_3HH.transpose(1, 2).reshape(-1, self.hidden)

    def state_bias(self) -> Tensor | None:
        """Return None: the cell has no bias of its own."""
        return None

    def sum_shapes(self) -> tuple[tuple[int, int], ...]:
        """Return the shapes of the gradients of the first two weights, and of the candidate's."""
        return (self.hidden, 2 * self.hidden), (self.hidden, self.hidden)

    def forward(self, at: Moment, weights: Weights, do: Products) -> None:
        """Write the gates and the state after."""
        size = self.hidden
        pair, candidate = at.gates
        last = slice(2 * size, 3 * size)
        see_with_state(at, weights, do, gates=slice(2 * size), out=pair)
        see(at, weights, do, gates=last, out=candidate)
        pointwise.tgcn_reset(pair, held_B=at.held_B, before=at.before, kept_BH=at.spares[0])
        do.add(at.as_factor(at.spares[0]), weights.state_HG[:, last], candidate)
        pointwise.tgcn(pair, candidate, before=at.before, after=at.after)

    def backward(self, at: Moment, weights: Weights, back: Back, do: Products) -> None:
        """Write the gradients of the gates, add those of the weights, and go back to the state before."""
        size = self.hidden
        pair, candidate = at.gates
        kept, d_kept = at.spares
        pointwise.tgcn_back(
            back.d_h_BH, pair, candidate, before=at.before, d_gates_BD=back.d_BD, kept_BH=kept
        )  # fmt: skip
        d_last = back.factors(slice(2 * size, 3 * size))
        do.add(at.as_factor(kept).t(), d_last, back.sums[1])
        do.put(d_last, weights.back_GH[2 * size :], None, d_kept)
        pointwise.tgcn_reset_back(d_kept, back.d_h_BH, pair, kept, d_gates_BD=back.d_BD)
        d_pair = back.factors(slice(2 * size))
        do.add(at.h.t(), d_pair, back.sums[0])
        do.add(d_pair, weights.back_GH[: 2 * size], back.d_h_BH)

    def gradients(self, sums: tuple[Tensor, ...], d_bias_D: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of the weight."""
        return (torch.stack((*sums[0].chunk(2, 1), sums[1])),)


@dataclass(frozen=True, slots=True)
class Lstm(Cell):
    """`cells.lstm`: gates input, forget, candidate and output."""

    weight_GH: Tensor
    num_gates = 4
    num_back = 4
    kept = (2, 1, 1)  # input and forget; candidate; output
    num_states = 2

    @property
    def hidden(self) -> int:
        """The hidden size."""
        return self.weight_GH.shape[1]

    def parameters(self) -> tuple[Tensor, ...]:
        """Return the weight."""
        return (self.weight_GH,)

    def state_weight(self) -> Tensor:
        """Return the weight of the state."""
        return self.weight_GH.t()

    def back_weight(self) -> Tensor:
        """Return the same the other way."""
        return self.weight_GH

    def state_bias(self) -> Tensor | None:
        """Return None: the cell has no bias of its own."""
        return None

    def sum_shapes(self) -> tuple[tuple[int, int], ...]:
        """Return the shape of the weight's gradient."""
        return ((self.hidden, 4 * self.hidden),)

    def forward(self, at: Moment, weights: Weights, do: Products) -> None:
        """Write the gates, and output and memory after."""
        size = self.hidden
        for first, out in zip((0, 2, 3), at.gates, strict=True):
            gates = slice(first * size, first * size + out.shape[1])
            see_with_state(at, weights, do, gates=gates, out=out)
        pointwise.lstm(LstmGates(*at.gates, *at.memories), held_B=at.held_B, before=at.before, after=at.after)

    def backward(self, at: Moment, weights: Weights, back: Back, do: Products) -> None:
        """Write the gradients of the gates, add those of the weights, and go back to output and memory before."""
        pointwise.lstm_back(back.d_h_BH, back.d_c_BH, LstmGates(*at.gates, *at.memories), back.d_BD)
        d_BD = back.factors(slice(4 * self.hidden))
        do.add(at.h.t(), d_BD, back.sums[0])
        if at.held_B is None:
            do.put(d_BD, weights.back_GH, None, back.d_h_BH)
        else:
            back.d_h_BH.mul_(at.held_B[:, None])
            do.add(d_BD, weights.back_GH, back.d_h_BH)

    def gradients(self, sums: tuple[Tensor, ...], d_bias_D: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of the weight."""
        return (sums[0].t(),)

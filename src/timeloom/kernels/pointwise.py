"""What lies between the products of a recurrent cell, forward and backward.

On the CPU in float32 it is one compiled pass over a block; in float64, and on other devices, a few torch operators.

A cell's first two gates lie side by side (`pair`): reset and update of `gru`, update and reset of `tgcn`, input and
forget of `lstm`. Forward finds pre-activations where it leaves gates; where a node is held it leaves gates that keep
its state to the bit.

Shape letters: B rows of a block, H hidden size, P = 2 H, D gates x H, K any width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from timeloom.kernels import gate_loops

_NOBODY: NDArray[np.bool_] = np.empty(0, np.bool_)


@dataclass(frozen=True, slots=True)
class Columns:
    """Neighbouring columns of a contiguous table, from `first` on."""

    table_BK: Tensor
    first: int

    def view(self, width: int) -> Tensor:
        """Return so many of the columns as a tensor."""
        return self.table_BK[:, self.first : self.first + width]


def _compiled(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu"


def _flags(held_B: Tensor | None) -> NDArray[np.bool_]:
    return _NOBODY if held_B is None else held_B.numpy()


def _gates(x_BD: Tensor, size: int) -> tuple[Tensor, ...]:
    return torch.split(x_BD, size, 1)


def gru(
    pair_BP: Tensor, candidate_BH: Tensor, was_BH: Tensor, *, held_B: Tensor | None, before: Columns, after: Columns
) -> None:
    """Make the gates of a GRU, given what was of the candidate, and write the new state."""
    if _compiled(pair_BP):
        gate_loops.gru(
            pair_BP.numpy(), candidate_BH.numpy(), was_BH.numpy(), _flags(held_B),
            before.table_BK.numpy(), before.first, after.table_BK.numpy(), after.first,
        )  # fmt: skip
        return
    reset, update = _gates(pair_BP.sigmoid_(), was_BH.shape[1])
    if held_B is not None:
        update.masked_fill_(held_B[:, None], 1.0)
    candidate_BH.addcmul_(reset, was_BH).tanh_()
    torch.lerp(candidate_BH, before.view(update.shape[1]), update, out=after.view(update.shape[1]))


def gru_back(
    d_h_BH: Tensor, pair_BP: Tensor, candidate_BH: Tensor, was_BH: Tensor, *, before: Columns, d_gates_BD: Tensor
) -> None:
    """Write the gradients of what was of the candidate, reset, update and candidate, in this order.

    What is left in `d_h` goes straight to the old state.
    """
    if _compiled(d_h_BH):
        gate_loops.gru_back(
            d_h_BH.numpy(), pair_BP.numpy(), candidate_BH.numpy(), was_BH.numpy(),
            before.table_BK.numpy(), before.first, d_gates_BD.numpy(),
        )  # fmt: skip
        return
    size = d_h_BH.shape[1]
    (reset, update), (d_was, d_reset, d_update, d_candidate) = _gates(pair_BP, size), _gates(d_gates_BD, size)
    _mix_back(d_h_BH, update, candidate_BH, before.view(size), d_update=d_update, d_candidate=d_candidate)
    torch.mul(d_candidate, reset, out=d_was)
    torch.mul(d_was, was_BH, out=d_reset).mul_(1 - reset)


def _mix_back(
    d_h: Tensor, update: Tensor, candidate: Tensor, h: Tensor, *, d_update: Tensor, d_candidate: Tensor
) -> None:
    torch.mul(d_h, 1 - update, out=d_candidate).mul_(1 - candidate * candidate)
    torch.mul(d_h, h - candidate, out=d_update).mul_(update * (1 - update))
    d_h.mul_(update)


def tgcn_reset(pair_BP: Tensor, *, held_B: Tensor | None, before: Columns, kept_BH: Tensor) -> None:
    """Make the gates update and reset, and write ``reset * h``."""
    if _compiled(pair_BP):
        gate_loops.tgcn_reset(
            pair_BP.numpy(), _flags(held_B), before.table_BK.numpy(), before.first, kept_BH.numpy()
        )  # fmt: skip
        return
    update, reset = _gates(pair_BP.sigmoid_(), kept_BH.shape[1])
    if held_B is not None:
        update.masked_fill_(held_B[:, None], 1.0)
    torch.mul(reset, before.view(kept_BH.shape[1]), out=kept_BH)


def tgcn(pair_BP: Tensor, candidate_BH: Tensor, *, before: Columns, after: Columns) -> None:
    """Make the candidate, and write the new state."""
    if _compiled(pair_BP):
        gate_loops.tgcn(
            pair_BP.numpy(), candidate_BH.numpy(), before.table_BK.numpy(), before.first,
            after.table_BK.numpy(), after.first,
        )  # fmt: skip
        return
    size = candidate_BH.shape[1]
    update, _ = _gates(pair_BP, size)
    torch.lerp(candidate_BH.tanh_(), before.view(size), update, out=after.view(size))


def tgcn_back(
    d_h_BH: Tensor, pair_BP: Tensor, candidate_BH: Tensor, *, before: Columns, d_gates_BD: Tensor, kept_BH: Tensor
) -> None:
    """Write the gradients of update (first) and candidate (last), and ``reset * h``.

    What is left in `d_h` goes straight to the old state.
    """
    if _compiled(d_h_BH):
        gate_loops.tgcn_back(
            d_h_BH.numpy(), pair_BP.numpy(), candidate_BH.numpy(), before.table_BK.numpy(), before.first,
            d_gates_BD.numpy(), kept_BH.numpy(),
        )  # fmt: skip
        return
    size = d_h_BH.shape[1]
    (update, reset), (d_update, _, d_candidate) = _gates(pair_BP, size), _gates(d_gates_BD, size)
    _mix_back(d_h_BH, update, candidate_BH, before.view(size), d_update=d_update, d_candidate=d_candidate)
    torch.mul(reset, before.view(size), out=kept_BH)


def tgcn_reset_back(d_kept_BH: Tensor, d_h_BH: Tensor, pair_BP: Tensor, kept_BH: Tensor, *, d_gates_BD: Tensor) -> None:
    """Write the gradient of reset (second), given ``kept = reset * h``, and add to the old state's."""
    if _compiled(d_h_BH):
        gate_loops.tgcn_reset_back(
            d_kept_BH.numpy(), d_h_BH.numpy(), pair_BP.numpy(), kept_BH.numpy(), d_gates_BD.numpy()
        )
        return
    size = d_h_BH.shape[1]
    (_, reset), (_, d_reset, _) = _gates(pair_BP, size), _gates(d_gates_BD, size)
    torch.mul(d_kept_BH, kept_BH, out=d_reset).mul_(1 - reset)
    d_h_BH.addcmul_(d_kept_BH, reset)


@dataclass(frozen=True, slots=True)
class LstmGates:
    """Gates of an LSTM and its memory before and after."""

    pair_BP: Tensor
    candidate_BH: Tensor
    leave_BH: Tensor
    c_before_BH: Tensor
    c_after_BH: Tensor


def lstm(gates: LstmGates, *, held_B: Tensor | None, before: Columns, after: Columns) -> None:
    """Make the gates of an LSTM, and write its new memory and output."""
    pair, g, o = gates.pair_BP, gates.candidate_BH, gates.leave_BH
    if _compiled(pair):
        gate_loops.lstm(
            pair.numpy(), g.numpy(), o.numpy(), _flags(held_B), gates.c_before_BH.numpy(), gates.c_after_BH.numpy(),
            before.table_BK.numpy(), before.first, after.table_BK.numpy(), after.first,
        )  # fmt: skip
        return
    size = o.shape[1]
    enter, forget = _gates(pair.sigmoid_(), size)
    g.tanh_()
    o.sigmoid_()
    if held_B is not None:
        for gate, kept in ((enter, 0.0), (forget, 1.0), (o, 0.0)):
            gate.masked_fill_(held_B[:, None], kept)
    torch.mul(forget, gates.c_before_BH, out=gates.c_after_BH).addcmul_(enter, g)
    output = o * gates.c_after_BH.tanh()
    after.view(size).copy_(output if held_B is None else torch.where(held_B[:, None], before.view(size), output))


def lstm_back(d_h_BH: Tensor, d_c_BH: Tensor, gates: LstmGates, d_gates_BD: Tensor) -> None:
    """Write the gradients of input, forget, candidate and output, and make `d_c` that of the old memory."""
    pair, g, o = gates.pair_BP, gates.candidate_BH, gates.leave_BH
    if _compiled(d_h_BH):
        gate_loops.lstm_back(
            d_h_BH.numpy(), d_c_BH.numpy(), pair.numpy(), g.numpy(), o.numpy(), gates.c_before_BH.numpy(),
            gates.c_after_BH.numpy(), d_gates_BD.numpy(),
        )  # fmt: skip
        return
    size = d_h_BH.shape[1]
    (enter, forget), (d_enter, d_forget, d_g, d_o) = _gates(pair, size), _gates(d_gates_BD, size)
    bent = gates.c_after_BH.tanh()
    torch.mul(d_h_BH, bent, out=d_o).mul_(o * (1 - o))
    d_c_BH.addcmul_(d_h_BH * o, 1 - bent * bent)
    torch.mul(d_c_BH, g, out=d_enter).mul_(enter * (1 - enter))
    torch.mul(d_c_BH, gates.c_before_BH, out=d_forget).mul_(forget * (1 - forget))
    torch.mul(d_c_BH, enter, out=d_g).mul_(1 - g * g)
    d_c_BH.mul_(forget)

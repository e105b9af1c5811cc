"""The recurrent cells: what a node remembers, given what it sees now and what it remembered.

The input side ``W x + b`` is a parameter-only function of what a node sees, so callers compute it apart (it can be
shared between snapshots) and hand its result in.

Shape letters: N nodes, H hidden size, G gates x H.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gru(seen_NG: Tensor, h_NH: Tensor, weight_GH: Tensor, bias_G: Tensor) -> Tensor:
    """Return the new state of a GRU (gates: reset, update, candidate), equations as in ``torch.nn.GRUCell``."""
    see_r, see_u, see_c = seen_NG.chunk(3, 1)
    was_r, was_u, was_c = torch.addmm(bias_G, h_NH, weight_GH.t()).chunk(3, 1)
    reset, update = torch.sigmoid(see_r + was_r), torch.sigmoid(see_u + was_u)
    candidate = torch.tanh(see_c + reset * was_c)
    return candidate + update * (h_NH - candidate)


def lstm(seen_NG: Tensor, h_NH: Tensor, c_NH: Tensor, weight_GH: Tensor) -> tuple[Tensor, Tensor]:
    """Return the new output and memory of an LSTM (gates: input, forget, candidate, output), as torch's LSTMCell."""
    enter, forget, candidate, leave = (seen_NG + h_NH @ weight_GH.t()).chunk(4, 1)
    memory_NH = torch.sigmoid(forget) * c_NH + torch.sigmoid(enter) * torch.tanh(candidate)
    return torch.sigmoid(leave) * torch.tanh(memory_NH), memory_NH


def tgcn(seen_NG: Tensor, h_NH: Tensor, weight_3HH: Tensor) -> Tensor:
    """Return the new state of a T-GCN (gates: update, reset, candidate); the candidate is made of ``reset * h``."""
    see_u, see_r, see_c = seen_NG.chunk(3, 1)
    update = torch.sigmoid(see_u + h_NH @ weight_3HH[0])
    reset = torch.sigmoid(see_r + h_NH @ weight_3HH[1])
    candidate = torch.tanh(see_c + (reset * h_NH) @ weight_3HH[2])
    return candidate + update * (h_NH - candidate)

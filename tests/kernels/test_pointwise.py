"""The compiled passes equal the same passes in torch operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.kernels.graphs import drawn
from timeloom.kernels import gate_loops, pointwise
from timeloom.kernels.pointwise import Columns, LstmGates

SIZES = [(0, 3), (1, 1), (7, 5), (9, 19), (33, 64)]


class Block:
    """Everything a pass may read or write, drawn the same every time."""

    def __init__(self, rows: int, size: int, dtype: torch.dtype) -> None:
        def of(columns: int, seed: int) -> Tensor:
            return drawn(rows, columns, seed=seed).to(dtype)

        self.pair, self.share = of(2 * size, 1), torch.sigmoid(of(2 * size, 15))
        self.candidate, self.was, self.leave, self.bent = (of(size, seed) for seed in (2, 3, 4, 5))
        self.before, self.after = Columns(of(size + 3, 6), 3), Columns(of(size + 2, 7), 2)
        self.c_before, self.c_after, self.d_h, self.d_c, self.d_kept = (of(size, seed) for seed in range(8, 13))
        self.d_three, self.d_four = of(3 * size, 13), of(4 * size, 14)
        self.held = torch.arange(rows) % 3 == 1

    def tensors(self) -> list[Tensor]:
        return [part.table_BK if isinstance(part, Columns) else part for part in vars(self).values()]


def lstm_of(b: Block, pair: Tensor) -> LstmGates:
    return LstmGates(pair, b.candidate, b.leave, b.c_before, b.c_after)


PASSES: dict[str, Callable[[Block], None]] = {
    "gru": lambda b: pointwise.gru(b.pair, b.candidate, b.was, held_B=b.held, before=b.before, after=b.after),
    "gru, nobody held": lambda b: pointwise.gru(
        b.pair, b.candidate, b.was, held_B=None, before=b.before, after=b.after
    ),
    "gru_back": lambda b: pointwise.gru_back(b.d_h, b.share, b.candidate, b.was, before=b.before, d_gates_BD=b.d_four),
    "tgcn_reset": lambda b: pointwise.tgcn_reset(b.pair, held_B=b.held, before=b.before, kept_BH=b.d_kept),
    "tgcn": lambda b: pointwise.tgcn(b.share, b.candidate, before=b.before, after=b.after),
    "tgcn_back": lambda b: pointwise.tgcn_back(
        b.d_h, b.share, b.candidate, before=b.before, d_gates_BD=b.d_three, kept_BH=b.d_kept
    ),
    "tgcn_reset_back": lambda b: pointwise.tgcn_reset_back(b.d_kept, b.d_h, b.share, b.was, d_gates_BD=b.d_three),
    "lstm": lambda b: pointwise.lstm(lstm_of(b, b.pair), held_B=b.held, before=b.before, after=b.after),
    "lstm, nobody held": lambda b: pointwise.lstm(lstm_of(b, b.pair), held_B=None, before=b.before, after=b.after),
    "lstm_back": lambda b: pointwise.lstm_back(b.d_h, b.d_c, lstm_of(b, b.share), b.d_four),
}


@pytest.mark.parametrize(("rows", "size"), SIZES)
@pytest.mark.parametrize("name", PASSES)
def test_compiled_passes_equal_those_in_torch(name: str, rows: int, size: int) -> None:
    compiled, plain = Block(rows, size, torch.float32), Block(rows, size, torch.float64)
    untouched = Block(rows, size, torch.float64)
    PASSES[name](compiled)
    PASSES[name](plain)
    changed = 0
    for ours, theirs, before in zip(compiled.tensors(), plain.tensors(), untouched.tensors(), strict=True):
        torch.testing.assert_close(ours.to(theirs.dtype), theirs, rtol=1e-5, atol=2e-6)
        changed += not torch.equal(theirs, before)
    assert changed or not rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_what_is_held_stays_to_the_bit(name: str, dtype: torch.dtype) -> None:
    block = Block(20, 19, dtype)
    PASSES[name](block)
    assert torch.equal(block.after.view(19)[block.held], block.before.view(19)[block.held])
    if name == "lstm":
        assert torch.equal(block.c_after[block.held], block.c_before[block.held])


def numbers() -> Tensor:
    """Return a row of numbers of all sizes, beyond what float32's exponential can give."""
    wide, small = torch.linspace(-120, 120, 4801, dtype=torch.float64), 10.0 ** torch.arange(-30, 1.0, 0.25).double()
    return torch.cat([wide, small, -small, 0.25 + small * 1e-3])[None].float()


def test_sigmoid_has_a_relative_error_of_a_millionth() -> None:
    x = numbers()
    pair, zeros = torch.cat([x, x], 1), torch.zeros_like(x)
    gate_loops.tgcn_reset(pair.numpy(), np.empty(0, bool), zeros.numpy(), 0, zeros.clone().numpy())
    exact = torch.sigmoid(x.double())
    for ours in torch.split(pair.double(), x.shape[1], 1):
        assert ((ours - exact).abs() <= torch.where(exact > 2e-38, 1e-6 * exact, 2e-38)).all()


def test_tanh_has_a_relative_error_of_a_millionth() -> None:
    x, zeros = numbers(), torch.zeros_like(numbers())
    candidate = x.clone()
    gate_loops.tgcn(torch.cat([zeros, zeros], 1).numpy(), candidate.numpy(), zeros.numpy(), 0, zeros.clone().numpy(), 0)
    exact = torch.tanh(x.double())
    assert ((candidate - exact).abs() <= 1e-6 * exact.abs()).all()


def test_no_number_stays_none() -> None:
    pair, candidate = torch.full((1, 6), torch.nan), torch.full((1, 3), torch.nan)
    after = Columns(torch.zeros(1, 3), 0)
    pointwise.gru(pair, candidate, torch.zeros(1, 3), held_B=None, before=Columns(torch.zeros(1, 3), 0), after=after)
    assert pair.isnan().all()
    assert candidate.isnan().all()

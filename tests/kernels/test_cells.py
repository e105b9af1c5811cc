"""The recurrent cells equal their equations, and torch's cells."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.kernels.graphs import drawn
from timeloom.kernels import cells, reference

Cell = Callable[..., Tensor | tuple[Tensor, ...]]
PAIRS: dict[str, tuple[Cell, Cell, int]] = {
    "gru": (cells.gru, reference.gru, 3),
    "lstm": (cells.lstm, reference.lstm, 4),
}
SIZES = [(1, 1), (5, 3), (0, 2), (7, 4)]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def inputs_of(name: str, num_nodes: int, hidden: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    gates = PAIRS[name][2] * hidden
    state = [drawn(num_nodes, hidden, seed=seed, dtype=dtype) for seed in range(len(PAIRS[name]) - 1)]
    seen, weight = drawn(num_nodes, gates, seed=3, dtype=dtype), drawn(gates, hidden, seed=4, dtype=dtype)
    if name == "gru":
        return [seen, state[0], weight, drawn(gates, seed=5, dtype=dtype)]
    return [seen, *state, weight]


def with_gradients(cell: Cell, inputs: list[Tensor]) -> list[Tensor]:
    inputs = [part.clone().requires_grad_() for part in inputs]
    out = cell(*inputs)
    outs = [out] if isinstance(out, Tensor) else list(out)
    loss = torch.stack([(part * drawn(*part.shape, seed=place)).sum() for place, part in enumerate(outs)]).sum()
    return [*(part.detach() for part in outs), *torch.autograd.grad(loss, inputs)]


@pytest.mark.parametrize(("num_nodes", "hidden"), SIZES)
@pytest.mark.parametrize("name", PAIRS)
def test_a_cell_equals_its_equations(name: str, num_nodes: int, hidden: int) -> None:
    fast, slow, _ = PAIRS[name]
    inputs = inputs_of(name, num_nodes, hidden)
    for ours, theirs in zip(with_gradients(fast, inputs), with_gradients(slow, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("num_nodes", "hidden"), SIZES)
def test_the_cell_of_tgcn_equals_its_equations(num_nodes: int, hidden: int) -> None:
    seen, h = drawn(num_nodes, 3 * hidden, seed=1), drawn(num_nodes, hidden, seed=2)
    weight = drawn(3, hidden, hidden, seed=3)

    def equations(seen: Tensor, h: Tensor, weight: Tensor) -> Tensor:
        update = 1 / (1 + torch.exp(-seen[:, :hidden] - h @ weight[0]))
        reset = 1 / (1 + torch.exp(-seen[:, hidden : 2 * hidden] - h @ weight[1]))
        return update * h + (1 - update) * torch.tanh(seen[:, 2 * hidden :] + (reset * h) @ weight[2])

    both = [with_gradients(cell, [seen, h, weight]) for cell in (cells.tgcn, equations)]
    for ours, theirs in zip(*both, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", PAIRS)
def test_a_cell_in_single_precision_is_near_its_equations(name: str) -> None:
    fast, slow, _ = PAIRS[name]
    inputs = inputs_of(name, 6, 4, torch.float32)
    ours, theirs = fast(*inputs), slow(*(part.double() for part in inputs))
    first, exact = (out if isinstance(out, Tensor) else torch.cat(out) for out in (ours, theirs))
    assert first.dtype == torch.float32
    torch.testing.assert_close(first.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PAIRS)
def test_a_cell_in_half_precision_stays_half_and_near(name: str) -> None:
    fast, slow, _ = PAIRS[name]
    inputs = [part.bfloat16() for part in inputs_of(name, 6, 4, torch.float32)]
    ours, theirs = fast(*inputs), slow(*(part.double() for part in inputs))
    first, exact = (out if isinstance(out, Tensor) else torch.cat(out) for out in (ours, theirs))
    assert first.dtype == torch.bfloat16
    torch.testing.assert_close(first.double(), exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", PAIRS)
def test_a_cell_stays_finite_for_huge_gates(name: str) -> None:
    fast = PAIRS[name][0]
    inputs = [part * 1e4 for part in inputs_of(name, 6, 4, torch.float32)]
    out = fast(*inputs)
    assert all(torch.isfinite(part).all() for part in ([out] if isinstance(out, Tensor) else out))


def test_the_gru_is_torchs() -> None:
    cell = nn.GRUCell(5, 4, dtype=torch.float64)
    x_NF, h_NH = drawn(6, 5, seed=1), drawn(6, 4, seed=2)
    seen_NG = x_NF @ cell.weight_ih.T + cell.bias_ih
    torch.testing.assert_close(
        cells.gru(seen_NG, h_NH, cell.weight_hh, cell.bias_hh), cell(x_NF, h_NH), rtol=1e-10, atol=1e-10
    )


def test_the_lstm_is_torchs() -> None:
    cell = nn.LSTMCell(5, 4, dtype=torch.float64)
    x_NF, h_NH, c_NH = drawn(6, 5, seed=1), drawn(6, 4, seed=2), drawn(6, 4, seed=3)
    # Ours adds one bias, and it is on the input side.
    seen_NG = x_NF @ cell.weight_ih.T + cell.bias_ih + cell.bias_hh
    ours, theirs = cells.lstm(seen_NG, h_NH, c_NH, cell.weight_hh), cell(x_NF, (h_NH, c_NH))
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)

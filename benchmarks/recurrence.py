"""How fast a window of a recurrent cell goes forward and back in blocks of nodes, one thread.

Against plain autograd of `kernels.cells`, torch's cell in a loop and torch's own recurrent layer over the sequence, all
in turn. The floor counts the products at the rate of a product in cache, and what must be read or written once at the
rate of a copy, one after the other, both measured in the same run.

    .venv/bin/python benchmarks/recurrence.py [--nodes 100000] [--rounds 5] [--block 2048] [--threads 1]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from timeloom.kernels import cells
from timeloom.kernels.block import Cell
from timeloom.kernels.blocked import Precision, Window, walk_window
from timeloom.kernels.blocked_cells import Gru, Lstm
from timeloom.kernels.front import Affine, Sight
from timeloom.kernels.workspace import Pool, keep_memory

HIDDEN, TIMES = 64, 4


def seconds_of(work: Callable[[], object]) -> float:
    """Return the processor seconds it takes once: others work on this machine too."""
    began = time.process_time()
    work()
    return time.process_time() - began


def gemm_flops(block: int, dtype: torch.dtype) -> float:
    """Return the rate of a block's product, the best of many."""
    x, w = torch.randn(block, HIDDEN).to(dtype), torch.randn(HIDDEN, 3 * HIDDEN).to(dtype)
    out = torch.empty(block, 3 * HIDDEN, dtype=dtype)
    best = min(seconds_of(lambda: [torch.mm(x, w, out=out) for _ in range(50)]) for _ in range(20)) / 50
    return 2 * x.numel() * 3 * HIDDEN / best


def copied_bytes() -> float:
    """Return bytes read and written a second by a copy that no cache holds, the best of some."""
    a, b = torch.zeros(50_000_000), torch.zeros(50_000_000)
    return 2 * a.numel() * 4 / min(seconds_of(lambda: a.copy_(b)) for _ in range(7))


class Case:
    """One cell behind one front, with everything that is measured on it."""

    def __init__(self, name: str, widths: tuple[int, ...], *, nodes: int, block: int) -> None:
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape: int) -> Tensor:
            return (torch.randn(shape, generator=generator) * 0.1).requires_grad_()

        gates = 3 if name == "gru" else 4
        self.name, self.widths, self.block, self.pool = name, widths, block, Pool()
        ends = (*widths, gates * HIDDEN)
        pairs = list(pairwise(ends))
        self.front = tuple(Affine(drawn(i, o), drawn(o), relu=place > 0) for place, (i, o) in enumerate(pairs))
        weight = drawn(gates * HIDDEN, HIDDEN)
        self.cell: Cell = Gru(weight, drawn(gates * HIDDEN)) if name == "gru" else Lstm(weight)
        self.rows = [drawn(nodes, widths[0]).detach() * 10 for _ in range(TIMES)]
        self.states = tuple(torch.zeros(nodes, HIDDEN) for _ in range(1 if name == "gru" else 2))
        self.d_last = torch.randn(nodes, HIDDEN, generator=generator)
        self.flops = 3 * 2.0 * TIMES * nodes * (sum(i * o for i, o in pairs) + gates * HIDDEN * HIDDEN)
        self.flops -= 2.0 * TIMES * nodes * pairs[0][0] * pairs[0][1]  # the rows need no gradient
        self.parameters = [*self.cell.parameters(), *(step.weight_IO for step in self.front)]
        torchs = nn.GRUCell if name == "gru" else nn.LSTMCell
        self.torch_cell = torchs(widths[-1], HIDDEN)
        self.torch_layer = (nn.GRU if name == "gru" else nn.LSTM)(widths[-1], HIDDEN)

    def bytes_moved(self, precision: Precision) -> float:
        """Return what is read or written at least: rows twice, factors and gates there and back."""
        nodes, size = len(self.rows[0]), 2 if precision == "bf16" else 4
        kept = self.widths[-1] + HIDDEN + sum(self.cell.kept) * HIDDEN
        return float(TIMES * nodes * (2 * 4 * self.widths[0] + 2 * size * kept))

    def blocked(self, precision: Precision) -> None:
        """Forward and backward in blocks."""
        sights = tuple(Sight(rows, None, None) for rows in self.rows)
        window = Window(sights, self.front, self.cell, (TIMES - 1,), None, precision, self.block)
        self._back(walk_window(window, self.states, self.pool).outputs[0], self.parameters)

    def _back(self, last: Tensor, parameters: list[nn.Parameter] | list[Tensor]) -> None:
        torch.autograd.grad(last, parameters, self.d_last)

    def _hidden(self, rows: Tensor, upto: int) -> Tensor:
        for step in self.front[:upto]:
            assert step.bias_O is not None
            rows = torch.addmm(step.bias_O, torch.relu(rows) if step.relu else rows, step.weight_IO)
        return torch.relu(rows) if 0 < upto < len(self.front) else rows

    def plain(self) -> None:
        """Forward and backward by autograd, with our cells."""
        state = self.states
        for rows in self.rows:
            seen = self._hidden(rows, len(self.front))
            if isinstance(self.cell, Gru):
                state = (cells.gru(seen, state[0], self.cell.weight_GH, self.cell.bias_G),)
            elif isinstance(self.cell, Lstm):
                state = cells.lstm(seen, state[0], state[1], self.cell.weight_GH)
        self._back(state[0], self.parameters)

    def torchs_cell(self) -> None:
        """Forward and backward by autograd, with torch's cell."""
        state: Tensor | tuple[Tensor, Tensor] | None = None
        for rows in self.rows:
            state = self.torch_cell(self._hidden(rows, len(self.front) - 1), state)
        assert state is not None
        self._back(state if isinstance(state, Tensor) else state[0], list(self.torch_cell.parameters()))

    def torchs_layer(self) -> None:
        """Forward and backward by autograd, with torch's layer over the sequence."""
        seen = torch.stack([self._hidden(rows, len(self.front) - 1) for rows in self.rows])
        self._back(self.torch_layer(seen)[0][-1], list(self.torch_layer.parameters()))


def measure(case: Case, rounds: int, *, gemm: dict[Precision, float], copied: float) -> None:
    """Print one case: seconds, and ratios to everything else measured in the same rounds."""
    precisions: tuple[Precision, ...] = ("exact", "bf16")
    works: dict[str, Callable[[], None]] = {
        "exact": lambda: case.blocked("exact"),
        "bf16": lambda: case.blocked("bf16"),
        "plain": case.plain,
        "torch's cell": case.torchs_cell,
        "torch's layer": case.torchs_layer,
    }
    for work in works.values():
        work()
    took = [{name: seconds_of(work) for name, work in works.items()} for _ in range(rounds)]
    print(f"{case.name}, front {case.widths}:")
    for precision in precisions:
        floor = case.flops / gemm[precision] + case.bytes_moved(precision) / copied
        own = statistics.median(row[precision] for row in took)
        print(f"  {precision}: {own:.3f} s, {own / floor:.2f} of the floor of {floor:.3f} s", end="")
        for other in ("plain", "torch's cell", "torch's layer"):
            ratios = sorted(row[other] / row[precision] for row in took)
            print(f"; {other} {statistics.median(ratios):.2f} ({ratios[0]:.2f} .. {ratios[-1]:.2f})", end="")
        print()


def main() -> None:
    """Measure each case in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep-memory", action="store_true", help="tune malloc, which also helps the others")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.keep_memory:
        keep_memory()
    gemm: dict[Precision, float] = {
        "exact": gemm_flops(chosen.block, torch.float32),
        "bf16": gemm_flops(chosen.block, torch.bfloat16),
    }
    copied = copied_bytes()
    print(f"products {gemm['exact'] / 1e9:.0f} and {gemm['bf16'] / 1e9:.0f} GF/s, copies {copied / 1e9:.1f} GB/s")
    for name, widths in (("gru", (64,)), ("gru", (128, 64)), ("lstm", (64,)), ("lstm", (128, 64))):
        measure(
            Case(name, widths, nodes=chosen.nodes, block=chosen.block), chosen.rounds, gemm=gemm, copied=copied
        )  # fmt: skip


if __name__ == "__main__":
    main()

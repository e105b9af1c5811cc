"""How fast the kernels are on this machine, measured and fitted to laws.

Shape letters: N nodes, E edges, F features, H heads, D features of a head.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from timeloom.kernels.aggregate import aggregate
from timeloom.kernels.attention import attend
from timeloom.kernels.edges import Edges, Rows
from timeloom.kernels.incremental import ChainStep, aggregate_chain, step_between
from timeloom.kernels.incremental_attention import attend_chain, attention_start, attention_step
from timeloom.kernels.norms import Norm, Scales, scales_of
from timeloom.kernels.versions import turned_round
from timeloom.plan.cost import KERNELS, Costs, Kernel, Work, errors, fit
from timeloom.train.costs import write_costs
from timeloom.train.session import device_of

NODES, DEGREES, WIDTHS = (1_000, 20_000, 100_000), (2, 10), (4, 32, 128)
_MOST_NUMBERS = 30_000_000  # larger cases take seconds and teach nothing new
_HEADS, _STEPS = 4, 3


@dataclass(frozen=True, slots=True)
class Measured:
    """The costs of a machine, and how well they tell the times that they were fitted to."""

    costs: Costs
    typical_error: dict[Kernel, float]
    """By what factor a prediction is off, in the middle of all cases."""


@dataclass(frozen=True, slots=True)
class _Case:
    kernel: Kernel
    work: Work
    seconds: float


def calibrate_machine(device: str, threads: int, tell: Callable[[str], None]) -> tuple[Measured, Path]:
    """Measure the kernels with so many threads (0: as torch chooses) and keep what they cost; return that, and where.

    ``tell`` is told of progress.
    """
    chosen = device_of(device)
    if threads:
        torch.set_num_threads(threads)
    measured = calibrate(chosen, tell)
    return measured, write_costs(measured.costs, chosen)


def calibrate(device: torch.device, tell: Callable[[str], None]) -> Measured:
    """Measure the kernels on a device with the number of threads that torch has now."""
    cases: list[_Case] = []
    for kernel, measure in (
        ("sum", _sums), ("step", _steps), ("attend", _attention), ("amend", _amendments),
        ("gather", _gathers), ("multiply", _products)
    ):  # fmt: skip
        tell(f"measuring {kernel}")
        cases += measure(device)
    laws, off = {}, {}
    for kernel in KERNELS:
        works = [case.work for case in cases if case.kernel == kernel]
        seconds = [case.seconds for case in cases if case.kernel == kernel]
        laws[kernel] = fit(works, seconds)
        off[kernel] = float(np.median(errors(laws[kernel], works, seconds)))
    return Measured(Costs(laws, torch.get_num_threads()), off)


def _best_of(run: Callable[[], object], device: torch.device, rounds: int = 3) -> float:
    """Return the shortest of a few times, after one that warms up."""
    took = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took.append(time.perf_counter() - began)
    return min(took[1:])


def _sizes() -> Iterator[tuple[int, int, int]]:
    for num_nodes in NODES:
        for degree in DEGREES:
            for width in WIDTHS:
                if num_nodes * degree * width <= _MOST_NUMBERS:
                    yield num_nodes, degree * num_nodes, width


def drawn_edges(num_nodes: int, num_edges: int, rng: np.random.Generator, device: torch.device) -> Edges:
    """Return edges between nodes of which few have many."""
    shares = 1.0 / np.arange(1, num_nodes + 1) ** 0.5
    names = rng.permutation(num_nodes)
    source, target = (
        names[rng.choice(num_nodes, num_edges, p=shares / shares.sum())].astype(np.int32) for _ in range(2)
    )  # fmt: skip
    keys = np.unique(target.astype(np.int64) << 32 | source)
    return edges_by_key(keys, num_nodes, device)


def edges_by_key(keys: np.ndarray, num_nodes: int, device: torch.device) -> Edges:
    """Return the edges of sorted keys, targets in the upper half."""
    target, source = keys >> 32, (keys & 0xFFFFFFFF).astype(np.int32)
    starts = np.searchsorted(target, np.arange(num_nodes + 1)).astype(np.int32)
    back_starts, back, order = turned_round(starts, source, num_nodes)
    into, out_of = (
        Rows(torch.from_numpy(begin), torch.from_numpy(ends), None)
        for begin, ends in ((starts, source), (back_starts, back))
    )  # fmt: skip
    return Edges(into, out_of, torch.from_numpy(order)).to(device)


def _drawn(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)


def _scales(edges: Edges, device: torch.device) -> Scales:
    return scales_of(Norm("sym"), edges, torch.ones(edges.num_nodes, dtype=torch.bool, device=device), torch.float32)


def _sums(device: torch.device) -> Iterator[_Case]:
    for num_nodes, num_edges, width in _sizes():
        edges = drawn_edges(num_nodes, num_edges, np.random.default_rng(0), device)
        scales, x_NF = _scales(edges, device), _drawn(device, num_nodes, width)
        took = _best_of(lambda: aggregate(edges, scales, x_NF), device)  # noqa: B023 (called before the next turn)
        yield _Case("sum", Work(num_nodes, len(edges), width), took)


def _steps(device: torch.device) -> Iterator[_Case]:
    """Yield what steps take beside the first sum of their chain."""
    for chain, width in _chains(device):
        scales = [_scales(edges, device) for edges in chain]
        x_NF = _drawn(device, chain[0].num_nodes, width)
        steps = [step_between(*edges, *both) for edges, both in zip(pairwise(chain), pairwise(scales), strict=True)]

        def run(steps: list[ChainStep]) -> None:
            aggregate_chain(chain[0], steps, scales[: len(steps) + 1], x_NF)  # noqa: B023

        whole, alone = (_best_of(lambda: run(some), device) for some in (steps, steps[:0]))  # noqa: B023
        yield _Case("step", _work(steps, chain[0].num_nodes, width), max(whole - alone, 0.05 * whole))


def _amendments(device: torch.device) -> Iterator[_Case]:
    """Yield what attention takes over a chain, whose first step makes all of the first snapshot, forward and back."""
    for chain, width in _chains(device):
        num_nodes = chain[0].num_nodes
        parts, loop_N = _attention_inputs(num_nodes, width, device), torch.ones(num_nodes, device=device)
        steps = [attention_start(chain[0], loop_N)]
        steps += [attention_step(*edges, loop_N, loop_N) for edges in pairwise(chain)]

        def run() -> None:
            seen = attend_chain(chain, *parts, steps=steps, loops=[loop_N] * len(steps), slope=0.2)  # noqa: B023
            torch.autograd.grad(torch.stack(seen).sum(), parts)  # noqa: B023

        yield _Case("amend", _work(steps, num_nodes, width), _best_of(run, device))


def _work(steps: list[ChainStep], num_nodes: int, width: int) -> Work:
    return Work(len(steps) * num_nodes, sum(step.num_entries for step in steps), width)


def _chains(device: torch.device) -> Iterator[tuple[list[Edges], int]]:
    """Yield snapshots that follow each other, and a width."""
    for num_nodes, num_edges, width in _sizes():
        for turnover in (0.01, 0.1):
            rng = np.random.default_rng(0)
            chain = [drawn_edges(num_nodes, num_edges, rng, device)]
            for _ in range(_STEPS):
                chain.append(_changed(chain[-1], turnover, rng, device))
            yield chain, width


def _changed(edges: Edges, turnover: float, rng: np.random.Generator, device: torch.device) -> Edges:
    """Return the same edges but for a share that is gone and as many new ones."""
    keys = edges.into.row_of_edges.long().cpu().numpy() << 32 | edges.into.neighbours_E.long().cpu().numpy()
    stay = keys[rng.random(len(keys)) >= turnover]
    ends = rng.integers(0, edges.num_nodes, (2, len(keys) - len(stay)))
    return edges_by_key(np.union1d(stay, ends[0] << 32 | ends[1]), edges.num_nodes, device)


def _attention(device: torch.device) -> Iterator[_Case]:
    for num_nodes, num_edges, width in _sizes():
        edges = drawn_edges(num_nodes, num_edges, np.random.default_rng(0), device)
        parts, loop_N = _attention_inputs(num_nodes, width, device), torch.ones(num_nodes, device=device)

        def run() -> None:
            seen = attend(edges, *parts, loop_N=loop_N, slope=0.2)  # noqa: B023
            torch.autograd.grad(seen.sum(), parts)  # noqa: B023

        yield _Case("attend", Work(num_nodes, len(edges), width), _best_of(run, device))


def _attention_inputs(num_nodes: int, width: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    value_NHD = _drawn(device, num_nodes, _HEADS, width // _HEADS).requires_grad_()
    sent_NH, received_NH = (_drawn(device, num_nodes, _HEADS).requires_grad_() for _ in range(2))
    return value_NHD, sent_NH, received_NH


def _gathers(device: torch.device) -> Iterator[_Case]:
    for num_rows, num_picked, width in _sizes():
        rows = _drawn(device, num_rows, width).requires_grad_()
        picked = torch.from_numpy(np.random.default_rng(0).integers(0, num_rows, num_picked)).to(device)

        def run() -> None:
            out = rows.index_select(0, picked)  # noqa: B023
            torch.autograd.grad(out, rows, torch.ones_like(out))  # noqa: B023

        yield _Case("gather", Work(num_rows, num_picked, width), _best_of(run, device))


def _products(device: torch.device) -> Iterator[_Case]:
    for num_rows in NODES:
        for width in (16, 64, 128):
            rows = _drawn(device, num_rows, width).requires_grad_()
            weight = _drawn(device, width, width).requires_grad_()

            def run() -> None:
                out = rows @ weight  # noqa: B023
                torch.autograd.grad(out, (rows, weight), torch.ones_like(out))  # noqa: B023

            yield _Case("multiply", Work(num_rows, 2 * num_rows * width * width // 1000, 1), _best_of(run, device))

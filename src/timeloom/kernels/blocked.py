"""A window of a recurrent cell, computed in blocks of nodes that stay in cache; its gradient is written by hand.

Nodes are independent in the recurrence, so a block of nodes is taken through all snapshots of a window before the next
one: what it needs lies in cache, and weights' gradients add up in place. Going back reads the gates that forward left.

Shape letters: N nodes, R rows of a table, A its columns, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from timeloom.kernels.block import Cell
from timeloom.kernels.front import Affine, Front, Sight
from timeloom.kernels.products import Kinds, Products
from timeloom.kernels.tape import Room, Spot, Tape, weights_of
from timeloom.kernels.workspace import Lease, Pool

Precision = Literal["exact", "bf16"]
State = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """What is computed: from the first sight to the last, every node's state by one cell.

    `precision` "bf16" multiplies bfloat16 factors; states and gates stay in the precision of the given state.
    """

    sights: tuple[Sight, ...]
    front: tuple[Affine, ...]
    """What rows go through before the cell; without any they are the input sides of its gates."""
    cell: Cell
    wanted: tuple[int, ...]
    """The places of the sights after which the output is asked for."""
    keep: int | None
    """The place of the sight after which the state is asked for, without a gradient."""
    precision: Precision = "exact"
    block: int = 2048
    """How many nodes are taken at once on a CPU."""


@dataclass(frozen=True, slots=True)
class Walked:
    """The outputs asked for, the state at the end, and that asked for (None where none was)."""

    outputs: tuple[Tensor, ...]
    state: State
    kept: State | None


def walk_window(window: Window, state: State, pool: Pool) -> Walked:
    """Take all nodes over a window. A gradient goes to rows, maps, cell and the state at the start, and only once."""
    parameters, tables = _parameters(window), _tables(window)
    tensors = (*state, *parameters, *tables)
    going_back = torch.is_grad_enabled() and any(part.requires_grad for part in tensors)
    parts: tuple[Tensor, ...] = _Walk.apply(  # type: ignore[no-untyped-call]
        _Run(window, len(state), pool, going_back), *tensors
    )
    ends = [len(window.wanted), len(window.wanted) + len(state)]
    return Walked(parts[: ends[0]], parts[ends[0] : ends[1]], None if window.keep is None else parts[ends[1] :])


def _parameters(window: Window) -> tuple[Tensor, ...]:
    biases = [step.bias_O for step in window.front if step.bias_O is not None]
    return (*window.cell.parameters(), *(step.weight_IO for step in window.front), *biases)


def _tables(window: Window) -> tuple[Tensor, ...]:
    return tuple({id(sight.rows_RA): sight.rows_RA for sight in window.sights}.values())


@dataclass(frozen=True, slots=True)
class _Run:
    """A window, and what its tensors are used for."""

    window: Window
    num_states: int
    pool: Pool
    going_back: bool

    def kinds(self, state: State) -> Kinds:
        """Return the dtypes."""
        exact = state[0].dtype
        return Kinds(exact, torch.bfloat16 if self.window.precision == "bf16" else exact, state[0].device)

    def shares(self, num_nodes: int, device: torch.device) -> list[list[Spot]]:
        """Return each worker's blocks: as many workers as torch has threads, neighbouring blocks to each."""
        size = max(1, num_nodes) if device.type != "cpu" else self.window.block
        spots = [self._spot(first, min(first + size, num_nodes)) for first in range(0, num_nodes, size)]
        workers = min(torch.get_num_threads() if device.type == "cpu" else 1, max(1, len(spots)))
        cuts = [len(spots) * place // workers for place in range(workers + 1)]
        return [spots[first:last] for first, last in pairwise(cuts)]

    def _spot(self, first: int, last: int) -> Spot:
        block = slice(first, last)
        return Spot(block, block if self.going_back else slice(last - first), len(self.window.sights))


class _Worker:
    """One thread's memory, and its gradients of what all nodes share."""

    def __init__(self, run: _Run, tape: Tape, most: int, *, kinds: Kinds, lease: Lease) -> None:
        window = run.window
        self.window = window
        self.room = Room(window.cell, tape, most, kinds=kinds, lease=lease)
        widths = [step.weight_IO.shape[1] for step in window.front]
        shapes = [step.weight_IO.shape for step in window.front]
        widest = max(window.cell.num_back * window.cell.hidden, *tape.x.shape[2:], *widths)
        largest = max(most * widest, *(rows * columns for rows, columns in shapes), widest * widest)
        self.products = Products(kinds, lease, largest)
        self.front = Front(window.front, most, kinds, lease) if window.front else None
        self.weights = weights_of(window.cell, window.front, kinds)
        self.d_tables: dict[int, Tensor] = {}

    def forward(self, spot: Spot, state: State, results: _Results) -> None:
        """Take a block over the window."""
        room, do = self.room, self.products
        room.start(state, spot)
        for t, sight in enumerate(self.window.sights):
            if self.front is not None:
                self.front.forward(sight, spot.block, room.x_at(t, spot), inner=room.inner(t, spot), do=do)
            at = room.ahead(t, spot, sight)
            self.window.cell.forward(at, self.weights, do)
            room.tape(t, spot, at)
            parts = (at.after.view(self.window.cell.hidden), *at.memories[1:])
            if t in results.outputs:
                output = results.outputs[t][spot.block].copy_(parts[0])
                if sight.alive_N is not None:
                    output.mul_(sight.alive_N[spot.block, None])
            for place, kept in ((len(self.window.sights) - 1, results.state), (self.window.keep, results.kept)):
                for copy, part in zip(kept if t == place else (), parts, strict=False):
                    copy[spot.block].copy_(part)

    def backward(self, spot: Spot, d_outputs: dict[int, Tensor], d_state: State, *, d_start: State) -> None:
        """Take a block's gradients back over the window, from what follows it to what it started from."""
        room, do, cell = self.room, self.products, self.window.cell
        back = room.back(spot)
        for part, after in zip((back.d_h_BH, back.d_c_BH), d_state, strict=False):
            part.copy_(after[spot.block])
        for t in reversed(range(len(self.window.sights))):
            sight = self.window.sights[t]
            at = room.behind(t, spot, sight)
            if t in d_outputs:
                d_output = d_outputs[t][spot.block]
                alive_N = sight.alive_N
                back.d_h_BH.add_(d_output if alive_N is None else d_output * alive_N[spot.block, None])
            cell.backward(at, self.weights, back, do)
            room.bias_sum.add_(back.d_BD.sum(0))
            seen = slice(back.d_BD.shape[1] - cell.num_gates * cell.hidden, None)
            d_rows: Tensor | None = back.d_BD[:, seen]
            if self.front is not None:
                inner = room.inner(t, spot)
                d_rows = self.front.backward(
                    sight, spot.block, at.x_BK, back.factor_BD[:, seen], inner=inner, do=do
                )  # fmt: skip
            self._to_table(sight, spot.block, d_rows)
        for start, part in zip(d_start, (back.d_h_BH, back.d_c_BH), strict=False):
            start[spot.block].copy_(part)

    def _to_table(self, sight: Sight, block: slice, d_rows_BA: Tensor | None) -> None:
        if d_rows_BA is None or not sight.rows_RA.requires_grad:
            return
        d_table = self.d_tables[id(sight.rows_RA)]
        if sight.index_N is None:
            d_table[block].add_(d_rows_BA)
        else:
            d_table.index_add_(0, sight.index_N[block], d_rows_BA)


@dataclass(frozen=True, slots=True)
class _Results:
    """Where forward writes what is asked for."""

    outputs: dict[int, Tensor]
    state: State
    kept: State


class _Walk(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Run, *tensors: Tensor) -> tuple[Tensor, ...]:
        window, state = run.window, tensors[: run.num_states]
        kinds, num_nodes = run.kinds(state), len(state[0])
        shares, lease = run.shares(num_nodes, state[0].device), run.pool.lease()
        most = _most(shares)
        results = _Results(
            {t: torch.empty_like(state[0]) for t in window.wanted},
            tuple(torch.empty_like(part) for part in state),
            tuple(torch.empty_like(part) for part in (() if window.keep is None else state)),
        )
        times = len(window.sights)

        def tape() -> Tape:
            rows, snapshots = (num_nodes, times) if run.going_back else (most, 2)
            return Tape(window.cell, window.front, rows, snapshots, kinds=kinds, lease=lease)

        shared = tape() if run.going_back else None
        scratch = run.pool.lease()
        workers = [_Worker(run, shared or tape(), most, kinds=kinds, lease=scratch) for _ in shares]

        def work(place: int) -> None:
            for spot in shares[place]:
                workers[place].forward(spot, state, results)

        _in_parallel(work, len(shares))
        if run.going_back:
            ctx.run, ctx.tape, ctx.lease = run, shared, lease
            ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*results.kept)
        return (*(results.outputs[t] for t in window.wanted), *results.state, *results.kept)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        run: _Run = ctx.run
        tensors: tuple[Tensor, ...] = ctx.saved_tensors
        window, state = run.window, tensors[: run.num_states]
        kinds = run.kinds(state)
        shares, scratch = run.shares(len(state[0]), state[0].device), run.pool.lease()
        wanted = len(window.wanted)
        d_outputs = {t: grad for t, grad in zip(window.wanted, gradients[:wanted], strict=True) if grad is not None}
        d_state = tuple(
            torch.zeros_like(part) if grad is None else grad
            for part, grad in zip(state, gradients[wanted:], strict=False)
        )
        d_start = tuple(torch.empty_like(part) for part in state)
        workers = [_Worker(run, ctx.tape, _most(shares), kinds=kinds, lease=scratch) for _ in shares]
        _give_tables(workers, window, kinds)

        def work(place: int) -> None:
            for spot in shares[place]:
                workers[place].backward(spot, d_outputs, d_state, d_start=d_start)

        _in_parallel(work, len(shares))
        grads = (*d_start, *_shared_gradients(workers, window), *_table_gradients(workers, window))
        return None, *(grad if grad is None else grad.to(of.dtype) for grad, of in zip(grads, tensors, strict=True))


def _most(shares: Sequence[Sequence[Spot]]) -> int:
    return max((spot.size for share in shares for spot in share), default=0)


def _give_tables(workers: Sequence[_Worker], window: Window, kinds: Kinds) -> None:
    """Give each worker a place for the gradients of tables; where blocks share rows, each its own."""
    for table in _tables(window):
        if not table.requires_grad:
            continue
        apart = any(sight.index_N is not None for sight in window.sights if sight.rows_RA is table)
        first = torch.zeros_like(table, dtype=kinds.exact)
        for place, worker in enumerate(workers):
            worker.d_tables[id(table)] = torch.zeros_like(first) if apart and place else first


def _table_gradients(workers: Sequence[_Worker], window: Window) -> list[Tensor | None]:
    grads: list[Tensor | None] = []
    for table in _tables(window):
        if not table.requires_grad:
            grads.append(None)
            continue
        parts = list({id(worker.d_tables[id(table)]): worker.d_tables[id(table)] for worker in workers}.values())
        for part in parts[1:]:
            parts[0].add_(part)
        grads.append(parts[0])
    return grads


def _shared_gradients(workers: Sequence[_Worker], window: Window) -> list[Tensor]:
    """Return the gradients of the cell and of the maps, in the order of the parameters."""
    first = workers[0]
    for worker in workers[1:]:
        for sums, more in zip(_sums(first), _sums(worker), strict=True):
            sums.add_(more)
    room, front = first.room, first.front
    grads = [*window.cell.gradients(room.sums, room.bias_sum)]
    if front is None:
        return grads
    d_seen = room.bias_sum[len(room.bias_sum) - window.cell.num_gates * window.cell.hidden :]
    biases = zip(window.front, (*front.bias_sums, d_seen), strict=True)
    return [*grads, *front.weight_sums, *(grad for step, grad in biases if step.bias_O is not None)]


def _sums(worker: _Worker) -> tuple[Tensor, ...]:
    front = worker.front
    of_maps = () if front is None else (*front.weight_sums, *front.bias_sums)
    return (*worker.room.sums, worker.room.bias_sum, *of_maps)


def _in_parallel(work: Callable[[int], None], number: int) -> None:
    """Do pieces of work in as many threads, each of which leaves torch's own threads alone."""
    if number == 1:
        work(0)
        return

    def alone(place: int) -> None:
        torch.set_num_threads(1)
        with torch.no_grad():
            work(place)

    with _threads_kept(), ThreadPoolExecutor(number) as pool:
        list(pool.map(alone, range(number)))


@contextmanager
def _threads_kept() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)

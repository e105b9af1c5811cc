"""What a window's forward pass leaves for its backward pass, and one worker's memory for a block.

Shape letters: N nodes, B rows of a block, H hidden size, Z columns that the last map sees, K = Z + H, G gates x H, D
columns of the gradients of the gates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from timeloom.kernels.block import Back, Cell, Moment, Weights
from timeloom.kernels.front import Affine, Sight, rows_seen
from timeloom.kernels.pointwise import Columns
from timeloom.kernels.products import Kinds
from timeloom.kernels.workspace import Lease


def weights_of(cell: Cell, front: tuple[Affine, ...], kinds: Kinds) -> Weights:
    """Return the weights of the last map and of the cell, laid out for the cell."""
    state_HG = cell.state_weight().to(kinds.factor).contiguous()
    seen_ZG = front[-1].weight_IO.to(kinds.factor) if front else state_HG[:0]
    seen_bias = front[-1].bias_O if front else None
    biases = [None if bias is None else bias.to(kinds.exact) for bias in (seen_bias, cell.state_bias())]
    there = [bias for bias in biases if bias is not None]
    both_bias = torch.stack(there).sum(0) if there else None
    back_GH = cell.back_weight().to(kinds.factor).contiguous()
    return Weights(seen_ZG, state_HG, back_GH, torch.cat([seen_ZG, state_HG]), biases[0], biases[1], both_bias)


class Tape:
    """Every snapshot's factors and gates, of all nodes; or of one block at two snapshots, where nothing goes back."""

    def __init__(
        self, cell: Cell, front: tuple[Affine, ...], num_nodes: int, num_snapshots: int, *, kinds: Kinds, lease: Lease
    ) -> None:
        size = cell.hidden
        seen = front[-1].weight_IO.shape[0] if front else 0

        def take(times: int, width: int, dtype: torch.dtype) -> Tensor:
            return lease.take((times, num_nodes, width), dtype, kinds.device)

        self.x = take(num_snapshots, seen + size, kinds.factor)
        self.inner = [take(num_snapshots, step.weight_IO.shape[1], kinds.factor) for step in front[:-2]]
        # Gates are not shortened: to convert them there and back costs more than it saves.
        self.gates = [take(num_snapshots, times * size, kinds.exact) for times in cell.kept]
        self.memory = take(num_snapshots + 1, size, kinds.exact) if cell.num_states == 2 else None


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a block lies: among the nodes, and in the tape."""

    block: slice
    rows: slice
    num_snapshots: int

    @property
    def size(self) -> int:
        """How many nodes there are."""
        return int(self.block.stop - self.block.start)


class Room:
    """One worker's memory for a block: states at both ends of a step, spares, and what backward goes with."""

    def __init__(self, cell: Cell, tape: Tape, most_rows: int, *, kinds: Kinds, lease: Lease) -> None:
        size = cell.hidden
        width = tape.x.shape[2]

        def exact(*columns: int) -> list[Tensor]:
            return [lease.take((most_rows, number), kinds.exact, kinds.device) for number in columns]

        self._tape, self._first, self._mixed = tape, width - size, kinds.mixed
        # With short factors the states are apart from the factors.
        self._states = exact(size, size) if kinds.mixed else []
        self._short = lease.take((most_rows, size), kinds.factor, kinds.device) if kinds.mixed else None
        self._end = lease.take((most_rows, width), kinds.factor, kinds.device)
        self._spares = exact(size, size)
        self._d_h, self._d_c, self._d_gates = exact(size, size, cell.num_back * size)
        self._d_factor = self._d_gates
        if kinds.mixed:
            self._d_factor = lease.take((most_rows, cell.num_back * size), kinds.factor, kinds.device)
        self._given = exact(cell.num_gates * size)[0]
        self.sums = tuple(self._d_h.new_zeros(shape) for shape in cell.sum_shapes())
        self.bias_sum = self._d_h.new_zeros(cell.num_back * size)

    def start(self, state: tuple[Tensor, ...], spot: Spot) -> None:
        """Write the state from which a block starts."""
        tape = self._tape
        tape.x[0, spot.rows, self._first :].copy_(state[0][spot.block])
        if self._mixed:
            self._states[0][: spot.size].copy_(state[0][spot.block])
        if tape.memory is not None:
            tape.memory[0, spot.rows].copy_(state[1][spot.block])

    def x_at(self, t: int, spot: Spot) -> Tensor:
        """Return what is multiplied at a snapshot; behind the last one there is a place for its state."""
        if t == spot.num_snapshots:
            return self._end[: spot.size]
        return self._tape.x[t % len(self._tape.x), spot.rows]

    def inner(self, t: int, spot: Spot) -> tuple[Tensor, ...]:
        """Return the inputs of the maps between the first and the last."""
        return tuple(part[t % len(part), spot.rows] for part in self._tape.inner)

    def _moment(self, t: int, spot: Spot, sight: Sight, *, place: int) -> Moment:
        size = spot.size
        before, after = Columns(self.x_at(t, spot), self._first), Columns(self.x_at(t + 1, spot), self._first)
        if self._mixed:
            before, after = Columns(self._states[place][:size], 0), Columns(self._states[1 - place][:size], 0)
        memory = self._tape.memory
        return Moment(
            x_BK=self.x_at(t, spot),
            given_BG=None if self._first else rows_seen(sight, spot.block, self._given[:size]),
            held_B=None if sight.alive_N is None else ~sight.alive_N[spot.block],
            before=before,
            after=after,
            memories=() if memory is None else tuple(memory[time % len(memory), spot.rows] for time in (t, t + 1)),
            gates=tuple(part[t % len(part), spot.rows] for part in self._tape.gates),
            spares=(self._spares[0][:size], self._spares[1][:size]),
            short_BH=None if self._short is None else self._short[:size],
        )

    def ahead(self, t: int, spot: Spot, sight: Sight) -> Moment:
        """Return a block's moment for the forward pass."""
        return self._moment(t, spot, sight, place=t % 2)

    def tape(self, t: int, spot: Spot, at: Moment) -> None:
        """Keep the state after as a factor, where the cell did not write it to the tape itself."""
        if self._mixed:
            self.x_at(t + 1, spot)[:, self._first :].copy_(at.after.table_BK)

    def behind(self, t: int, spot: Spot, sight: Sight) -> Moment:
        """Return a block's moment for the backward pass."""
        at = self._moment(t, spot, sight, place=0)
        if self._mixed:
            at.before.table_BK.copy_(at.h)
        return at

    def back(self, spot: Spot) -> Back:
        """Return what a block's backward pass goes with."""
        d_h, d_c, d_gates, factor = (
            part[: spot.size] for part in (self._d_h, self._d_c, self._d_gates, self._d_factor)
        )
        return Back(d_h, d_c, d_gates, factor if self._mixed else d_gates, self.sums)

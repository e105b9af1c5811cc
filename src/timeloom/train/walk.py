"""How a model is taken over a window, and what goes on from one window to the next.

A window is computed layer by layer: first what a layer makes of all of its snapshots, as far as somebody reads it, then
what it remembers from one to the next.

Shape letters: T snapshots of a window, N nodes, M nodes whose rows are read, H the model's output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import dropout

from timeloom.kernels.blocked import Precision, Window, walk_window
from timeloom.kernels.front import Sight
from timeloom.kernels.versions import Heard
from timeloom.kernels.workspace import Pool
from timeloom.nn.model import Model, PerNode, RowModel, State, View, remember, resume, start
from timeloom.nn.stack import layers_of
from timeloom.nn.watch import Asked, watch
from timeloom.plan.types import Unit
from timeloom.train.demand import Reads, Wanted, encoded_rows, read_outputs, rows_below
from timeloom.train.encode import Encoded, Encoder, encode_above, is_nobody
from timeloom.train.feed import Feed
from timeloom.train.goals.goal import Seen
from timeloom.train.groups import Groups
from timeloom.train.profile import Profile
from timeloom.train.table_view import heard
from timeloom.train.window_view import SomeNodes


@dataclass(frozen=True, slots=True)
class Carry:
    """What there is after a snapshot: the model's state, every node's last row, and which nodes were born."""

    state: State
    out_NH: Tensor
    born_N: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """Return all of it, for a checkpoint."""
        return (*self.state, self.out_NH, self.born_N)


def first_carry(model: Model, feed: Feed) -> Carry:
    """Return what there is before the first snapshot."""
    like = next(model.parameters())
    size = feed.graph.num_nodes
    return Carry(
        start(model.memory(), size, like),
        torch.zeros(size, model.out_size, dtype=like.dtype, device=like.device),
        torch.zeros(size, dtype=torch.bool, device=like.device),
    )


def carry_of(model: Model, tensors: tuple[Tensor, ...], num_nodes: int) -> Carry:
    """Return what was saved; nodes that joined the graph since start as they would have then."""
    more = num_nodes - len(tensors[-1])
    of_nodes = [*(isinstance(slot, PerNode) for slot in model.memory()), True, True]
    rows = [
        torch.cat([part, part.new_zeros(more, *part.shape[1:])]) if more and is_rows else part
        for part, is_rows in zip(tensors, of_nodes, strict=True)
    ]
    return Carry(tuple(rows[:-2]), rows[-2], rows[-1])


def goes_on(model: Model, carry: Carry) -> Carry:
    """Return what a window starts from that goes on where another ended; no gradient flows back into that one."""
    like = next(model.parameters())
    # Under bf16 what is carried from window to window is kept exactly.
    state = tuple(part.to(like.dtype) for part in resume(model.memory(), carry.state))
    return Carry(state, carry.out_NH.detach().to(like.dtype), carry.born_N)


@dataclass(frozen=True, slots=True)
class _Demand:
    """Which rows are read in a window."""

    encoded: list[Wanted]
    """Of what each layer makes of the snapshots."""
    outputs: list[Wanted]
    """Of what each layer gives."""


@dataclass(frozen=True, slots=True)
class _Remembered:
    """What a layer gave, and what it remembers after the snapshot that is kept."""

    outputs_T: list[Tensor]
    """[N, H] for each snapshot, 0 where nobody reads; [0, H] where nobody reads anything."""
    kept: State


class Walker:
    """A model and a graph, and what is known of how the one goes over the other."""

    def __init__(
        self, model: Model, feed: Feed, encoder: Encoder, *, hold: bool, bf16: bool, profile: Profile
    ) -> None:  # fmt: skip
        """With ``hold`` a node that is absent keeps its state and its last row, else it goes on without edges.

        One that is not yet born gives 0 either way (SPEC D1.4).
        """
        self.model, self.feed, self.encoder, self._hold, self._profile = model, feed, encoder, hold, profile
        self._layers, self._dropout = layers_of(model)
        above = (watch(layer, below.out_size) for below, layer in pairwise(self._layers))
        self._asked: list[Asked] = [encoder.asked, *above]
        self._precision: Precision = "bf16" if bf16 else "exact"
        self._pool = Pool()
        self._demands: dict[tuple[Unit, bool], _Demand] = {}

    def walk(
        self, unit: Unit, carry: Carry, reads: Reads | None = None, groups: Groups | None = None
    ) -> tuple[list[Seen], Carry | None]:  # fmt: skip
        """Take the model over a window; return what is seen at its targets, and what is kept for the next window.

        Of what is seen, rows of nodes that are not among ``reads`` (None: all are read) mean nothing. ``reads`` is one
        and the same function in every call that gives it. ``groups`` holds what the window shares with others.
        """
        demand = self._demand(unit, reads)
        outputs, kept, begin = list[Tensor](), list[Tensor](), 0
        for depth, layer in enumerate(self._layers):
            end = begin + len(layer.memory())
            state = carry.state[begin:end]
            with self._profile.phase("encode"):
                if depth:
                    encoded = self._encode_above(layer, unit, outputs, demand.encoded[depth])
                elif groups is not None:
                    encoded = groups.of(unit)
                else:
                    encoded = self.encoder.encode(tuple(range(unit.first, unit.last)), demand.encoded[0])
            with self._profile.phase("recur"):
                if isinstance(layer, RowModel):
                    told = self._in_blocks(layer, unit, encoded, state, demand.outputs[depth])
                else:
                    told = self._step_by_step(layer, unit, encoded, state)
            outputs, begin = told.outputs_T, end
            kept.extend(told.kept)
        return self._seen(unit, carry, outputs, tuple(kept))

    def groups(self, units: Sequence[Unit], reads: Reads | None) -> Groups:
        """Return what several windows share; each is walked with it, then it goes back."""
        return Groups(self.encoder, units, [self._demand(unit, reads).encoded[0] for unit in units])

    def _demand(self, unit: Unit, reads: Reads | None) -> _Demand:
        """Return which rows of each layer are read."""
        key = (unit, reads is None)
        if (known := self._demands.get(key)) is not None:
            return known
        alive_T = [self.feed.snapshot(t).alive for t in range(unit.first, unit.last)]
        outputs, encoded = [read_outputs(unit, alive_T, reads, hold=self._hold)], list[Wanted]()
        for layer, asked in zip(reversed(self._layers), reversed(self._asked), strict=True):
            encoded.append(encoded_rows(layer, outputs[-1], unit))
            outputs.append(rows_below(asked, encoded[-1], partial(self._heard, asked, unit.first), alive_T))
        self._demands[key] = found = _Demand(encoded[::-1], outputs[-2::-1])
        return found

    def _heard(self, asked: Asked, first: int, place: int) -> list[Heard]:
        view = self.feed.view(first + place)
        return [heard(view, reverse=reverse) for reverse in asked.directions]

    def _encode_above(self, layer: Model, unit: Unit, below: list[Tensor], wanted: Wanted) -> Encoded:
        inputs = [dropout(rows, self._dropout, self.model.training) for rows in below]
        return encode_above(layer, [self.feed.view(t) for t in range(unit.first, unit.last)], inputs, wanted)

    def _in_blocks(
        self, layer: RowModel, unit: Unit, encoded: Encoded, state: State, outputs: Wanted
    ) -> _Remembered:  # fmt: skip
        """Take a layer's maps and cell over the window in blocks of nodes."""
        wanted = [place for place, mask in enumerate(outputs) if not is_nobody(mask)]
        nodes = encoded.nodes_T[0]
        begin = state if nodes is None else tuple(part.index_select(0, nodes) for part in state)
        window = Window(
            sights=tuple(self._sight(unit.first + place, encoded, place) for place in range(len(outputs))),
            front=encoded.maps, cell=layer.cell(), wanted=tuple(wanted),
            keep=unit.keep - unit.first if unit.keep >= 0 else None, precision=self._precision,
        )  # fmt: skip
        with torch.autocast(state[0].device.type, enabled=False):
            walked = walk_window(window, begin, self._pool)
        given = [state[0].new_zeros(0, layer.out_size)] * len(outputs)
        for place, out in zip(wanted, walked.outputs, strict=True):
            given[place] = out if nodes is None else spread_out(out, nodes, self.feed.graph.num_nodes)
        return _Remembered(given, state if walked.kept is None else walked.kept)

    def _sight(self, t: int, encoded: Encoded, place: int) -> Sight:
        view, nodes = self.feed.view(t), encoded.nodes_T[place]
        alive_N = None
        if self._hold and not view.all_alive:
            alive_N = view.alive_N if nodes is None else view.alive_N.index_select(0, nodes)
        return Sight(encoded.part(place)[0], encoded.places(place), alive_N)

    def _step_by_step(self, layer: Model, unit: Unit, encoded: Encoded, state: State) -> _Remembered:
        """Take a layer's memory over the window, snapshot by snapshot."""
        size, of_nodes = self.feed.graph.num_nodes, [isinstance(slot, PerNode) for slot in layer.memory()]
        if any(of_nodes) and (nodes := encoded.nodes_T[0]) is not None:
            # The same nodes at all times, and nothing is kept: their states are all there is.
            state = tuple(
                part.index_select(0, nodes) if own else part for part, own in zip(state, of_nodes, strict=True)
            )
        outputs, kept = list[Tensor](), state
        for t in range(unit.first, unit.last):
            nodes, view = encoded.nodes_T[t - unit.first], self.feed.view(t)
            seen: View = view if nodes is None else SomeNodes(view, nodes)
            out, state = remember(layer, seen, encoded.rows(t - unit.first), state, hold=self._hold)
            if nodes is not None and len(nodes):
                out = spread_out(out, nodes, size)
            outputs.append(out)
            kept = state if t == unit.keep else kept
        return _Remembered(outputs, kept)

    def _seen(self, unit: Unit, carry: Carry, outputs: list[Tensor], state: State) -> tuple[list[Seen], Carry | None]:
        """Return what is seen at the targets, and what goes on: absent nodes show the row that they had last."""
        seen, kept = list[Seen](), None
        out_NH, born_N = carry.out_NH, carry.born_N
        for t, out in zip(range(unit.first, unit.last), outputs, strict=True):
            view = self.feed.view(t)
            born_N = born_N | view.alive_N
            if len(out):
                here_N = view.alive_N if self._hold else born_N
                out_NH = out if view.all_alive else torch.where(here_N[:, None], out, out_NH)
            if t in unit.targets:
                seen.append(Seen(t, out_NH, born_N))
            if t == unit.keep:
                kept = goes_on(self.model, Carry(state, out_NH, born_N))
        return seen, kept


def spread_out(rows_MH: Tensor, nodes_M: Tensor, num_nodes: int) -> Tensor:
    """Return a row for every node: those of some nodes, 0 for the others."""
    return rows_MH.new_zeros(num_nodes, rows_MH.shape[1]).index_copy(0, nodes_M, rows_MH)

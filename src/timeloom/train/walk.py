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
from timeloom.plan.batch.pieces import Piece, whole
from timeloom.plan.types import Unit
from timeloom.train.demand import Reads, Wanted, encoded_rows, read_by_any, read_outputs, rows_below
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
    size = feed.num_nodes
    return Carry(
        start(model.memory(), size, like),
        torch.zeros(size, model.out_size, dtype=like.dtype, device=like.device),
        torch.zeros(size, dtype=torch.bool, device=like.device),
    )


def carry_of(model: Model, tensors: tuple[Tensor, ...], num_nodes: int) -> Carry:
    """Return what was saved; nodes that joined the graph since start as they would have then."""
    more = num_nodes - len(tensors[-1])
    if more < 0 or tensors[-2].shape[1:] != (model.out_size,):
        raise ValueError(f"what is carried is of {len(tensors[-1])} nodes and shape {list(tensors[-2].shape)}")
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
class Demand:
    """Which rows are read in a window."""

    encoded: list[Wanted]
    """Of what each layer makes of the snapshots."""
    outputs: list[Wanted]
    """Of what each layer gives."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a layer gave, and what it remembers."""

    outputs_T: list[Tensor]
    """[N, H] for each snapshot, 0 where nobody reads; [0, H] where nobody reads anything."""
    state: State
    """After the last snapshot: a gradient goes back through it. Where only some nodes are read, theirs alone."""
    kept: State
    """After the snapshot that is kept."""


@dataclass(frozen=True, slots=True)
class Walked:
    """What came of a piece of a window."""

    seen: list[Seen]
    """At its targets."""
    after: Carry
    """What the next piece of the window goes on from, gradients and all."""
    kept: Carry | None
    """What the next window goes on from, detached, where it goes on from a snapshot of this piece."""


class Walker:
    """A model and a graph, and what is known of how the one goes over the other."""

    def __init__(
        self, model: Model, feed: Feed, encoder: Encoder, *, hold: bool, bf16: bool, profile: Profile
    ) -> None:  # fmt: skip
        """With ``hold`` a node that is absent keeps its state and its last row, else it goes on without edges.

        One that is not yet born gives 0 either way (SPEC D1.4).
        """
        self.model, self.feed, self.encoder, self.hold, self._profile = model, feed, encoder, hold, profile
        self.layers, self._dropout = layers_of(model)
        above = (watch(layer, below.out_size) for below, layer in pairwise(self.layers))
        self._asked: list[Asked] = [encoder.asked, *above]
        self.precision: Precision = "bf16" if bf16 else "exact"
        self.pool = Pool()
        self._demands: dict[tuple[Unit, bool], Demand] = {}

    def walk(
        self, unit: Unit, carry: Carry, reads: Reads | None = None, groups: Groups | None = None
    ) -> tuple[list[Seen], Carry | None]:  # fmt: skip
        """Take the model over a window; return what is seen at its targets, and what is kept for the next window.

        Of what is seen, rows of nodes that are not among ``reads`` (None: all are read) mean nothing. ``reads`` is one
        and the same function in every call that gives it. ``groups`` holds what the window shares with others.
        """
        piece = whole(unit)
        walked = self.go(piece, self.encode(piece, reads, groups), carry, reads)
        return walked.seen, walked.kept

    def encode(self, piece: Piece, reads: Reads | None, groups: Groups | None = None) -> Encoded:
        """Return what the first layer makes of a piece of a window."""
        with self._profile.phase("encode"):
            if groups is not None:
                return groups.of(piece)
            return self.encoder.encode(piece.times, _of(piece, self.demand(piece.window, reads).encoded[0]))

    def go(self, piece: Piece, encoded: Encoded, carry: Carry, reads: Reads | None) -> Walked:
        """Take the model over a piece of a window that is encoded, from what there was before it; see `walk`."""
        demand = self.demand(piece.window, reads)
        outputs, state, kept = list[Tensor](), list[Tensor](), list[Tensor]()
        for depth, layer in enumerate(self.layers):
            before = carry.state[len(state) : len(state) + len(layer.memory())]
            if depth:
                encoded = self.encode_above(depth, piece, outputs, reads)
            told = self.remember(depth, piece, encoded, before, _of(piece, demand.outputs[depth]))
            outputs = told.outputs_T
            state.extend(told.state)
            kept.extend(told.kept)
        return self.see(piece, carry, outputs, tuple(state), tuple(kept))

    def remember(self, depth: int, piece: Piece, encoded: Encoded, state: State, outputs: Wanted) -> Remembered:
        """Take a layer's memory over a piece; ``outputs`` says which rows are read of what it gives."""
        layer = self.layers[depth]
        with self._profile.phase("recur"):
            if isinstance(layer, RowModel):
                return self._in_blocks(layer, piece, encoded, state, outputs)
            return self._step_by_step(layer, piece, encoded, state)

    @property
    def free_bytes(self) -> int:
        """The memory that is held for the next window."""
        return self.pool.free_bytes

    def groups(self, units: Sequence[Unit], reads: Reads | None) -> Groups:
        """Return what several windows share; each is walked with it, then it goes back."""
        return self.groups_of([whole(unit) for unit in units], reads)

    def groups_of(self, pieces: Sequence[Piece], reads: Reads | None) -> Groups:
        """Return what pieces of several windows share."""
        return Groups(
            self.encoder, pieces, [_of(piece, self.demand(piece.window, reads).encoded[0]) for piece in pieces]
        )

    def demand(self, unit: Unit, reads: Reads | None) -> Demand:
        """Return which rows of each layer are read."""
        key = (unit, reads is None)
        if (known := self._demands.get(key)) is not None:
            return known
        alive_T = [self.feed.alive(t) for t in range(unit.first, unit.last)]
        outputs, encoded = [read_outputs(unit, alive_T, reads, hold=self.hold)], list[Wanted]()
        if not self.feed.holding.holds_all:
            outputs = [read_by_any(outputs[0], self.feed.holding)]
        for layer, asked in zip(reversed(self.layers), reversed(self._asked), strict=True):
            encoded.append(encoded_rows(layer, outputs[-1], unit))
            if len(encoded) < len(self.layers):
                outputs.append(rows_below(asked, encoded[-1], partial(self._heard, asked, unit.first), alive_T))
        self._demands[key] = found = Demand(encoded[::-1], outputs[::-1])
        return found

    def _heard(self, asked: Asked, first: int, place: int) -> list[Heard]:
        view = self.feed.whole_view(first + place)
        return [heard(view, reverse=reverse) for reverse in asked.directions]

    def encode_above(self, depth: int, piece: Piece, below: list[Tensor], reads: Reads | None) -> Encoded:
        """Return what a layer above the first makes of what the one below gave."""
        inputs = [dropout(rows, self._dropout, self.model.training) for rows in below]
        wanted = _of(piece, self.demand(piece.window, reads).encoded[depth])
        with self._profile.phase("encode"):
            views = [self.feed.view(t) for t in piece.times]
            opening = self._asked[depth].opening if self.feed.holding.overlaps else None
            return encode_above(self.layers[depth], views, inputs, wanted, opening=opening)

    def _in_blocks(
        self, layer: RowModel, piece: Piece, encoded: Encoded, state: State, outputs: Wanted
    ) -> Remembered:  # fmt: skip
        """Take a layer's maps and cell over the window in blocks of nodes."""
        wanted = [place for place, mask in enumerate(outputs) if not is_nobody(mask)]
        nodes = encoded.nodes_T[0]
        begin = state
        if nodes is not None and piece.starts:
            begin = tuple(part.index_select(0, nodes) for part in state)
        window = Window(
            sights=tuple(self._sight(piece.first + place, encoded, place) for place in range(len(outputs))),
            front=encoded.maps, cell=layer.cell(), wanted=tuple(wanted),
            keep=piece.window.keep - piece.first if piece.keeps else None, precision=self.precision,
        )  # fmt: skip
        with torch.autocast(state[0].device.type, enabled=False):
            walked = walk_window(window, begin, self.pool)
        given = [state[0].new_zeros(0, layer.out_size)] * len(outputs)
        for place, out in zip(wanted, walked.outputs, strict=True):
            given[place] = out if nodes is None else spread_out(out, nodes, self.feed.num_nodes)
        return Remembered(given, walked.state, state if walked.kept is None else walked.kept)

    def _sight(self, t: int, encoded: Encoded, place: int) -> Sight:
        view, nodes = self.feed.view(t), encoded.nodes_T[place]
        alive_N = None
        if self.hold and not view.all_alive:
            alive_N = view.alive_N if nodes is None else view.alive_N.index_select(0, nodes)
        return Sight(encoded.part(place)[0], encoded.places(place), alive_N)

    def _step_by_step(self, layer: Model, piece: Piece, encoded: Encoded, state: State) -> Remembered:
        """Take a layer's memory over the window, snapshot by snapshot."""
        size, of_nodes = self.feed.num_nodes, [isinstance(slot, PerNode) for slot in layer.memory()]
        if piece.starts and any(of_nodes) and (nodes := encoded.nodes_T[0]) is not None:
            # The same nodes at all times, and nothing is kept: their states are all there is.
            state = tuple(
                part.index_select(0, nodes) if own else part for part, own in zip(state, of_nodes, strict=True)
            )
        outputs, kept = list[Tensor](), state
        for place, t in enumerate(piece.times):
            nodes, view = encoded.nodes_T[place], self.feed.view(t)
            seen: View = view if nodes is None else SomeNodes(t, view.alive_N.index_select(0, nodes))
            out, state = remember(layer, seen, encoded.rows(place), state, hold=self.hold)
            if nodes is not None and len(nodes):
                out = spread_out(out, nodes, size)
            outputs.append(out)
            kept = state if t == piece.window.keep else kept
        return Remembered(outputs, state, kept)

    def see(self, piece: Piece, carry: Carry, outputs: list[Tensor], state: State, kept: State) -> Walked:
        """Return what is seen at the targets, and what goes on: absent nodes show the row that they had last."""
        seen, keeps = list[Seen](), None
        out_NH, born_N = carry.out_NH, carry.born_N
        for t, out in zip(piece.times, outputs, strict=True):
            view = self.feed.view(t)
            born_N = born_N | view.alive_N
            if len(out):
                here_N = view.alive_N if self.hold else born_N
                out_NH = out if view.all_alive else torch.where(here_N[:, None], out, out_NH)
            if t in piece.window.targets:
                seen.append(Seen(t, out_NH, born_N))
            if t == piece.window.keep:
                keeps = goes_on(self.model, Carry(kept, out_NH, born_N))
        return Walked(seen, Carry(state, out_NH, born_N), keeps)


def _of(piece: Piece, wanted: Wanted) -> Wanted:
    """Return what of a window's snapshots belongs to a piece."""
    return wanted[piece.first - piece.window.first : piece.last - piece.window.first]


def spread_out(rows_MH: Tensor, nodes_M: Tensor, num_nodes: int) -> Tensor:
    """Return a row for every node: those of some nodes, 0 for the others."""
    return rows_MH.new_zeros(num_nodes, rows_MH.shape[1]).index_copy(0, nodes_M, rows_MH)

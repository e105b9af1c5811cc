"""A rank that has a stretch of every window's snapshots, and some of the nodes at all times (ESDG's all-to-all).

What depends on a snapshot alone is computed where the snapshot is; rows are then dealt out anew, so that each rank
remembers for its own nodes over the whole window; outputs go back to where their snapshots are.

Shape letters: T snapshots of a window, t mine, N nodes, n mine, F numbers of a row, H a layer's output size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from timeloom.dist.flight import tie
from timeloom.dist.redistribute import Deal, by_nodes, by_snapshots
from timeloom.kernels.blocked import Window, walk_window
from timeloom.kernels.front import Affine, Sight, mapped
from timeloom.nn.model import Model, RowModel, State, remember, start
from timeloom.plan.batch.pieces import Piece, dealt
from timeloom.plan.types import Unit
from timeloom.train.encode import Encoded
from timeloom.train.goals.goal import Draw, Seen
from timeloom.train.session import Session, piece_randomness
from timeloom.train.walk import Carry, goes_on
from timeloom.train.whole import WholeWorker
from timeloom.train.window_view import SomeNodes
from timeloom.train.worker import Learnt, Worker


@dataclass(frozen=True, slots=True)
class _Laid:
    """Encoded rows one beside the other, ready to be sent."""

    x_tNF: Tensor
    shapes: tuple[tuple[int, ...], ...]
    """Of a node's rows."""
    maps: tuple[Affine, ...]
    """What rows have yet to go through where they arrive."""


class AllToAllWorker(Worker):
    """It encodes its snapshots for all nodes and remembers for its nodes at all times."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._alone = WholeWorker(session)
        world, size = session.world, session.graph.num_nodes
        self._nodes = tuple((rank + 1) * size // world.size - rank * size // world.size for rank in range(world.size))
        ends = list(accumulate(self._nodes))
        self._own = slice(ends[world.rank] - self._nodes[world.rank], ends[world.rank])

    def start(self) -> Carry:
        """Return what there is before the first snapshot, of its nodes."""
        model, size = self.session.model, self._nodes[self.session.world.rank]
        like = next(model.parameters())
        born = torch.zeros(size, dtype=torch.bool, device=like.device)
        return Carry(start(model.memory(), size, like), like.new_zeros(size, model.out_size), born)

    def learn(self, units: tuple[Unit, ...], draw: Draw, carry: Carry | None) -> Learnt:
        """Collective. Go over the windows, one after the other."""
        session, world, total, kept = self.session, self.session.world, 0.0, None
        for unit in units:
            before = self.start() if unit.fresh or carry is None else goes_on(session.model, carry)
            pieces = dealt(unit, world.size)
            # A rank without snapshots draws nothing.
            piece = pieces[min(world.rank, len(pieces) - 1)]
            with piece_randomness(session, draw, piece), session.computing():
                shown, seen, kept = self._over(unit, pieces, before)
                losses = [loss for one in seen if (loss := session.goal.loss(session.head, one, draw)) is not None]
            count = int(world.all_reduce(torch.tensor([len(losses)]), "control/targets"))
            if not count:
                continue
            own = shown.new_zeros(())
            if losses:
                own = torch.stack([loss.total / loss.count for loss in losses]).sum() / count
            tie(own, [shown]).backward()  # type: ignore[no-untyped-call]
            total += float(own.detach())
        return Learnt(loss=total, weight=0.0 if world.rank else len(units), kept=kept)

    def _over(self, unit: Unit, pieces: list[Piece], carry: Carry) -> tuple[Tensor, list[Seen], Carry | None]:
        """Collective. Return what came back of the window's targets, what it shows, and what is kept."""
        world, walker = self.session.world, self.session.walker
        mine = pieces[world.rank] if world.rank < len(pieces) else None
        deal = Deal(self._dealt([len(piece.times) for piece in pieces]), self._nodes)
        state, kept, below = list[Tensor](), list[Tensor](), None
        alive_Tn, out_TnH = torch.empty(0), torch.empty(0)
        for depth, layer in enumerate(walker.layers):
            laid = self._laid(depth, pieces[0] if mine is None else mine, below)
            x_tNF = laid.x_tNF
            if depth == 0:
                x_tNF = torch.cat([x_tNF, self._alive(pieces[0] if mine is None else mine).to(x_tNF.dtype)], 2)
            if mine is None:
                x_tNF = x_tNF[:0] if below is None else tie(x_tNF[:0], [below])
            x_TnF = by_nodes(world, deal, x_tNF, f"state/layer{depth}")
            if depth == 0:
                alive_Tn, x_TnF = x_TnF[:, :, -1] > 0, x_TnF[:, :, :-1]
            before = carry.state[len(state) : len(state) + len(layer.memory())]
            laid = _Laid(x_TnF, laid.shapes, laid.maps)
            out_TnH, after, keeps = self._remembered(layer, unit, laid, alive_Tn, before)
            state.extend(after)
            kept.extend(keeps)
            if depth + 1 < len(walker.layers):
                below = by_snapshots(world, deal, out_TnH, f"state/layer{depth}/out")
        return self._shown(unit, pieces, alive_Tn, out_TnH, carry, tuple(kept))

    def _dealt(self, counts: list[int]) -> tuple[int, ...]:
        """Return counts of the ranks that have a piece as counts of all ranks."""
        return (*counts, *[0] * (self.session.world.size - len(counts)))

    def _alive(self, piece: Piece) -> Tensor:
        """Return [t, N, 1] which nodes are there."""
        return torch.stack([self.session.feed.view(t).alive_N for t in piece.times])[:, :, None]

    def _laid(self, depth: int, piece: Piece, below_tNH: Tensor | None) -> _Laid:
        """Encode a piece for all nodes. A rank without one encodes another's, to know how wide rows are."""
        walker, num = self.session.walker, len(piece.times)
        if below_tNH is None:
            encoded = walker.encoder.encode(piece.times, (None,) * num, folds=False)
        else:
            empty = not len(below_tNH)
            inputs = below_tNH.new_zeros(num, *below_tNH.shape[1:]) if empty else below_tNH
            encoded = walker.encode_above(depth, piece, list(inputs.unbind()), None)
        rows_T = [_rows(encoded, place) for place in range(num)]
        maps = encoded.maps
        if maps:
            # The fewer columns the better: some maps make rows shorter before they travel.
            widths = [rows_T[0][0].shape[1], *(step.weight_IO.shape[1] for step in maps)]
            first = widths.index(min(widths))
            rows_T, maps = [(mapped(rows[0], maps[:first]),) for rows in rows_T], maps[first:]
        x_tNF = torch.stack([torch.cat([part.flatten(1) for part in rows], 1) for rows in rows_T])
        return _Laid(x_tNF, tuple(tuple(part.shape[1:]) for part in rows_T[0]), maps)

    def _remembered(
        self, layer: Model, unit: Unit, laid: _Laid, alive_Tn: Tensor, state: State
    ) -> tuple[Tensor, State, State]:  # fmt: skip
        """Return a layer's outputs [T, n, H] over a window, and its state at the end and where it is kept."""
        walker, place = self.session.walker, unit.keep - unit.first if unit.keep >= 0 else None
        if isinstance(layer, RowModel):
            masks = [alive_n if walker.hold and not bool(alive_n.all()) else None for alive_n in alive_Tn]
            window = Window(
                sights=tuple(Sight(x, None, mask) for x, mask in zip(laid.x_tNF.unbind(), masks, strict=True)),
                front=laid.maps, cell=layer.cell(), wanted=tuple(range(len(masks))), keep=place,
                precision=walker.precision,
            )  # fmt: skip
            with torch.autocast(state[0].device.type, enabled=False):
                walked = walk_window(window, state, walker.pool)
            return torch.stack(walked.outputs), walked.state, state if walked.kept is None else walked.kept
        outputs, kept, sizes = list[Tensor](), state, [torch.Size(shape).numel() for shape in laid.shapes]
        for t, (x_nF, alive_n) in enumerate(zip(laid.x_tNF.unbind(), alive_Tn, strict=True)):
            parts = zip(torch.split(x_nF, sizes, 1), laid.shapes, strict=True)
            rows = tuple(part.reshape(-1, *shape) for part, shape in parts)
            out, state = remember(layer, SomeNodes(unit.first + t, alive_n), rows, state, hold=walker.hold)
            outputs.append(out)
            kept = state if t == place else kept
        return torch.stack(outputs), state, kept

    def _shown(
        self, unit: Unit, pieces: list[Piece], alive_Tn: Tensor, out_TnH: Tensor, carry: Carry, kept: State
    ) -> tuple[Tensor, list[Seen], Carry | None]:  # fmt: skip
        """Collective. Return what is seen at its own targets; absent nodes show the row they had last."""
        session, world = self.session, self.session.world
        out_nH, born_n, shown, keeps = carry.out_NH, carry.born_N, list[Tensor](), None
        for t, alive_n, new in zip(range(unit.first, unit.last), alive_Tn, out_TnH.unbind(), strict=True):
            born_n = born_n | alive_n
            out_nH = torch.where((alive_n if session.walker.hold else born_n)[:, None], new.to(out_nH.dtype), out_nH)
            if t in unit.targets:
                shown.append(torch.cat([out_nH, born_n[:, None].to(out_nH.dtype)], 1))
            if t == unit.keep:
                keeps = goes_on(session.model, Carry(kept, out_nH, born_n))
        targets = [[t for t in piece.times if t in unit.targets] for piece in pieces]
        all_TnH = torch.stack(shown) if shown else out_TnH.new_zeros(0, len(out_nH), out_nH.shape[1] + 1)
        deal = Deal(self._dealt([len(times) for times in targets]), self._nodes)
        came_tNH = by_snapshots(world, deal, all_TnH, "state/shown")
        mine = targets[world.rank] if world.rank < len(targets) else []
        seen = [Seen(t, x[:, :-1], x[:, -1] > 0) for t, x in zip(mine, came_tNH.unbind(), strict=True)]
        return came_tNH, seen, keeps

    def see(self, first: int, last: int) -> Iterator[Seen]:
        """Collective. Yield this rank's share of what is seen; windows are taken whole here, as nothing goes back."""
        yield from self._alone.see(first, last)

    def whole(self, carry: Carry) -> Carry:
        """Collective. Return, on the first rank, what all ranks carry, in the order of nodes; elsewhere no rows."""
        world, own = self.session.world, len(carry.born_N)
        sent = [own, *[0] * (world.size - 1)]
        received = self._nodes if world.rank == 0 else [0] * world.size

        def gather(part: Tensor) -> Tensor:
            return world.all_to_all(part.contiguous(), "state/whole", sent=sent, received=received)

        state = tuple(gather(part) for part in carry.state)
        return Carry(state, gather(carry.out_NH), gather(carry.born_N.to(torch.uint8)).to(torch.bool))

    def own(self, carry: Carry) -> Carry:
        """Return its nodes' rows."""
        own = self._own
        return Carry(tuple(part[own] for part in carry.state), carry.out_NH[own], carry.born_N[own])


def _rows(encoded: Encoded, place: int) -> tuple[Tensor, ...]:
    """Return a snapshot's rows, a row for every node, which may have yet to go through maps."""
    places = encoded.places(place)
    part = encoded.part(place)
    return part if places is None else tuple(one.index_select(0, places) for one in part)

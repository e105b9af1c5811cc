"""A rank that has a stretch of every window's snapshots; states go from rank to rank (ESDG as REAL describes it).

Rank r goes over its piece of a window from the state that rank r - 1 hands on, and hands its own on; gradients go the
other way. Several windows of a step fill the time that ranks wait for each other (`forward_and_back`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from timeloom.dist.collectives import Pending
from timeloom.dist.flight import tie
from timeloom.plan.batch.pieces import Piece, dealt, forward_and_back
from timeloom.plan.types import Unit
from timeloom.train.goals.goal import Draw, Seen
from timeloom.train.groups import Groups
from timeloom.train.handover import Sent, hand_on, last_rows_needed, receive_kept, send_kept, take_over
from timeloom.train.pieces import Gone, go_over
from timeloom.train.session import Session, piece_randomness
from timeloom.train.walk import Carry
from timeloom.train.whole import WholeWorker
from timeloom.train.worker import Learnt, Worker


@dataclass(frozen=True, slots=True)
class _Gone:
    """A piece that went forward and has yet to go back."""

    piece: Piece
    loss: Tensor | None
    count: int
    """Snapshots with targets, of the window up to the end of this piece."""
    ties: list[Tensor]
    """What brings gradients here, or awaits them elsewhere."""
    kept: Carry | None


class RelayWorker(Worker):
    """It computes its piece of every window; what a window goes on from is on the first rank."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._alone = WholeWorker(session)
        self._under_way: list[Sent | Pending[None]] = []

    def start(self) -> Carry:
        """Return what there is before the first snapshot."""
        return self._alone.start()

    def learn(self, units: tuple[Unit, ...], draw: Draw, carry: Carry | None) -> Learnt:
        """Collective. Take its pieces of the windows forward and back, each as soon as the ranks around it let it."""
        session, world, total = self.session, self.session.world, 0.0
        pieces = [dict(enumerate(dealt(unit, world.size))).get(world.rank) for unit in units]
        groups, gone, kept = self._groups(pieces), dict[int, _Gone](), None
        for way, place in forward_and_back(world.rank, world.size, len(units)):
            piece = pieces[place]
            if piece is None:
                continue
            if way == "forward":
                with piece_randomness(session, draw, piece), session.computing():
                    gone[place] = self._forward(piece, draw, carry, groups)
                kept = gone[place].kept or kept
            else:
                total += self._back(gone.pop(place))
        if groups is not None:
            groups.go_back()
        while self._under_way:
            self._under_way.pop(0).finish()
        return Learnt(loss=total, weight=0.0 if world.rank else len(units), kept=self._at_home(units[-1], kept))

    def _groups(self, pieces: list[Piece | None]) -> Groups | None:
        """Return what its pieces share."""
        session, mine = self.session, [piece for piece in pieces if piece is not None]
        if len(mine) < 2 or session.settings.system.recompute:
            return None
        with session.computing():
            return session.walker.groups_of(mine, session.goal.reads)

    def _forward(self, piece: Piece, draw: Draw, carry: Carry | None, groups: Groups | None) -> _Gone:
        """Go over a piece, from what the rank before hands on, and hand on what there is after it."""
        session, ties, count = self.session, list[Tensor](), 0

        def before() -> Carry:
            nonlocal count
            if piece.starts:
                return self._alone.before(piece.window, carry)
            alive_N = session.feed.view(piece.first).alive_N
            taken = take_over(session.world, session.model, alive_N, hold=session.walker.hold)
            ties.append(taken.numbers)
            count = taken.count
            return taken.carry

        found = go_over(session, piece, before, draw, groups)
        count += found.count
        if not piece.ends:
            ties.append(self._send(piece, found, count))
        return _Gone(piece, found.loss, count, ties, found.kept)

    def _send(self, piece: Piece, found: Gone, count: int) -> Tensor:
        session, after = self.session, found.after
        alive_N = torch.from_numpy(session.feed.snapshot(piece.last).alive).to(session.device)
        needed_N = last_rows_needed(after.born_N, alive_N, hold=session.walker.hold)
        sent = hand_on(session.world, after, count, needed_N)
        self._under_way.append(sent)
        return sent.parcel.stub

    def _back(self, gone: _Gone) -> float:
        """Take the gradient back over a piece; return its share of the window's loss."""
        count = self._count_of_window(gone)
        if not count:
            return 0.0
        own = gone.ties[0].new_zeros(()) if gone.loss is None else gone.loss / count
        tie(own, gone.ties).backward()  # type: ignore[no-untyped-call]
        return float(own.detach())

    def _count_of_window(self, gone: _Gone) -> int:
        """Return how many snapshots of the window have targets: the last rank knows, and each tells the one before."""
        world, count = self.session.world, torch.tensor([gone.count], device=self.session.device)
        if not gone.piece.ends:
            world.start_exchange("state/count", sends={}, receives={world.rank + 1: count}).finish()
        if not gone.piece.starts:
            sending = world.start_exchange("state/count", sends={world.rank - 1: count}, receives={})
            self._under_way.append(sending)
        return int(count)

    def _at_home(self, window: Unit, kept: Carry | None) -> Carry | None:
        """Return, on the first rank, what the next window goes on from."""
        session, world = self.session, self.session.world
        if window.keep < 0:
            return None
        owner = next(rank for rank, piece in enumerate(dealt(window, world.size)) if piece.keeps)
        if owner == world.rank and owner:
            assert kept is not None, "the piece in which it lies keeps it"
            send_kept(world, session.model, kept, to=0)
        if owner and world.rank == 0:
            return receive_kept(world, session.model, self.start(), of=owner)
        return kept if world.rank == 0 else None

    def see(self, first: int, last: int) -> Iterator[Seen]:
        """Collective. Yield this rank's share of what is seen; windows are taken whole here, as nothing goes back."""
        yield from self._alone.see(first, last)

    def whole(self, carry: Carry) -> Carry:
        """Collective. Return it as it is: the first rank, which writes it, has all of it."""
        return carry

    def own(self, carry: Carry) -> Carry:
        """Return it as it is."""
        return carry

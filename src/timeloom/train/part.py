"""A rank that owns some of the nodes: every window is computed by all ranks together, each its own nodes' rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from timeloom.nn.model import PerNode
from timeloom.plan.batch.windows import scoring_windows
from timeloom.plan.types import Unit
from timeloom.train.goals.goal import Draw, Seen
from timeloom.train.holding import HoldsOwn
from timeloom.train.session import Session, unit_randomness
from timeloom.train.walk import Carry, first_carry, goes_on
from timeloom.train.worker import Learnt, Worker


class PartWorker(Worker):
    """It holds the rows and states of its own nodes; ranks meet in every sum over neighbours."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        holding = session.feed.holding
        assert isinstance(holding, HoldsOwn), "a session whose nodes are divided"
        self._holding = holding

    def start(self) -> Carry:
        """Return what there is of own nodes before the first snapshot."""
        return first_carry(self.session.model, self.session.feed)

    def learn(self, units: tuple[Unit, ...], draw: Draw, carry: Carry | None) -> Learnt:
        """Collective. Go over the windows one after the other, with all other ranks."""
        session, total, kept = self.session, 0.0, None
        for unit in units:
            with unit_randomness(session, draw, unit):
                loss, kept = self._loss(unit, draw, carry)
                total += float(loss.detach())
                if loss.requires_grad:
                    loss.backward()  # type: ignore[no-untyped-call]
        # All ranks count the same windows: one of them says how many.
        return Learnt(loss=total, weight=len(units) if session.world.rank == 0 else 0, kept=kept)

    def _loss(self, unit: Unit, draw: Draw, carry: Carry | None) -> tuple[Tensor, Carry | None]:
        """Collective. Return this rank's share of the mean of the losses of the window's targets, and what is kept.

        Each target's loss is a sum over all ranks, divided by the targets of all ranks. The share is tied to every
        exchange, so that all ranks go back through the same ones, also those that have no target.
        """
        session, crossing = self.session, self._holding.crossing
        with session.computing():
            seen, kept = session.walker.walk(unit, self._before(unit, carry), session.goal.reads)
            losses = [session.goal.loss(session.head, one, draw) for one in seen]
        counts = self._holding.total(np.array([0.0 if one is None else one.count for one in losses]), "targets")
        share = next(iter(session.predictor.parameters())).new_zeros(())
        if not counts.any():
            crossing.forget()
            return share, kept
        for loss, count in zip(losses, counts, strict=True):
            if loss is not None:
                share = share + loss.total / float(count)
        return crossing.tied(share / int(np.count_nonzero(counts))), kept

    def see(self, first: int, last: int) -> Iterator[Seen]:
        """Collective. Yield what is seen of own nodes after each of these snapshots."""
        session = self.session
        carry: Carry | None = None
        for unit in scoring_windows(session.settings.window, first, last, restarts=session.restarts):
            with torch.no_grad(), session.computing():
                seen, kept = session.walker.walk(unit, self._before(unit, carry))
            carry = kept or carry
            yield from seen

    def whole(self, carry: Carry) -> Carry:
        """Collective. Return on the first rank what all carry, in the order of the graph; elsewhere no rows."""
        owners, world = self._holding.nodes.owners, self.session.world
        sizes, own = owners.sizes.tolist(), len(self._holding.nodes)
        order = np.argsort(np.concatenate([owners.nodes_of(rank) for rank in range(world.size)]))
        place_N = torch.from_numpy(order if world.rank == 0 else order[:0]).to(world.device)
        sent = (own, *[0] * (world.size - 1))
        received = tuple(sizes) if world.rank == 0 else (0,) * world.size

        def gathered(rows: Tensor) -> Tensor:
            flat = rows.detach().reshape(own, rows.shape[1:].numel()).contiguous()
            came = world.all_to_all(flat, "state/whole", sent=sent, received=received)
            return came.index_select(0, place_N).reshape(len(place_N), *rows.shape[1:])

        return self._each_row(carry, gathered)

    def own(self, carry: Carry) -> Carry:
        """Return the rows of own nodes."""
        nodes_O = torch.from_numpy(self._holding.nodes.nodes).to(self.session.device)
        return self._each_row(carry, lambda rows: rows.index_select(0, nodes_O))

    def _each_row(self, carry: Carry, change: Callable[[Tensor], Tensor]) -> Carry:
        """Return what is carried, with a change to all that has a row for every node."""
        memory = self.session.model.memory()
        state = tuple(
            change(part) if isinstance(slot, PerNode) else part
            for slot, part in zip(memory, carry.state, strict=True)
        )  # fmt: skip
        return Carry(state, change(carry.out_NH), change(carry.born_N))

    def _before(self, unit: Unit, carry: Carry | None) -> Carry:
        """Return what a window starts from."""
        return self.start() if unit.fresh or carry is None else goes_on(self.session.model, carry)

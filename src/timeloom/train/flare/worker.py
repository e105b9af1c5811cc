"""A rank that learns from windows whose older snapshots shrink (FlareDTDG); it scores as other systems do.

States are kept in the order of the epoch, and saved in that of the graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from timeloom.nn.model import PerNode
from timeloom.plan.batch.flare import FlareSettings
from timeloom.plan.batch.windows import WindowSettings
from timeloom.plan.tune.window import TuneSettings
from timeloom.plan.types import Unit
from timeloom.train.flare.epoch import Epoch, Stores
from timeloom.train.flare.turns import TurnMaker
from timeloom.train.flare.window import Window, layers_from
from timeloom.train.goals.goal import Draw, Seen
from timeloom.train.holding import HoldsOwn
from timeloom.train.part import PartWorker
from timeloom.train.session import Session, unit_randomness
from timeloom.train.settings import RunSettings
from timeloom.train.walk import Carry, goes_on
from timeloom.train.whole import WholeWorker
from timeloom.train.worker import Learnt, Worker


class FlareWorker(Worker):
    """It computes its own nodes in some chunks of every snapshot of a window."""

    def __init__(self, session: Session, stores: Stores | None = None) -> None:
        """``stores`` are those of an earlier worker of the same session."""
        super().__init__(session)
        settings = session.settings
        scoring = dataclasses.replace(session, settings=_scored_by(settings))
        self._plain: Worker = WholeWorker(scoring) if session.feed.holding.holds_all else PartWorker(scoring)
        self._layers = layers_from(session)
        self._turns = TurnMaker(session.world, settings.flare, self._layers, seed=settings.train.seed)
        self._stores = stores
        self._epoch: Epoch | None = None
        self._restored: Carry | None = None

    def start(self) -> Carry:
        """Return what there is of own nodes before the first snapshot."""
        return self._plain.start()

    def learn(self, units: tuple[Unit, ...], draw: Draw, carry: Carry | None) -> Learnt:
        """Collective. Go over the windows one after the other, with all other ranks."""
        session, total, count = self.session, 0.0, 0
        epoch = self._in_epoch(draw.epoch)
        if carry is not None and carry is self._restored:
            carry, self._restored = self._each_row(carry, epoch.places_O), None
        for unit in units:
            with unit_randomness(session, draw, unit):
                loss, carry = self._loss(epoch, unit, draw, carry)
                if loss is not None:
                    with session.profile.phase("backward"):
                        total += float(loss.detach())
                        count += 1
                        if loss.requires_grad:
                            loss.backward()  # type: ignore[no-untyped-call]
            epoch.let_go(unit)
        # All ranks count the same windows: one of them says how many.
        return Learnt(loss=total, weight=count if session.world.rank == 0 else 0, kept=carry)

    def _in_epoch(self, number: int) -> Epoch:
        """Collective. Return the blocks of an epoch; the first time chunks are found."""
        if self._stores is None:
            self._stores = Stores(self.session)
        if self._epoch is None or self._epoch.number != number:
            self._epoch = Epoch(self.session, self._stores, number)
        return self._epoch

    def _loss(
        self, epoch: Epoch, unit: Unit, draw: Draw, carry: Carry | None
    ) -> tuple[Tensor | None, Carry]:  # fmt: skip
        """Collective. Return this rank's share of the mean of the losses of the targets (None: there are no targets).

        Each target's loss is a sum over all ranks, divided by the targets of all ranks.
        """
        session, holding = self.session, self.session.feed.holding
        before = self.start() if unit.fresh or carry is None else goes_on(session.model, carry)
        with session.profile.phase("load"):
            sights = epoch.sights(unit)
        window = Window(session, self._layers, sights, unit, draw, aliased=self._turns.overlaps)
        turns = self._turns.turns(draw.epoch, unit, sights)
        with session.computing(), torch.set_grad_enabled(bool(unit.targets)):
            seen, kept = window.go(before, epoch, turns)
            losses = [session.goal.loss(session.head, one, draw) for one in seen]
        self._turns.learn(window.measured)
        if not unit.targets:
            return None, kept
        counts = holding.total(np.array([0.0 if one is None else one.count for one in losses]), "targets")
        share = next(iter(session.predictor.parameters())).new_zeros(())
        for loss, count in zip(losses, counts, strict=True):
            if loss is not None:
                share = share + loss.total / float(count)
        share = share / max(1, int(np.count_nonzero(counts)))
        if isinstance(holding, HoldsOwn):
            if counts.any():
                share = holding.crossing.tied(share)
            else:
                holding.crossing.forget()
        return share, kept

    def see(self, first: int, last: int) -> Iterator[Seen]:
        """Collective. Yield what is seen after each of these snapshots, all of them whole."""
        yield from self._plain.see(first, last)

    def whole(self, carry: Carry) -> Carry:
        """Collective. Return what all ranks keep, in the order of the graph."""
        if carry is not self._restored:
            assert self._epoch is not None, "what is kept was kept in an epoch"
            carry = self._each_row(carry, self._epoch.rows_N)
        return self._plain.whole(carry)

    def own(self, carry: Carry) -> Carry:
        """Return this rank's rows, still in the order of the graph: the epoch is known when learning goes on."""
        self._restored = self._plain.own(carry)
        return self._restored

    def _each_row(self, carry: Carry, rows: Tensor) -> Carry:
        """Return what is carried, with these rows in this order."""
        memory = self.session.model.memory()
        state = tuple(
            part.index_select(0, rows) if isinstance(slot, PerNode) else part
            for slot, part in zip(memory, carry.state, strict=True)
        )
        return Carry(state, carry.out_NH.index_select(0, rows), carry.born_N.index_select(0, rows))


def _scored_by(settings: RunSettings) -> RunSettings:
    """Return settings by which a snapshot is scored: after whole ones, as many as the longest window learns from."""
    window = WindowSettings(length=settings.flare.length, stride=1)
    system = dataclasses.replace(settings.system, unit="window")
    return dataclasses.replace(settings, window=window, system=system, flare=FlareSettings(), tune=TuneSettings())

"""A rank that has every node and whole windows: the only one, or one of several that take different windows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from timeloom.plan.batch.windows import scoring_windows
from timeloom.plan.types import Unit
from timeloom.train.goals.goal import Draw, Seen
from timeloom.train.groups import Groups
from timeloom.train.session import unit_randomness
from timeloom.train.walk import Carry, first_carry, goes_on
from timeloom.train.worker import Learnt, Worker


class WholeWorker(Worker):
    """It computes its windows by itself; ranks meet when gradients and scores are added up."""

    def start(self) -> Carry:
        """Return what there is before the first snapshot."""
        return first_carry(self.session.model, self.session.feed)

    def learn(self, units: tuple[Unit, ...], draw: Draw, carry: Carry | None) -> Learnt:
        """Collective. Go over its windows, one computed and let go after the other (SPEC section 5).

        What they share is made once.
        """
        session, total, kept = self.session, 0.0, None
        profile = session.profile
        with session.computing(), profile.phase("encode"):
            shares = len(units) > 1 and session.settings.reuse.between_windows
            groups = session.walker.groups(units, session.goal.reads) if shares else None
        for unit in units:
            with unit_randomness(session, draw, unit):
                loss, kept = self.loss(unit, draw, carry, groups)
                if loss is not None:
                    with profile.phase("backward"):
                        total += float(loss.detach())
                        loss.backward()  # type: ignore[no-untyped-call]
        if groups is not None:
            with profile.phase("backward"):
                groups.go_back()
        elif len(units) == 1:
            profile.seconds[units[0]] = profile.total()
        return Learnt(loss=total, weight=len(units), kept=kept)

    def loss(
        self, unit: Unit, draw: Draw, carry: Carry | None, groups: Groups | None = None
    ) -> tuple[Tensor | None, Carry | None]:  # fmt: skip
        """Return the mean of the losses of the window's targets (None: it has none), and what is kept."""
        session, losses = self.session, list[Tensor]()
        with session.computing():
            seen, kept = session.walker.walk(unit, self.before(unit, carry), session.goal.reads, groups)
            for one in seen:
                if (loss := session.goal.loss(session.head, one, draw)) is not None:
                    losses.append(loss.total / loss.count)
        return (torch.stack(losses).mean() if losses else None), kept

    def see(self, first: int, last: int) -> Iterator[Seen]:
        """Collective. Yield what is seen after the snapshots of its own windows; without a past to keep, of every n-th.

        Windows that inherit a state follow each other, on one rank.
        """
        session, world = self.session, self.session.world
        units = scoring_windows(session.settings.window, first, last, restarts=session.restarts)
        carry: Carry | None = None
        for unit in units[world.rank :: world.size]:
            session.check_stop()
            with torch.no_grad(), session.computing():
                seen, kept = session.walker.walk(unit, self.before(unit, carry))
            carry = kept or carry
            yield from seen

    def whole(self, carry: Carry) -> Carry:
        """Collective. Return it as it is."""
        return carry

    def own(self, carry: Carry) -> Carry:
        """Return it as it is."""
        return carry

    def before(self, unit: Unit, carry: Carry | None) -> Carry:
        """Return what a window starts from."""
        return self.start() if unit.fresh or carry is None else goes_on(self.session.model, carry)

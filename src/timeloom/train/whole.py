"""A rank that has every node and whole windows: the only one, or one of several that take different windows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from timeloom.plan.batch.pieces import whole
from timeloom.plan.batch.windows import scoring_windows
from timeloom.plan.types import Unit
from timeloom.train.goals.goal import Draw, Seen
from timeloom.train.groups import Groups
from timeloom.train.pieces import go_over
from timeloom.train.session import Session, unit_randomness
from timeloom.train.walk import Carry, first_carry, goes_on
from timeloom.train.worker import Learnt, LiveWorker


class WholeWorker(LiveWorker):
    """It computes its windows by itself; ranks meet when gradients and scores are added up."""

    def start(self) -> Carry:
        """Return what there is before the first snapshot."""
        return first_carry(self.session.model, self.session.feed)

    def learn(self, units: tuple[Unit, ...], draw: Draw, carry: Carry | None) -> Learnt:
        """Collective. Go over its windows, one computed and let go after the other (SPEC section 5).

        What they share is made once, unless it is to be computed again.
        """
        session, profile, total, kept = self.session, self.session.profile, 0.0, None
        settings, groups = session.settings, None
        if len(units) > 1 and settings.reuse.between_windows and not settings.system.recompute:
            with session.computing(), profile.phase("encode"):
                groups = session.walker.groups(units, session.goal.reads)
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
        with self.session.computing():
            gone = go_over(self.session, whole(unit), lambda: self.before(unit, carry), draw, groups)
        return (None if gone.loss is None else gone.loss / gone.count), gone.kept

    def held(self, unit: Unit, draw: Draw, carry: Carry | None) -> float | None:
        """Return the mean loss of a window's targets."""
        with torch.no_grad():
            loss, _ = self.loss(unit, draw, carry)
        return None if loss is None else float(loss)

    def look(self, unit: Unit, carry: Carry | None) -> tuple[list[Seen], Carry | None]:
        """Return what is seen at a window's targets, and what is kept."""
        with torch.no_grad(), self.session.computing():
            return self.session.walker.walk(unit, self.before(unit, carry))

    def moved(self, session: Session) -> WholeWorker:
        """Return a worker of the session."""
        return WholeWorker(session)

    def see(self, first: int, last: int) -> Iterator[Seen]:
        """Collective. Yield what is seen after the snapshots of its own windows; without a past to keep, of every n-th.

        Windows that inherit a state follow each other, on the first rank.
        """
        session, world = self.session, self.session.world
        units = scoring_windows(session.settings.window, first, last, restarts=session.restarts)
        if session.settings.window.state == "zero":
            units = units[world.rank :: world.size]
        carry: Carry | None = None
        for unit in units if session.settings.window.state == "zero" or world.rank == 0 else ():
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

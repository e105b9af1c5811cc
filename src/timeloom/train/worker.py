"""What one rank does of a step, of a validation and of a checkpoint: the part in which ways to divide work differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from timeloom.plan.types import Unit
from timeloom.records import Record
from timeloom.train.goals.goal import Draw, Seen
from timeloom.train.profile import Part
from timeloom.train.session import Session
from timeloom.train.walk import Carry


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What a rank's part of a step came to; its gradient lies in the parameters' ``.grad``."""

    loss: float
    """This rank's share of the sum of the windows' losses."""
    weight: float
    """This rank's share of the number of windows. The sums over all ranks count."""
    kept: Carry | None
    """What the next window goes on from, as far as it is on this rank."""


@dataclass(frozen=True, slots=True)
class Tells:
    """What a rank has to tell of an epoch beside what all ranks tell."""

    records: tuple[Record, ...] = ()
    threads: tuple[Part, ...] = ()
    """What threads did beside training: the phase, when it began in seconds since 1970, and how long it took."""


class Worker(ABC):
    """One rank of several that learn together, or the only one.

    Every method is collective: all ranks call the same ones in the same order.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    @abstractmethod
    def start(self) -> Carry:
        """Return what there is before the first snapshot, as far as it is on this rank."""

    @abstractmethod
    def learn(self, units: tuple[Unit, ...], draw: Draw, carry: Carry | None) -> Learnt:
        """Collective. Add this rank's share of the gradient of the sum of the windows' losses to ``.grad``."""

    def expect(self, units: Sequence[Unit], draw: Draw) -> None:  # noqa: B027
        """Hear what is to be learnt after the next call of `learn`, on all ranks alike."""

    def tell(self, epoch: int) -> Tells:
        """Return what it has to tell since this was asked last."""
        return Tells()

    def close(self) -> None:  # noqa: B027
        """Let go of threads."""

    @abstractmethod
    def see(self, first: int, last: int) -> Iterator[Seen]:
        """Collective. Yield this rank's share of what there is to predict from, after each of these snapshots.

        Parameters are frozen. The state is warmed up over all snapshots before where windows inherit it.
        """

    @abstractmethod
    def whole(self, carry: Carry) -> Carry:
        """Collective. Return what all ranks carry, in the order of the graph's nodes, for a checkpoint."""

    @abstractmethod
    def own(self, carry: Carry) -> Carry:
        """Return this rank's share of what a checkpoint carries."""


class LiveWorker(Worker):
    """One that can follow the live protocol, one window at a time."""

    @abstractmethod
    def held(self, unit: Unit, draw: Draw, carry: Carry | None) -> float | None:
        """Collective. Return the mean loss of a window's targets, which nothing is learnt from (None: it has none)."""

    @abstractmethod
    def look(self, unit: Unit, carry: Carry | None) -> tuple[list[Seen], Carry | None]:
        """Collective. Return what is seen at a window's targets, as far as this rank scores it, and what is kept."""

    @abstractmethod
    def moved(self, session: Session) -> LiveWorker:
        """Return a worker that goes on with the session of a graph that has grown."""

"""What the live protocol goes over: the snapshots that there are, or those that arrive while it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod

from timeloom.train.goals.goal import Marks
from timeloom.train.trainer import Trainer


class Arrivals(ABC):
    """What comes, snapshot by snapshot, and what baselines made of it."""

    ended: str
    """Why nothing more comes."""

    @abstractmethod
    def waits(self, trainer: Trainer) -> bool:
        """Say whether what is needed next has yet to arrive; the same on all ranks."""

    @abstractmethod
    def ready(self, trainer: Trainer) -> bool:
        """Collective. Have what the next prediction and its label need at hand; False: nothing more comes."""

    @abstractmethod
    def told(self, trainer: Trainer) -> dict[str, dict[str, object]]:
        """Return what a checkpoint keeps of the baselines after the snapshot that was predicted."""

    @abstractmethod
    def baselines(self, trainer: Trainer, first: int) -> dict[str, Marks]:
        """Return how good baselines were from snapshot ``first`` on."""


class AllThere(Arrivals):
    """The snapshots of a graph that is whole."""

    ended = "snapshots"

    def __init__(self, trainer: Trainer, first: int) -> None:
        """Ready the scores from snapshot ``first`` on."""
        session = trainer.session
        self._known = {first: session.goal.baselines("test", first, session.split.test_stop)}

    def waits(self, trainer: Trainer) -> bool:
        """Say no."""
        return False

    def ready(self, trainer: Trainer) -> bool:
        """Say whether there is another snapshot."""
        return trainer.progress.epoch < trainer.session.split.test_stop

    def told(self, trainer: Trainer) -> dict[str, dict[str, object]]:
        """Return nothing: they are found again."""
        return {}

    def baselines(self, trainer: Trainer, first: int) -> dict[str, Marks]:
        """Return how good they are."""
        session = trainer.session
        if first not in self._known:
            self._known[first] = session.goal.baselines("test", first, session.split.test_stop)
        return self._known[first]

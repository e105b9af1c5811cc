"""Which batch size comes next? Losses and times go in, the number of an action comes out.

An adjuster reads no clock and no loss by itself, and never a test loss: what it is told is all it knows. Its draws are
keyed by its seed and the number of the decision, so that what it saves is all there is to it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadRun, Diverged
from timeloom.graph.keys import Float64s

_DRAWS = 0xD1CE


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What came of the steps since the last decision."""

    loss: float
    """Of validation, or of training over all ranks. Never of the test."""
    seconds: float
    """What a step took."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.loss):
            raise Diverged(
                f"the loss that a batch size is chosen by is {self.loss}: lower optim.rate, or set optim.clip"
            )
        if not 0.0 <= self.seconds < math.inf:
            raise Diverged(f"a step is said to have taken {self.seconds} s, which is no duration")


@dataclass(frozen=True, slots=True)
class Saved:
    """What an adjuster needs to go on as if it had never stopped: arrays, and numbers that JSON holds."""

    told: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class Adjuster(ABC):
    """Chooses one of so many actions."""

    def __init__(self, num_actions: int, *, start: int, seed: int) -> None:
        assert 0 <= start < num_actions, f"action {start} of {num_actions}"
        self.num_actions, self.action, self._seed, self._decisions = num_actions, start, seed, 0

    def observe(self, seen: Observation) -> int:
        """Return the next action, knowing what came of the one before."""
        self.action = self._choose(seen)
        self._decisions += 1
        return self.action

    @abstractmethod
    def _choose(self, seen: Observation) -> int:
        """Return the next action; `action` is still the one that was observed."""

    def save(self) -> Saved:
        """Return all that a copy needs to go on from here."""
        told = {"kind": type(self).__name__, "action": self.action, "decisions": self._decisions}
        mine = self._save()
        return Saved({**told, **mine.told}, {name: array.copy() for name, array in mine.arrays.items()})

    def load(self, saved: Saved) -> None:
        """Go on from what another one saved."""
        kind, action = saved.told.get("kind"), saved.told.get("action")
        if kind != type(self).__name__ or not isinstance(action, int) or not 0 <= action < self.num_actions:
            raise BadRun(
                f"the checkpoint holds a {kind} at action {action}, but this run chooses among {self.num_actions} "
                f"actions with a {type(self).__name__}: resume with the settings that the run was begun with"
            )
        self.action, self._decisions = action, int(saved.told["decisions"])
        self._load(saved)

    @abstractmethod
    def _save(self) -> Saved:
        """Return what there is beside the action and the number of decisions."""

    @abstractmethod
    def _load(self, saved: Saved) -> None:
        """Take up what `_save` returned."""

    def _rng(self) -> np.random.Generator:
        """Return the generator of this decision."""
        return np.random.Generator(np.random.Philox([self._seed, _DRAWS, self._decisions]))


class Fixed(Adjuster):
    """Always the same."""

    def _choose(self, seen: Observation) -> int:
        return self.action

    def _save(self) -> Saved:
        return Saved({})

    def _load(self, saved: Saved) -> None:
        pass


class Random(Adjuster):
    """Any of them, all equally likely (the last column of DynaHB's Table 10)."""

    def _choose(self, seen: Observation) -> int:
        return int(self._rng().integers(self.num_actions))

    def _save(self) -> Saved:
        return Saved({})

    def _load(self, saved: Saved) -> None:
        pass


class Bandit(Adjuster):
    """The action by which the loss fell most a second, with doubt in favour of those seldom tried (discounted UCB).

    It has no state but the sums: no theory of what follows what. What it saw is forgotten slowly, as falls get smaller.
    """

    def __init__(self, num_actions: int, *, start: int, seed: int, forget: float = 0.97, doubt: float = 0.5) -> None:
        super().__init__(num_actions, start=start, seed=seed)
        self._forget, self._doubt = forget, doubt
        self._count_A: Float64s = np.zeros(num_actions)
        self._sum_A: Float64s = np.zeros(num_actions)
        self._scale = 0.0
        self._last_loss: float | None = None

    def _choose(self, seen: Observation) -> int:
        if self._last_loss is not None:
            rate = (self._last_loss - seen.loss) / max(seen.seconds, 1e-12)
            # Falls are compared with those of late: at the end of training all are small.
            self._scale = max(self._scale * self._forget, abs(rate))
            self._count_A *= self._forget
            self._sum_A *= self._forget
            self._count_A[self.action] += 1.0
            self._sum_A[self.action] += rate / self._scale if self._scale else 0.0
        self._last_loss = seen.loss
        untried = np.flatnonzero(self._count_A == 0.0)
        if len(untried):
            return int(self._rng().choice(untried)) if self._count_A.any() else self.action
        doubt_A = self._doubt * np.sqrt(np.log(max(self._count_A.sum(), 1.0)) / self._count_A)
        return int(np.argmax(self._sum_A / self._count_A + doubt_A))

    def _save(self) -> Saved:
        return Saved({"scale": self._scale, "last_loss": self._last_loss}, {"count": self._count_A, "sum": self._sum_A})

    def _load(self, saved: Saved) -> None:
        self._scale, self._last_loss = saved.told["scale"], saved.told["last_loss"]
        self._count_A, self._sum_A = saved.arrays["count"].copy(), saved.arrays["sum"].copy()

"""Who takes which turn in a window: predicted from what phases took so far, and agreed on by all ranks.

Phases are predicted once an epoch for every shape of window. Each rank predicts for itself; all go by the largest, so
that they start the same exchanges in the same order (SPEC section 7, T22). What is learnt does not depend on the order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from timeloom.dist.collectives import World
from timeloom.plan.batch.flare import FlareSettings
from timeloom.plan.schedule.overlap import Task, Turns, best_turns, one_by_one
from timeloom.plan.schedule.overlap_times import LinearTimes, MlpTimes, PhaseWork, Times
from timeloom.plan.types import Unit
from timeloom.train.flare.epoch import Sight
from timeloom.train.flare.window import Layers, Measured, task_of, works_of

_LEARNS_EVERY = 16
"""Windows; a step of learning takes about as long as a small window."""


class TurnMaker:
    """One rank's part in it."""

    def __init__(self, world: World, flare: FlareSettings, layers: Layers, *, seed: int) -> None:
        self._world, self._layers = world, layers
        self.overlaps = flare.overlap and world.size > 1
        """On one rank nothing travels."""
        self._times: Times = MlpTimes(seed=seed) if flare.predictor == "mlp" else LinearTimes()
        self._known: dict[tuple[int, ...], tuple[list[Task], Turns]] = {}
        self._epoch = -1
        self._measured: list[Measured] = []

    def turns(self, epoch: int, unit: Unit, sights: Sequence[Sight]) -> Turns:
        """Collective. Return the order of turns for a window."""
        tasks = [task_of(self._layers, sight) for sight in sights]
        if not self.overlaps or not unit.targets:
            return one_by_one(tasks)
        if epoch != self._epoch:
            self._epoch, self._known = epoch, {}
        if unit.chunks not in self._known:
            works = [work for sight in sights for work in works_of(self._layers, sight)]
            self._known[unit.chunks] = (tasks, best_turns(tasks, self._agreed(works)))
        known, turns = self._known[unit.chunks]
        assert known == tasks, "windows of one shape have the same phases"
        return turns

    def _agreed(self, works: Sequence[PhaseWork]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Collective. Return what each phase is predicted to take on the slowest rank."""
        predicted = torch.from_numpy(np.ascontiguousarray(self._times.predict(works), np.float64).copy())
        return self._world.all_reduce(predicted, "control/turns", "max").numpy()

    def learn(self, measured: Measured) -> None:
        """Learn, now and then, from what windows took."""
        if not self.overlaps:
            return
        self._measured.append(measured)
        if len(self._measured) == _LEARNS_EVERY:
            works = [work for one in self._measured for work in one.works]
            seconds = [value for one in self._measured for value in one.seconds]
            self._times.learn(works, np.array(seconds))
            self._measured = []

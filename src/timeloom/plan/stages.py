"""When a run goes from plain order to profiling and on to a solved schedule (REAL 3.3), without ever waiting.

Rank 0 keeps one `Stages` and asks it at the end of every epoch. What it answers is told to all ranks and recorded: a
schedule enters as data, like any outcome. The solver is a process of its own; until it has ended, ranks train on in
plain order.

Shape letters: P epochs that were profiled, K groups, D ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from timeloom.errors import BadRun
from timeloom.plan.reuse import GroupTimes, measured
from timeloom.plan.schedule.apart import Question, Solver
from timeloom.plan.schedule.choose import ScheduleSettings
from timeloom.plan.schedule.instance import Float64s, Instance, Int64s, instance
from timeloom.plan.schedule.schedule import Judged, Schedule

_AS_FAST = 0.8
"""A rank of this share of the fastest one's speed is taken to be as fast."""
Stage = Literal["plain", "profile", "solve", "scheduled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A schedule to be told to all ranks."""

    schedule: Schedule
    predicted_s: float
    """What an epoch is predicted to take."""
    bound_s: float
    """No schedule is predicted to take less."""
    solved_s: float

    def as_json(self) -> dict[str, object]:
        """Return plain data, to be sent and recorded."""
        return {
            "steps": self.schedule.as_json(), "by": self.schedule.by, "predicted_s": self.predicted_s,
            "bound_s": self.bound_s, "solved_s": self.solved_s,
        }  # fmt: skip


class Stages:
    """What rank 0 knows on the way to a schedule."""

    def __init__(
        self, settings: ScheduleSettings, predicted: GroupTimes, num_ranks: int, *, alpha_s: float, seed: int
    ) -> None:
        """``predicted`` is what groups are predicted to take and to save."""
        self._settings, self._predicted, self._num_ranks, self._seed = settings, predicted, num_ranks, seed
        self.alpha_s = alpha_s
        """What a step takes beside its windows; may be set to what was measured."""
        self._profiled: list[Float64s] = []
        self._rank_K: Int64s | None = None
        """The rank that each group was measured on (None: not known)."""
        self._solver: Solver | None = None
        self._epochs = 0
        self._solved = not settings.needs_times

    @property
    def stage(self) -> Stage:
        """What the coming epoch is for."""
        if self._solved:
            return "scheduled"
        if self._epochs < self._settings.plain_epochs:
            return "plain"
        return "profile" if len(self._profiled) < self._settings.profile_epochs else "solve"

    def problem(self) -> Instance:
        """Return the problem, by what was measured so far."""
        times, speeds_D = self._predicted, np.ones(self._num_ranks)
        if self._profiled:
            seconds_K = typical(np.array(self._profiled))
            if self._rank_K is not None:
                speeds_D = told_apart(speeds_of(times.seconds_K, seconds_K, self._rank_K, self._num_ranks))
                # What each group would take on the fastest rank.
                seconds_K = seconds_K * speeds_D[self._rank_K]
            times = measured(times, seconds_K)
        return instance(
            times.seconds_K, devices=self._num_ranks, reuse=times.reuse_KB, limit=self._settings.limit,
            alpha_s=self.alpha_s, speeds=speeds_D.tolist(),
        )  # fmt: skip

    def epoch_ended(self, seconds_K: Float64s, rank_K: Int64s, epoch_s: float) -> Solved | None:
        """Note what each group took in an epoch; return the schedule once, when there is one. Waits for nothing.

        ``seconds_K`` are without waiting for other ranks, on the ranks ``rank_K``; ``epoch_s`` is the whole epoch's.
        """
        before = self.stage
        self._epochs += 1
        if before == "profile":
            self._profiled.append(np.array(seconds_K, np.float64))
            self._rank_K = np.array(rank_K, np.int64)
        if before == "scheduled" or self.stage != "solve":
            return None
        if self._solver is None:
            question = Question(problem=self.problem(), settings=self._settings, epoch_s=epoch_s, seed=self._seed)
            self._solver = Solver(question)
        found = self._solver.poll()
        return None if found is None else self._told(found)

    def _told(self, found: Judged) -> Solved:
        self.close()
        self._solved = True
        return Solved(
            schedule=found.schedule, predicted_s=found.seconds, bound_s=found.bound_s, solved_s=found.solved_s
        )

    def close(self) -> None:
        """End the solver, if it is still at work: the run is over."""
        if self._solver is not None:
            self._solver.close()
            self._solver = None

    def state(self) -> dict[str, object]:
        """Return plain data for a checkpoint. A solver at work is not in it: it begins again after `restore`."""
        ranks = None if self._rank_K is None else self._rank_K.tolist()
        return {
            "epochs": self._epochs, "profiled": [one.tolist() for one in self._profiled], "ranks": ranks,
            "num_ranks": self._num_ranks, "solved": self._solved,
        }  # fmt: skip

    def restore(self, told: Mapping[str, Any]) -> None:
        """Go back to a checkpoint."""
        profiled = [np.array(one, np.float64) for one in told["profiled"]]
        if any(len(one) != len(self._predicted.seconds_K) for one in profiled):
            raise BadRun(
                f"the checkpoint has times of {len(profiled[0])} groups, but this run has "
                f"{len(self._predicted.seconds_K)}: were its windows changed? Start a new run"
            )
        self._epochs, self._profiled, self._solved = told["epochs"], profiled, told["solved"]
        # Other ranks may be as fast or slow as they like: nothing is known of them.
        same = told["num_ranks"] == self._num_ranks and told["ranks"] is not None
        self._rank_K = np.array(told["ranks"], np.int64) if same else None


def typical(seconds_PK: Float64s) -> Float64s:
    """Return the time of each group over several epochs: their mean, outliers left out.

    An outlier is further from the group's median than three deviations, told by the median distance, and than 5 %.
    """
    middle_K = np.median(seconds_PK, axis=0)
    away_PK = np.abs(seconds_PK - middle_K)
    usual_K = np.maximum(3.0 * 1.4826 * np.median(away_PK, axis=0), 0.05 * middle_K)
    told: Float64s = np.nanmean(np.where(away_PK <= usual_K, seconds_PK, np.nan), axis=0)
    return told


def speeds_of(predicted_K: Float64s, seconds_K: Float64s, rank_K: Int64s, num_ranks: int) -> Float64s:
    """Return how fast ranks are, the fastest being 1, by what their groups took against what was predicted.

    A rank without any group is taken to be as fast as the one in the middle.
    """
    rates_K = predicted_K / np.maximum(seconds_K, 1e-300)
    found = [np.median(rates_K[rank_K == rank]) if (rank_K == rank).any() else np.nan for rank in range(num_ranks)]
    rates_D = np.array(found)
    rates_D[np.isnan(rates_D)] = np.nanmedian(rates_D)
    told: Float64s = rates_D / rates_D.max()
    return told


def told_apart(speeds_D: Float64s) -> Float64s:
    """Return speeds in steps of a twentieth; ranks that are hardly slower than the fastest are as fast as it is.

    Measured times differ by so much without any reason, and equal ranks are scheduled better than unequal ones.
    """
    rounded: Float64s = np.maximum(np.round(20.0 * speeds_D) / 20.0, 0.05)
    return np.where(speeds_D >= _AS_FAST, 1.0, rounded)

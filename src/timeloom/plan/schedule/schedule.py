"""What a schedule is, how long it takes, and how far from the best one it can be.

Shape letters: S steps, D devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from timeloom.errors import BadInput
from timeloom.plan.schedule.bounds import lower_bound
from timeloom.plan.schedule.instance import Float64s, Instance

Groups = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The groups of every device in every step; no step is without any."""

    steps: tuple[tuple[Groups, ...], ...]
    by: str = field(default="", compare=False)
    """What found it, where that was not the scheduler that was asked for."""

    @property
    def num_devices(self) -> int:
        """How many devices it is for."""
        return len(self.steps[0])

    def as_json(self) -> list[list[list[int]]]:
        """Return it as lists of steps, of devices, of groups."""
        return [[list(groups) for groups in step] for step in self.steps]


Scheduler = Callable[[Instance], Schedule]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A schedule and how good it is."""

    schedule: Schedule
    seconds: float
    """The time of an epoch: of every step the longest load, and the all-reduce."""
    bound_s: float
    """No schedule takes less."""
    imbalance: float
    """The longest load over the shortest one, the mean over steps in which every device has work (REAL Fig. 15)."""
    kept: float
    """What is saved by groups that share, as a share of the time that all groups take alone."""
    solved_s: float
    """The time it took to find the schedule."""

    @property
    def gap(self) -> float:
        """By what share it takes longer than the bound."""
        return self.seconds / self.bound_s - 1.0 if self.bound_s > 0 else 0.0


def schedule_of(steps: Sequence[Sequence[Sequence[int]]], num_devices: int) -> Schedule:
    """Return a schedule without empty steps; devices that a step does not name have nothing to do in it."""
    filled = ([tuple(sorted(map(int, groups))) for groups in step] for step in steps)
    kept = [tuple(step + [()] * (num_devices - len(step))) for step in filled if any(step)]
    return Schedule(tuple(kept))


def from_json(told: object, problem: Instance) -> Schedule:
    """Return a schedule that was written; one that does not fit the problem is refused."""
    try:
        assert isinstance(told, list)
        found = schedule_of([[[int(group) for group in groups] for groups in step] for step in told], 0)
    except (AssertionError, TypeError, ValueError):
        raise BadInput("what was given as a schedule is none: write it again") from None
    if wrong := problem_of(found, problem):
        raise BadInput(f"the schedule does not fit: {wrong}; solve again")
    return found


def problem_of(found: Schedule, problem: Instance) -> str | None:
    """Return the first thing that is wrong with a schedule (None: nothing)."""
    counts = np.zeros(len(problem), np.int64)
    for number, step in enumerate(found.steps):
        if len(step) != problem.num_devices:
            return f"step {number} has {len(step)} devices, not {problem.num_devices}"
        for device, groups in enumerate(step):
            if len(groups) > problem.limit:
                return f"step {number} gives device {device} {len(groups)} groups, and at most {problem.limit} may be"
            if any(not 0 <= group < len(problem) for group in groups):
                return f"step {number} names a group that is none of the {len(problem)}: {list(groups)}"
            np.add.at(counts, list(groups), 1)
    wrong = np.flatnonzero(counts != 1)
    return f"group {wrong[0]} is computed {counts[wrong[0]]} times, not once" if len(wrong) else None


def loads_of(found: Schedule, problem: Instance) -> Float64s:
    """Return the [S, D] seconds that every device computes in every step."""
    works = [[problem.work(groups) if groups else 0.0 for groups in step] for step in found.steps]
    return np.array(works) / problem.speeds_D


def epoch_seconds(found: Schedule, problem: Instance) -> float:
    """Return the time of an epoch."""
    return float(loads_of(found, problem).max(1).sum()) + problem.alpha_s * len(found.steps)


def judge(found: Schedule, problem: Instance, *, bound_s: float | None = None, solved_s: float = 0.0) -> Judged:
    """Return how good a schedule is, by the quick lower bound or by a better one that is given."""
    assert (wrong := problem_of(found, problem)) is None, wrong
    loads = loads_of(found, problem)
    full = loads[(loads > 0).all(1)]
    alone = float(problem.seconds_K.sum())
    spent = sum(problem.work(groups) for step in found.steps for groups in step if groups)
    return Judged(
        schedule=found,
        seconds=float(loads.max(1).sum()) + problem.alpha_s * len(found.steps),
        bound_s=lower_bound(problem) if bound_s is None else bound_s,
        imbalance=float((full.max(1) / full.min(1)).mean()) if len(full) else 1.0,
        kept=max(1.0 - spent / alone, 0.0) if alone > 0 else 0.0,
        solved_s=solved_s,
    )


def solve(problem: Instance, scheduler: Scheduler, *, bound_s: float | None = None) -> Judged:
    """Return what a scheduler finds, with its lower bound, its gap and the time it took."""
    began = time.perf_counter()
    found = scheduler(problem)
    return judge(found, problem, bound_s=bound_s, solved_s=time.perf_counter() - began)


def solve_each(problem: Instance, schedulers: Mapping[str, Scheduler]) -> dict[str, Judged]:
    """Return what several schedulers find, by their names; the bound is computed once."""
    bound_s = lower_bound(problem)
    return {name: solve(problem, scheduler, bound_s=bound_s) for name, scheduler in schedulers.items()}

"""The best schedule of all, for few groups: CP-SAT on bins and steps, begun from a searched schedule.

The unknowns are which bins, of one group or two, are in which step on which class of devices; devices of one speed need
no telling apart. Steps are in the order of their length, so that no two solutions differ by the order alone. Times are
rounded down to ticks, so that what is proved of them is a lower bound of the true ones.
"""

from __future__ import annotations

import importlib
import itertools
import math
from typing import Any

import numpy as np

from timeloom.errors import BadConfig
from timeloom.plan.schedule.bounds import fewest_steps, lower_bound
from timeloom.plan.schedule.instance import Instance
from timeloom.plan.schedule.schedule import Judged, Schedule, judge, schedule_of

MOST_GROUPS = 100
_TICKS = 10_000_000  # of all groups' times together


def cp_model() -> Any:
    """Return the module of the solver."""
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError:
        raise BadConfig(
            "an exact schedule needs OR-tools, which is not installed: pip install 'timeloom[solve]', or use best"
        ) from None


def exact(problem: Instance, start: Schedule, *, limit_s: float = 30.0, workers: int = 1, seed: int = 0) -> Judged:
    """Return the best schedule, or the best one found in time, never worse than ``start``; the gap says which."""
    model = cp_model()
    if len(problem) > MOST_GROUPS or problem.limit > 2:
        raise BadConfig(
            f"an exact schedule of {len(problem)} groups, {problem.limit} on a device at once, is out of reach: ask "
            f"for at most {MOST_GROUPS} groups and 2 on a device, or use best"
        )
    posed = _Posed(model, problem)
    posed.hint(start)
    solver = model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    status = solver.solve(posed.model)
    bound_s = max(lower_bound(problem), solver.best_objective_bound * posed.tick_s)
    known = [start]
    if status in (model.OPTIMAL, model.FEASIBLE):
        known.append(posed.schedule(solver))
    judged = [judge(one, problem, bound_s=bound_s, solved_s=solver.wall_time) for one in known]
    return min(judged, key=lambda one: one.seconds)


class _Posed:
    """The problem as the solver takes it."""

    def __init__(self, module: Any, problem: Instance) -> None:
        self._problem, self.model = problem, module.CpModel()
        self.tick_s = max(float(problem.seconds_K.sum()), problem.alpha_s, 1e-300) / _TICKS
        groups = range(len(problem))
        self._bins: list[tuple[int, ...]] = [(g,) for g in groups]
        self._bins += list(itertools.combinations(groups, 2)) if problem.limit > 1 else []
        speeds = np.unique(problem.speeds_D)[::-1]
        self._classes = [np.flatnonzero(problem.speeds_D == speed).tolist() for speed in speeds]
        # A step in which the fastest ones rest can give them what is longest in it. So none is better than with a bin
        # for each of them in every step but the last; slow ones may be best left alone.
        self._num_steps = math.ceil(len(problem) / len(self._classes[0]))
        works = np.array([problem.work(bin_) for bin_ in self._bins])
        self._ticks_CB = np.floor(works / speeds[:, None] / self.tick_s).astype(int).tolist()
        most = 2 * _TICKS * max(1, math.ceil(1 / speeds.min()))
        model, steps = self.model, range(self._num_steps)
        self._lengths = [model.new_int_var(0, most, "") for _ in steps]
        self._used = [model.new_bool_var("") for _ in steps]
        self._taken = [
            [[model.new_bool_var("") for _ in self._bins] for _ in self._classes] for _ in steps
        ]  # fmt: skip
        self._constrain()
        alpha = math.floor(problem.alpha_s / self.tick_s)
        model.minimize(sum(self._lengths) + alpha * sum(self._used))

    def _constrain(self) -> None:
        model, holding = self.model, [list[int]() for _ in range(len(self._problem))]
        for place, bin_ in enumerate(self._bins):
            for group in bin_:
                holding[group].append(place)
        for places in holding:
            model.add_exactly_one(taken[place] for step in self._taken for taken in step for place in places)
        for length, used, step in zip(self._lengths, self._used, self._taken, strict=True):
            for devices, taken, ticks in zip(self._classes, step, self._ticks_CB, strict=True):
                model.add(sum(taken) <= len(devices) * used)
                # A group is in one bin: one row for all bins that hold it says more than a row for each.
                for places in holding:
                    model.add(sum(ticks[place] * taken[place] for place in places) <= length)
                work = sum(tick * one for tick, one in zip(ticks, taken, strict=True))
                model.add(work <= len(devices) * length)
        for before, after in itertools.pairwise(range(self._num_steps)):
            model.add(self._lengths[before] >= self._lengths[after])
            model.add_implication(self._used[after], self._used[before])
        for used in self._used[: fewest_steps(self._problem)]:
            model.add(used == 1)

    def hint(self, start: Schedule) -> None:
        """Begin from a schedule."""
        if len(start.steps) > self._num_steps:
            return
        longest = {
            number: max(
                self._problem.work(groups) / self._problem.speeds_D[device]
                for device, groups in enumerate(step)
                if groups
            )
            for number, step in enumerate(start.steps)
        }
        order = sorted(longest, key=lambda number: -longest[number])
        places = {bin_: place for place, bin_ in enumerate(self._bins)}
        for number, step in enumerate(self._taken):
            found = start.steps[order[number]] if number < len(order) else None
            for devices, taken in zip(self._classes, step, strict=True):
                there = {places[found[device]] for device in devices if found[device]} if found else set()
                for place, one in enumerate(taken):
                    self.model.add_hint(one, place in there)

    def schedule(self, solver: Any) -> Schedule:
        """Return what the solver found."""
        steps = []
        for step in self._taken:
            found: list[tuple[int, ...]] = [()] * self._problem.num_devices
            for devices, taken in zip(self._classes, step, strict=True):
                there = [bin_ for bin_, one in zip(self._bins, taken, strict=True) if solver.value(one)]
                for device, bin_ in zip(devices, there, strict=False):
                    found[device] = bin_
            steps.append(found)
        return schedule_of(steps, self._problem.num_devices)

"""The default scheduler: pairs that save the most, sorted and cut into steps, then improved by search.

`best` starts from the matching of the greatest weight, from folding (the longest with the shortest), from runs of
consecutive groups and, where there are few groups, from the published greedy schedules; it keeps the best of them and
improves it (see `search`). So it is never worse than any of these. Within a number of moves the result depends on the
seed alone; within a time it depends on the machine, too, and is to be saved.

Shape letters: K groups, S bins, L groups of a bin at most, C classes of devices of one speed.
"""

from __future__ import annotations

import math
import time

import numpy as np

from timeloom.plan.schedule.greedy import dygnex_g, dygnex_g_of, real_g, real_g_of
from timeloom.plan.schedule.instance import Instance
from timeloom.plan.schedule.plain import in_order, pair_consecutive
from timeloom.plan.schedule.schedule import Schedule, Scheduler, epoch_seconds, schedule_of
from timeloom.plan.schedule.search import Bins, anneal, seconds_in
from timeloom.plan.schedule.starts import cut, seconds_of, starts, works_of

_STREAM = 0x62657374
_FEW = 300
"""Of so many groups the greedy schedules take less than a tenth of a second."""
_MORE, _TARGETS = 1500, (2, 16)
"""Of so many they do with so few targets a step; where steps are many, that is near the bound."""
_ROUNDS = ((0.05, 0.1), (0.35, 2.0), (0.6, 1.0))
"""The share of the moves that a round takes, and how hot it is."""
_SMALL, _HOT_ROUNDS = 64, ((0.1, 10.0), (0.1, 10.0), (0.2, 4.0), (0.2, 4.0), (0.2, 2.0), (0.2, 1.0))
"""With so few groups any bin can be in the way of any other, and there are moves to spare."""
_HOT = 0.1
"""The heat of the hottest round: this share of the mean time of a group, over the number of steps. A step's head moves
by less, the more steps there are; measured on the instances of benchmarks/schedule.py."""
_COLD = 0.01
_CHUNK = 20_000


def best(*, moves: int = 500_000, seed: int = 0) -> Scheduler:
    """Return the scheduler that tries so many moves: the same problem and seed give the same schedule anywhere."""
    return lambda problem: _improved(problem, start(problem), moves, np.random.Philox([seed, _STREAM]).random_raw(1))


def best_within(limit_s: float, *, seed: int = 0) -> Scheduler:
    """Return the scheduler that searches for about so long. What it finds is to be saved, not to be found again."""

    def scheduler(problem: Instance) -> Schedule:
        began = time.perf_counter()
        state = np.random.Philox([seed, _STREAM]).random_raw(1)
        found = start(problem)
        before = time.perf_counter()
        # The first call may compile; its rate is then too low, and the time is used up by more searches.
        found, tried = _improved(problem, found, _CHUNK, state), _CHUNK
        while (left_s := began + limit_s - time.perf_counter()) > 0.1 * limit_s:
            moves = int(tried / (time.perf_counter() - before) * left_s * 0.9)
            before, tried = time.perf_counter(), max(moves, _CHUNK)
            found = _improved(problem, found, tried, state)
        return found

    return scheduler


def _improved(problem: Instance, found: Schedule, moves: int, state: np.ndarray) -> Schedule:
    """Return the best schedule met at the end of a round of annealing, or the given one if none was better."""
    kept, classes = bins_of(problem, found)
    least, better = seconds_in(problem, kept), False
    hottest = _HOT * float(problem.seconds_K.mean()) * problem.num_devices / len(problem)
    if hottest == 0.0:
        return found
    for share, heat in _HOT_ROUNDS if len(problem) <= _SMALL else _ROUNDS:
        bins, hot = kept.copy(), heat * hottest
        anneal(problem, bins, moves=int(share * moves), hot=hot, cold=_COLD * hot, state=state)
        if (told := seconds_in(problem, bins)) < least * (1 - 1e-12):
            kept, least, better = bins, told, True
    return _schedule_of(problem, kept, classes) if better else found


def start(problem: Instance) -> Schedule:
    """Return the best of the schedules to begin with; milliseconds for hundreds of groups, 0.1 s for 10^4."""
    found = cut(problem, min(starts(problem), key=lambda bins: seconds_of(problem, bins)))[0]
    others: list[Scheduler] = [in_order, pair_consecutive]
    if len(problem) <= _FEW:
        others += [real_g, dygnex_g]
    elif len(problem) <= _MORE:
        others += [greedy(targets) for targets in _TARGETS for greedy in (real_g_of, dygnex_g_of)]
    return min([found, *(other(problem) for other in others)], key=lambda one: epoch_seconds(one, problem))


def bins_of(problem: Instance, found: Schedule) -> tuple[Bins, list[list[int]]]:
    """Return a schedule as bins to be searched, with empty ones for as many steps as may be of use.

    Also return the devices of each class.
    """
    speeds = np.ascontiguousarray(np.unique(problem.speeds_D)[::-1])
    classes = [np.flatnonzero(problem.speeds_D == speed).tolist() for speed in speeds]
    num_steps = math.ceil(len(problem) / problem.num_devices)
    if len(classes) > 1:
        # Slow devices may be best left alone, and the fast ones do more steps.
        num_steps = min(math.ceil(len(problem) / len(classes[0])), 4 * num_steps)
    num_steps = max(len(found.steps), num_steps)
    devices_C = np.array([len(devices) for devices in classes], np.int64)
    first_C = np.concatenate([[0], np.cumsum(devices_C * num_steps)])
    groups = np.full((first_C[-1], problem.limit), -1, np.int64)
    for c, devices in enumerate(classes):
        place = int(first_C[c])
        for step in found.steps:
            for device in devices:
                groups[place, : len(step[device])] = step[device]
                place += 1
    class_S = np.repeat(np.arange(len(classes)), devices_C * num_steps)
    load_S = works_of(problem, groups) / speeds[class_S]
    bin_K = np.empty(len(problem), np.int64)
    rows, columns = np.nonzero(groups >= 0)
    bin_K[groups[rows, columns]] = rows
    order_S = np.lexsort((-load_S, class_S))
    rank_S = np.empty(len(order_S), np.int64)
    rank_S[order_S] = np.arange(len(order_S)) - first_C[class_S[order_S]]
    by_time_K = np.argsort(problem.seconds_K, kind="stable")
    place_K = np.empty(len(problem), np.int64)
    place_K[by_time_K] = np.arange(len(problem))
    return Bins(
        groups, bin_K, class_S, load_S, order_S, rank_S, first_C, devices_C, speeds, by_time_K, place_K
    ), classes


def _schedule_of(problem: Instance, bins: Bins, classes: list[list[int]]) -> Schedule:
    """Return the steps that bins make: a block of each class in turn, the longest first."""
    rows: list[list[int]] = bins.groups_SL[bins.order_S].tolist()
    num_steps = int(bins.first_C[1] // bins.devices_C[0])
    steps: list[list[list[int]]] = [[[] for _ in range(problem.num_devices)] for _ in range(num_steps)]
    for c, devices in enumerate(classes):
        place = int(bins.first_C[c])
        for step in steps:
            for device in devices:
                step[device] = [group for group in rows[place] if group >= 0]
                place += 1
    return schedule_of(steps, problem.num_devices)
